"""One tick of the action engine, as a pure function of the table contents and the time.

It does not modify its arguments, and the same arguments give the same decision: a tick that is repeated after a crash
decides the same rows and the same records under the same idempotency keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from .action import Action, Artifacts, Device, Request, has_artifacts, why_gone
from .admission import admit, follow_devices
from .attempts import retried
from .dispatch import fill_outbox
from .giving_way import give_back
from .heard import heard_of, note_unread, soak_heard_us
from .holding import is_without_artifact, say_held
from .index import move_index
from .lifecycle import cancelled
from .logs import Logs
from .model import (
    ActionPhase,
    ActionState,
    Decision,
    EngineState,
    Limits,
    Publish,
    Report,
    Target,
    TargetState,
)
from .moves import destination, follow_routes, unwanted
from .outbox import owed, withdrawal
from .reported import follow_reports
from .reporting import apply_reports
from .requests import answer_requests
from .sending import SENDING
from .summary import summarized
from .timeouts import due_among, due_ids, timed_out
from .waves import abort_reason, advanced, tallied, waves_of
from .work import Work

_DEFAULT_LIMITS = Limits()
_NO_ARTIFACTS: Artifacts = {}
_ONE_LOG = Logs()


def tick(
    state: EngineState,
    actions: Collection[Action],
    requests: Collection[Request],
    reports: Iterable[Report],
    devices: Mapping[str, Device],
    now_us: int,
    *,
    artifacts: Artifacts = _NO_ARTIFACTS,
    limits: Limits = _DEFAULT_LIMITS,
    heard_us: int | None = None,
    logs: Logs = _ONE_LOG,
    read_us: Mapping[str, int] | None = None,
) -> Decision:
    """What to write and to publish now.

    `actions` holds the rows of every open action and the new ones, `requests` those not known to be handled, `reports`
    the new rows of `action_events` (repeats are harmless), `devices` the whole table by device id: the same object as
    long as the table is unchanged, with the same object for a row that is unchanged, and never modified in place.
    `artifacts` is that whole table. All reports up to `heard_us` are in `reports` or were in those of an earlier tick;
    None means now. `read_us` (log id → time) says the same of single logs, because a report reaches `action_events`
    only once it has been read from its log; None: no log is behind. `logs` says where devices are reached; by default
    there is one broker.
    """
    work = Work(state, devices, artifacts, now_us, limits, heard_us, logs, read_us)
    admit(work, actions)
    follow_devices(work)
    apply_reports(work, reports)
    follow_reports(work)
    answer_requests(work, requests)
    say_held(work)
    _expire(work)
    give_back(work)
    _try_again(work)
    _judge(work)
    _stop(work)
    follow_routes(work)
    _call_off(work)
    fill_outbox(work)
    return _decision(work)


def apply(state: EngineState, decision: Decision) -> EngineState:
    """The state after the decision has been committed."""
    targets = dict(state.targets)
    by_action: dict[str, dict[str, Target]] = {}
    for target in decision.target_updates:
        rows = by_action.get(target.action_id)
        if rows is None:
            rows = by_action[target.action_id] = {}
        rows[target.device_id] = target
    for action_id, updates in by_action.items():
        targets[action_id] = {**targets.get(action_id, {}), **updates}
        move_index(state, action_id, updates, targets[action_id])
    actions = {**state.actions, **{row.action_id: row for row in decision.state_updates}}
    said = state.said | {event.event_id for event in decision.events} if decision.events else state.said
    facts = state.facts
    if decision.device_updates:
        told = {fact.device_id: fact for fact in decision.device_updates}
        facts = {**facts, **told}
        for index in state.indexes.values():
            index.note_facts(state.facts, told.keys(), facts)
    copied = state.copied
    if copied or any(target.copies for target in decision.target_updates):
        copied -= {target.key for target in decision.target_updates}
        copied |= {target.key for target in decision.target_updates if target.copies}
    giving_way = state.giving_way
    if giving_way or any(target.gives_way for target in decision.target_updates):
        giving_way -= {target.key for target in decision.target_updates}
        giving_way |= {target.key for target in decision.target_updates if target.gives_way is not None}
    return EngineState(
        actions=actions,
        targets=targets,
        waiting=decision.waiting,
        said=said,
        facts=facts,
        devices=decision.devices,
        logs=decision.logs,
        moving=decision.moving,
        copied=copied,
        giving_way=giving_way,
        following=state.following if decision.following is None else decision.following,
        unloaded=state.unloaded,
        indexes=state.indexes,
        judged_us=state.judged_us if decision.judged_us is None else decision.judged_us,
    )


def _expire(work: Work) -> None:
    """Ends targets that have lasted too long. Only considers the time up to which reports are known: an unread report
    may say that a target ended in time."""
    for action, _ in work.open_actions():
        for target in _due(action, work):
            is_served = target.outbox != "cancel" or work.logs.serving(destination(target, work)) is not None
            first = work.logs.first
            if not timed_out(target, action, work.limits, work.heard_us, first, is_served=is_served).final:
                continue
            heard_us = heard_of(target, work)
            if not timed_out(target, action, work.limits, heard_us, first, is_served=is_served).final:
                note_unread(target, work)
                continue
            after = timed_out(target, action, work.limits, work.now_us, first, is_served=is_served)
            if work.put(target, after) and after.state is TargetState.TIMED_OUT:
                work.say_of_target(after, "TIMED_OUT")


def _due(action: Action, work: Work) -> list[Target]:
    """The targets whose time may be up, by id."""
    if action.deadline_us is not None and work.heard_us >= action.deadline_us:
        found = [target for target in work.targets(action.action_id) if not target.final]
        return sorted(found, key=lambda target: target.device_id)
    ids = due_ids(work.index(action.action_id), action, work.limits, work.heard_us)
    changed = work.changed.get(action.action_id, {})
    ids.difference_update(changed)
    ids.update(due_among(changed.values(), action, work.limits, work.heard_us))
    return [target for id_ in sorted(ids) if (target := work.target(action.action_id, id_)) is not None]


def _try_again(work: Work) -> None:
    """Starts the next attempt of targets that have just ended in error, if the action allows one and still runs.

    Not of a target that was being cancelled: whoever cancelled it does not want another attempt.
    """
    for action_id, changed in work.changed.items():
        action, row = work.actions.get(action_id), work.row(action_id)
        if action is None or row is None or row.stopped is not None or not action.rollout.retries:
            continue
        for target in list(changed.values()):
            before = work.state.targets.get(action_id, {}).get(target.device_id)
            ending = before is not None and before.state is TargetState.CANCELLING and before.gives_way is None
            if not (ending or target.leaving or target.key in work.called_off):
                work.put(target, retried(target, action, work.now_us, work.logs.first))


def _judge(work: Work) -> None:
    """Stops actions with too many errors, and opens the next wave of successful ones."""
    for action, row in list(work.open_actions()):
        waves = waves_of(action)
        ruled = len(waves) > 1 or waves[0].error_percentage is not None or action.rollout.abort_percentage is not None
        if row.stopped is not None or not (ruled or row.wave < 0):
            continue
        tallies = tallied(action, work.kinds(action.action_id))
        reason = abort_reason(action, row, tallies)
        if reason is not None:
            work.stop(row, reason)
            work.say_of_action(action, "ABORTED", reason)
        elif row.phase in SENDING:
            after = advanced(action, row, tallies, work.now_us, soak_heard_us(action, row, work))
            if after != row:
                work.put_row(after)
                _say_gate(work, action, row, after)


def _say_gate(work: Work, action: Action, before: ActionState, after: ActionState) -> None:
    for wave in range(before.wave + 1, after.wave + 1):
        work.say_of_action(action, f"WAVE_{wave + 1}", f"wave {wave + 1} of {after.waves} begins")
    if after.phase is ActionPhase.WAITING_APPROVAL and before.phase is not after.phase:
        what = f"wave {after.wave + 2} of {after.waves} waits for approval"
        work.say_of_action(action, f"WAITING_APPROVAL_{after.wave + 2}", what)


def _stop(work: Work) -> None:
    """Cancels the remaining targets of stopped actions."""
    giving_way = {action_id for action_id, _ in work.state.giving_way}
    for action, row in list(work.open_actions()):
        if row.stopped is None:
            continue
        kinds = work.kinds(action.action_id)
        is_done = not any(kind.is_open and kind.state is not TargetState.CANCELLING for kind in kinds)
        if is_done and action.action_id not in giving_way:
            continue
        for target in list(work.targets(action.action_id)):
            is_ending = target.final or (target.state is TargetState.CANCELLING and target.gives_way is None)
            if not is_ending:
                work.put(target, cancelled(target, row.stopped, work.now_us))


def _call_off(work: Work) -> None:
    """Replaces owed commands whose artifact has been withdrawn or taken out of the table by their cancels. Without the
    row, the command would name an image without its checksum, and nobody wants that image any more."""
    for action, _ in list(work.open_actions()):
        reason = why_gone(action, work.artifacts)
        if reason is None or not has_artifacts(work.artifacts, action.tenant):
            continue  # If no artifact is left, this is held, see `holding`.
        for target in [one for one in work.owing(action.action_id) if one.outbox == "command"]:
            work.called_off.add(target.key)
            work.put(target, cancelled(target, reason, work.now_us))


def _decision(work: Work) -> Decision:
    now_us = work.now_us
    open_ = list(work.open_actions())
    touched = work.states.keys() | work.changed.keys()
    touched |= {row.action_id for _, row in open_ if row.open == 0}
    if work.state.devices is None:
        # First tick after a start: the previous run may have been killed between writing targets and their action's
        # row.
        touched |= work.state.actions.keys()
    states = []
    for action_id in sorted(touched):
        row = work.row(action_id)
        if row is None:
            raise ValueError(f"targets of action {action_id} changed, but it has no row in action_state")
        lasting = _lasts(work.actions.get(action_id), row, now_us)
        after = summarized(row, work.kinds(action_id), now_us, lasting=lasting)
        if after != work.state.actions.get(action_id):
            states.append(after)
    return Decision(
        target_updates=tuple(target for targets in work.changed.values() for target in targets.values()),
        state_updates=tuple(states),
        publishes=tuple(_publishes(work, [action for action, _ in open_])),
        events=tuple(work.events.values()),
        quarantine=tuple(work.quarantine),
        waiting=tuple(work.waiting),
        device_updates=tuple(work.facts.values()),
        devices=work.devices,
        logs=work.logs,
        moving={action_id: frozenset(ids) for action_id, ids in work.moving.items() if ids},
        following=work.following(),
        judged_us=work.judged_us,
        wanted=frozenset(work.wanted),
        unread=frozenset(work.unread),
    )


def _publishes(work: Work, actions: Collection[Action]) -> list[Publish]:
    """The owed records whose log has a broker, in a fixed order. Copies may also be withdrawn after their action."""
    publishes = [
        owed(target, action, work.artifacts, destination(target, work))
        for action in actions
        for target in work.owing(action.action_id)
        if not (target.outbox == "command" and is_without_artifact(action, work))
    ]
    changed = {target.key for rows in work.changed.values() for target in rows.values() if target.copies}
    for key in work.state.copied | changed:
        target, action = work.target(*key), work.actions.get(key[0])
        if target is not None:
            publishes += [withdrawal(target, action, *copy) for copy in unwanted(target)]
    found = [publish for publish in publishes if work.logs.serving(publish.log_id) is not None]
    # Withdrawals first: a device must not find the next update before the cancel of the one that is given up.
    found.sort(key=_place)
    return found


def _place(publish: Publish) -> tuple[bool, str, str, int, str]:
    is_later = publish.kind != "withdraw"
    return is_later, publish.action_id, publish.device_id, publish.attempt, publish.log_id or ""


def _lasts(action: Action | None, row: ActionState, now_us: int) -> bool:
    """Whether devices may still join."""
    if action is None or not action.rollout.dynamic or row.stopped is not None:
        return False
    return action.deadline_us is None or now_us < action.deadline_us
