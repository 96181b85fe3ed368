"""Selects the pending targets whose commands become owed in this tick: by priority and age, within every limit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from .action import Action
from .admission import kept_away, newer_updates
from .giving_way import awaited, can_give_way, gives_way_to
from .lifecycle import cancelled, owing, skipped
from .model import ActionState, Target
from .moves import destination, rerouted
from .routes import cancel_owed, hindrance, is_wait, lacks_artifact, waiting
from .sending import SENDING, Around, Verdict, counted, room, under_way, verdict
from .turns import Turns, turns
from .work import Work


def fill_outbox(work: Work) -> None:
    """Marks commands of pending targets as owed. At most `publish_max` records are owed to a log at once, over all
    actions."""
    for action, row in list(work.open_actions()):
        late = work.late[action.action_id]
        if late and action.rollout.rate_per_minute is not None:
            work.put_row(replace(row, sent=counted(row.sent, late, work.now_us)))
    actions = list(work.open_actions())
    used: Counter[str | None] = Counter()
    for action, _ in actions:
        for target in work.owing(action.action_id):
            there = destination(target, work) or work.logs.first
            used[there] += 1
            if target.outbox == "cancel":
                work.put(target, cancel_owed(target, there, work.logs, work.now_us))
    actions.sort(key=lambda pair: (-pair[0].rollout.priority, pair[1].started_us, pair[0].action_id))
    _Round(work, actions, used).send()


_BYTES_MAX = 64 * 1024 * 1024
"""Approximate bytes of one action that may become owed in a tick: all of them are built at once for publishing."""
_RECORD_BYTES = 512
_LOOKS_MAX = 10_000
"""Targets of an action that are looked at in a tick although no log has room, to skip those that need no command."""


def _free(action: Action) -> int:
    """How many commands of the action may become owed in a tick."""
    return max(1, _BYTES_MAX // (_RECORD_BYTES + len(action.params)))


class _Round:
    """The dispatch of one tick. `used` counts the owed records by log, up to `publish_max`."""

    def __init__(self, work: Work, actions: list[tuple[Action, ActionState]], used: Counter[str | None]) -> None:
        self._work = work
        self._actions = actions
        self._used = used
        self._otas = [(action, row) for action, row in actions if action.is_ota]
        self._installing = {
            target.device_id: action.action_id
            for action, _ in self._otas
            for target in work.some(action.action_id, set(work.index(action.action_id).since.ids()))
            if under_way(target)
        }
        self._around = Around(
            now_us=work.now_us,
            devices=work.devices,
            fact=work.fact,
            artifacts=work.artifacts,
            other=work.target,
            over=work.over,
            is_held=work.is_held,
            installing=self._installing,
            takes=self._takes,
        )
        self._priorities = {action.action_id: action.rollout.priority for action, _ in self._otas}
        self._takes_left: int | None = None
        self._newer: dict[str, list[str]] = {}
        """By action, once it is asked for: the updates by which it is superseded."""

    def send(self) -> None:
        for action, row in self._actions:
            self._want(action, row)
            moved = self._move_for(action)
            not_before_us = action.rollout.not_before_us
            if row.phase not in SENDING or (not_before_us is not None and self._work.now_us < not_before_us):
                continue
            sent = self._send_for(action, row, moved)
            if sent and action.rollout.rate_per_minute is not None:
                row = self._work.row(action.action_id) or row
                self._work.put_row(replace(row, sent=counted(row.sent, sent, self._work.now_us)))

    def _move_for(self, action: Action) -> int:
        """Makes queued commands owed to the logs to which their devices have moved, if those have room and what the
        command needs. They have counted for the rate already, and a pause does not hold them."""
        work, moved = self._work, 0
        free, left = _free(action), work.moving.get(action.action_id, set())
        for device_id in sorted(left):
            target = work.target(action.action_id, device_id)
            if target is None:
                continue
            after = rerouted(target, work.route(device_id), work.logs, work.now_us)
            if after is target or after.outbox != "command":
                left.discard(device_id)
                continue
            reason = self._lacks(action, after.log_id)
            if reason is not None:
                work.put(target, waiting(target, reason, work.now_us))
            elif moved < free and self._used[after.log_id] < work.limits.publish_max:
                if target.outbox is not None:
                    self._used[target.log_id or work.logs.first] -= 1
                self._used[after.log_id] += 1
                work.put(target, after)
                left.discard(device_id)
                moved += 1
        return moved

    def _lacks(self, action: Action, log_id: str | None) -> str | None:
        if not action.is_ota:
            return None
        return lacks_artifact(log_id, self._around.artifact_of(action), self._work.logs)

    def _send_for(self, action: Action, row: ActionState, moved: int) -> int:
        work = self._work
        kinds = work.kinds(action.action_id)
        if not any(kind.unsent and kind.wave <= row.wave for kind in kinds):
            return 0
        own = room(action, row, work)
        free = max(0 if moved else 1, _free(action) - moved)
        free = free if own is None else min(free, own)
        if not free:
            return 0
        self._takes_left = None if own is None else own - awaited(action.action_id, work)
        sent = 0
        with turns(work, action, row) as found:
            for looks, target in enumerate(found, start=1):
                sent += self._look_at(target, action, row, found)
                if sent >= free or (looks >= _LOOKS_MAX and self._is_full()):
                    break
        return sent

    def _look_at(self, target: Target, action: Action, row: ActionState, turns_: Turns) -> bool:
        """Whether the command of this target became owed."""
        found = verdict(target, action, row, self._around)
        if isinstance(found, str):
            self._work.put(target, skipped(target, found, self._work.now_us))
        elif found is Verdict.SEND and (newer := self._came_late(target, action)) is not None:
            self._work.put(target, superseded(target, newer, self._work.now_us))
            return False
        elif found is Verdict.CLOSED:
            turns_.wait_for_window(target)
        if found is not Verdict.SEND or not self._send(target, action, row):
            return False
        if action.is_ota:
            self._installing[target.device_id] = action.action_id
        return True

    def _came_late(self, target: Target, action: Action) -> str | None:
        """The newer update that the device turned out to have since this target waits. A later retry still counts."""
        id_ = action.action_id
        if id_ not in self._newer:
            self._newer[id_] = newer_updates(self._work, action)
        for newer in self._newer[id_]:
            there = self._work.target(newer, target.device_id)
            if there is not None and there.late and there.sent_us is not None and there.since_us >= target.since_us:
                return newer
        return None

    def _is_full(self) -> bool:
        """Whether the only log there is has no room."""
        work = self._work
        return work.logs.alone and self._used[work.logs.first] >= work.limits.publish_max

    def _send(self, target: Target, action: Action, row: ActionState) -> bool:
        """Makes the command owed, if its log is known, has room, and has what the command needs."""
        work, way = self._work, self._work.route(target.device_id)
        reason = way.waits or hindrance(way.log_id, work.logs)
        if reason is None:
            reason = self._lacks(action, way.log_id)
        if reason is not None:
            work.put(target, waiting(target, reason, work.now_us))
            return False
        log_id = way.log_id or work.logs.first
        if self._used[log_id] >= work.limits.publish_max or not self._is_free(target, action, row):
            return False
        said = None if is_wait(target.message) else target.message
        work.put(target, owing(target, action, forced=row.forced, now_us=work.now_us, log_id=log_id, message=said))
        self._used[log_id] += 1
        return True

    def _want(self, action: Action, row: ActionState) -> None:
        """Notes which logs need the artifact: those of the devices of this wave and the next one."""
        work, artifact = self._work, self._around.artifact_of(action)
        if artifact is None or artifact.withdrawn is not None or work.logs.alone or row.stopped is not None:
            return
        for target in work.targets(action.action_id):
            if not target.final and target.wave <= row.wave + 1:
                log_id = work.route(target.device_id).log_id
                if log_id is not None:
                    work.wanted.add((log_id, artifact.name, artifact.version, artifact.sha256))

    def _is_free(self, target: Target, action: Action, row: ActionState) -> bool:
        """Whether the device has no other OTA in progress. A superseding action cancels older ones first."""
        work, free = self._work, True
        if not action.ota.supersede:
            return not self._take(target, action)
        for other, other_row in self._otas:
            older = (other_row.started_us, other.action_id) < (row.started_us, action.action_id)
            found = work.target(other.action_id, target.device_id)
            if found is None or other.action_id == action.action_id:
                continue
            if older:
                after = superseded(found, action.action_id, work.now_us)
                work.put(found, after)
                found = after
            free = free and not under_way(found)
        return free and not self._take(target, action)

    def _takes(self, device_id: str, action: Action) -> bool:
        """Whether the update in progress on this device gives way to the action, by priority and state."""
        other = self._installing.get(device_id)
        found = None if other is None else self._work.target(other, device_id)
        is_urgent = other is not None and action.rollout.priority > self._priorities[other]
        return is_urgent and found is not None and can_give_way(found)

    def _take(self, target: Target, action: Action) -> bool:
        """Lets the update in progress on this device give way, and returns whether it did: its cancel comes first."""
        other = self._installing.get(target.device_id)
        if not action.is_ota or other in (None, action.action_id) or not self._takes(target.device_id, action):
            return False
        found = self._work.target(other or "", target.device_id)
        if found is None or (self._takes_left is not None and self._takes_left <= 0):
            return found is not None
        after = gives_way_to(found, action.action_id, self._work.now_us)
        if self._work.put(found, after):
            self._work.say_of_target(after, "GIVES_WAY")
        if self._takes_left is not None:
            self._takes_left -= 1
        return True


def superseded(target: Target, by: str, now_us: int) -> Target:
    return kept_away(cancelled(target, f"superseded by {by}", now_us), now_us)
