"""How actions start, and how devices join and leave while they run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from .action import Action, Device, shortened
from .holding import hold
from .lifecycle import next_attempt, removed, skipped
from .model import ActionPhase, ActionState, AuditEvent, Held, Target, TargetState
from .selection import reported_test, select
from .summary import said_of_nobody
from .validity import NO_LEVEL, refusal, unknown_dependency
from .waves import placed, placed_later, waves_of
from .work import Work

_ID_BYTES_MAX = 1_024
_CANCELLED = "it had been cancelled before"
"""In the message of a REMOVED target: it gets no further attempt if its device comes back."""
_GONE = "the device is no longer in the table devices"
_NOT_SELECTED = "the device is no longer among those that the action selects"


def can_be_a_level(device_id: str) -> bool:
    """Whether `devices/<id>/actions` is a topic that a broker accepts."""
    return not NO_LEVEL.search(device_id) and len(device_id.encode()) <= _ID_BYTES_MAX


def admit(work: Work, actions: Collection[Action]) -> None:
    """Accepts each action by the row that was committed first, and creates the targets of new actions."""
    rows: dict[str, list[Action]] = {}
    for action in actions:
        rows.setdefault(action.action_id, []).append(action)
    for action_id in _in_order(rows):
        started = work.state.actions.get(action_id)
        candidates = sorted(rows[action_id], key=lambda row: (row.commit_version, row.digest))
        first = candidates[0]
        if started is not None:
            # The row that started it, if it is among them: the stored digest takes precedence over the order.
            matching = [row for row in candidates if row.digest == started.digest]
            if matching:
                first = matching[0]
                work.actions[action_id] = first
        elif work.is_emptied:
            # An action that starts now selects nobody, or skips what it names, for ever (see `holding`).
            said = "held: the table devices has no rows any more; the action starts once it has some again"
            work.say_of_action(first, "HELD_START", said)
        else:
            work.actions[action_id] = first
            _start(work, first)
        for other in candidates:
            if other.digest != (started.digest if started else first.digest):
                _say_duplicate(work, other)


def _in_order(rows: Mapping[str, Collection[Action]]) -> Iterator[str]:
    """The ids with each action behind those on which it depends: an action and the one that it waits for may be new in
    the same tick. In a circle one comes before what it needs, and is refused."""
    placed: set[str] = set()
    for first in sorted(rows):
        # Depth first with a stack of its own: users decide how long a chain is.
        stack = [first]
        entered = {first}
        while stack:
            id_ = stack[-1]
            needed = sorted({one for row in rows[id_] for one in row.rollout.depends_on})
            following = next((one for one in needed if one in rows and one not in placed and one not in entered), None)
            if following is not None and id_ not in placed:
                entered.add(following)
                stack.append(following)
                continue
            stack.pop()
            if id_ not in placed:
                placed.add(id_)
                yield id_


def _say_duplicate(work: Work, action: Action) -> None:
    work.say(
        AuditEvent(
            event_id=f"engine/{action.action_id}/duplicate/{action.digest}",
            tenant=action.tenant,
            action_id=action.action_id,
            state="REFUSED",
            message=f"a row with action_id {action.action_id} was committed earlier and is used: choose another id",
            at_us=work.now_us,
        )
    )


def _start(work: Work, action: Action) -> None:
    now_us = work.now_us
    row = ActionState(
        action_id=action.action_id,
        tenant=action.tenant,
        phase=ActionPhase.RUNNING,
        digest=action.digest,
        targets=0,
        open=0,
        counts={},
        message="",
        started_us=now_us,
        ended_us=None,
        updated_us=now_us,
    )
    wrong = refusal(action, work.artifacts, work.limits) or _unknown_dependency(work, action)
    if wrong is not None:
        message = shortened(f"refused, nothing was sent: {wrong}")
        work.put_row(replace(row, phase=ActionPhase.REFUSED, ended_us=now_us, message=message))
        work.say_of_action(action, "REFUSED", message)
        for target in [one for one in work.targets(action.action_id) if not one.final]:
            # Of a start that a kill cut short before it wrote the row of the action: nothing was sent.
            work.put(target, skipped(target, message, now_us))
        return
    row = replace(row, waves=len(waves_of(action)), wave=-1 if action.rollout.needs_approval else 0)
    selection = select(action, work.devices, reported_test(action, work.fact, work.now_us))
    places = placed(action, selection.selected)
    for device_id in selection.selected:
        work.put(None, _new(work, action, device_id, places[device_id]))
    for device_id in selection.unknown:
        message = f"device {device_id} is not in the table devices"
        new = _new(work, action, device_id, 0)
        work.put(None, replace(new, state=TargetState.SKIPPED, finished_us=now_us, message=message))
    if not selection.selected and not action.rollout.dynamic:
        row = replace(row, message=shortened(said_of_nobody(action, len(selection.unknown))))
        work.say_of_action(action, "ENDED", row.message)
    work.put_row(row)


def _unknown_dependency(work: Work, action: Action) -> str | None:
    for action_id in action.rollout.depends_on:
        if work.row(action_id) is None and action_id not in work.actions:
            return unknown_dependency(action_id)
    return None


def _new(work: Work, action: Action, device_id: str, wave: int) -> Target:
    now_us = work.now_us
    new = Target(
        action_id=action.action_id,
        tenant=action.tenant,
        device_id=device_id,
        state=TargetState.PENDING,
        created_us=now_us,
        since_us=now_us,
        updated_us=now_us,
        wave=wave,
    )
    if not can_be_a_level(device_id):
        return skipped(new, "its id cannot be a level of the topic devices/<id>/actions", now_us)
    return new


def follow_devices(work: Work) -> None:
    """Removes the targets of devices that have left, and adds new devices to dynamic actions. Holds the removal of many
    at once (`holding`)."""
    if work.state.devices is work.devices:
        _take_back(work)
        return
    looks = [(action, row, *_to_look_at(work, action)) for action, row in work.open_actions()]
    work.held.clear()
    work.returning.clear()
    for action, row, devices, targets in looks:
        selected = frozenset[str]()
        if action.rollout.dynamic:
            selected = frozenset(select(action, devices).selected)
            if row.stopped is None and action.selector.reported_expression is None:
                take_in(work, action, selected)
        left = []
        for looked_at in targets:
            target = work.target(action.action_id, looked_at.device_id) or looked_at
            if target.final:
                continue
            device = work.devices.get(target.device_id)
            if device is None or device.tenant != action.tenant:
                left.append((target, _GONE))
            elif action.rollout.dynamic and target.device_id not in selected:
                left.append((target, _NOT_SELECTED))
        hold(work, action, [target for target, _ in left])
        for target, reason in left:
            if not work.is_held(target):
                remove(work, target, reason)


def _to_look_at(work: Work, action: Action) -> tuple[Mapping[str, Device], list[Target]]:
    """The devices that may join or leave this action, and the targets of those that may leave it: of rows that have
    changed, and of all that is not settled since an earlier change."""
    changed, id_ = work.changed_devices(), action.action_id
    if changed is None:
        return work.devices, list(work.targets(id_))
    held = work.held.get(id_)
    ids = {*changed, *(held.device_ids if held is not None else ()), *work.returning.get(id_, ())}
    if action.rollout.dynamic:
        ids |= work.index(id_).removed
    devices = {one: work.devices[one] for one in sorted(ids) if one in work.devices}
    return devices, [target for one in sorted(ids) if (target := work.target(id_, one)) is not None]


def remove_held(work: Work, action: Action, held: Held) -> int:
    """Removes the targets that were held and had been announced before, and returns their number."""
    before = work.state.following.held.get(action.action_id)
    # After a start, those that were announced are the ones in the table of the moment.
    announced = held.device_ids if work.state.devices is None else before.device_ids if before else frozenset()
    chosen = sorted(held.device_ids & announced)
    for device_id in chosen:
        target = work.target(action.action_id, device_id)
        if target is not None:
            remove(work, target, _NOT_SELECTED if device_id in work.devices else _GONE)
    left = held.device_ids.difference(chosen)
    if left:
        work.held[action.action_id] = replace(held, device_ids=left)
    else:
        del work.held[action.action_id]
    return len(chosen)


def _take_back(work: Work) -> None:
    """Gives the devices that have come back another attempt, if the cancel of the last one is in the log now."""
    for action_id, ids in list(work.returning.items()):
        action, row = work.actions.get(action_id), work.row(action_id)
        if action is not None and row is not None and row.stopped is None and not row.phase.over:
            test = reported_test(action, work.fact, work.now_us)
            take_in(work, action, ids if test is None else frozenset(filter(test, ids)))
        else:
            del work.returning[action_id]


def take_in(work: Work, action: Action, selected: frozenset[str]) -> None:
    returning = set()
    newer = newer_updates(work, action)
    for device_id in sorted(selected):
        target = work.target(action.action_id, device_id)
        if target is None:
            new = _new(work, action, device_id, placed_later(action, device_id))
            by = next((one for one in newer if _has_taken(work.target(one, device_id))), None)
            work.put(None, new if by is None else skipped(new, f"superseded by {by}", work.now_us))
        elif target.state is TargetState.REMOVED and not _was_cancelled(work, target):
            reason = f"attempt {target.attempt} ended {target.state}; the device is selected again"
            again = next_attempt(target, pause_s=0, reason=reason, now_us=work.now_us, first=work.logs.first)
            work.put(target, again)
        elif target.leaving and not target.final:
            returning.add(device_id)
    others = work.returning.get(action.action_id, frozenset()) - selected
    work.returning[action.action_id] = others | returning


def newer_updates(work: Work, action: Action) -> list[str]:
    """The updates that take devices from this one, which may be new to it but have theirs already."""
    row = work.row(action.action_id)
    if not action.is_ota or row is None:
        return []
    found = []
    for other in work.actions.values():
        newer = work.row(other.action_id) if other.is_ota and other.ota.supersede else None
        if newer is not None and (newer.started_us, newer.action_id) > (row.started_us, row.action_id):
            found.append(other.action_id)
    return found


def _has_taken(target: Target | None) -> bool:
    """Whether the newer update is on its way to the device, or there. One that still waits cancels the older one when
    it is sent."""
    if target is None or target.sent_us is None or target.unsent:
        return False
    return not target.final or target.state is TargetState.SUCCEEDED


def _was_cancelled(work: Work, target: Target) -> bool:
    """Whether a user cancelled it before its device left: its message then does not say why it was removed alone."""
    return target.message is None or _CANCELLED in target.message


def kept_away(target: Target, now_us: int) -> Target:
    """The target after a cancel, which also counts if its device has left, or is leaving: it gets no other attempt when
    it comes back."""
    is_away = target.leaving or target.state is TargetState.REMOVED
    if not is_away or target.message is None or _CANCELLED in target.message:
        return target
    return replace(target, message=f"{target.message}; {_CANCELLED}", updated_us=now_us)


def remove(work: Work, target: Target, reason: str) -> None:
    if target.state is TargetState.CANCELLING and not target.leaving and target.gives_way is None:
        reason = f"{reason}; {_CANCELLED}"
    work.put(target, removed(target, reason, work.now_us))
