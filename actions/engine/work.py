"""The working state of one tick: lookups, changes, and events to write. Lives for one call.

It only looks up and records; the steps that use it decide which target changes and why.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set, ValuesView
from dataclasses import replace

from .action import Action, Artifacts, Device, DeviceTable, Request
from .index import Index, Kind, index_of
from .lifecycle import proof_of
from .logs import Logs
from .model import (
    LATE_US,
    ActionPhase,
    ActionState,
    AuditEvent,
    DeviceState,
    EngineState,
    Following,
    Held,
    Limits,
    Quarantined,
    Report,
    Target,
)
from .routes import Route, route

_ONE_LOG = Logs()
_NOBODY = frozenset[str]()


class Work:
    """`actions` holds the definitions of this tick, by id; methods give access to everything else."""

    def __init__(
        self,
        state: EngineState,
        devices: Mapping[str, Device],
        artifacts: Artifacts,
        now_us: int,
        limits: Limits,
        heard_us: int | None = None,
        logs: Logs = _ONE_LOG,
        read_us: Mapping[str, int] | None = None,
    ) -> None:
        self.state = state
        self.devices = devices
        self.retired = devices.retired if isinstance(devices, DeviceTable) else frozenset[str]()
        self.artifacts = artifacts
        self.now_us = now_us
        self.limits = limits
        self.logs = logs
        self.heard_us = now_us if heard_us is None else min(heard_us, now_us)
        """Reports up to this time are known, of the logs in `read_us` up to the time there."""
        self.read_us = read_us
        self.unread: set[str] = set()
        """Logs with reports that must be read before a target that is due can time out."""
        self.actions: dict[str, Action] = {}
        self.changed: dict[str, dict[str, Target]] = {}
        self.states: dict[str, ActionState] = {}
        self.facts: dict[str, DeviceState] = {}
        self.events: dict[str, AuditEvent] = {}
        self.waiting: list[Report] = []
        self.waiting_bytes = 0
        self.waiting_of: dict[str, tuple[int, int]] = {}
        """By device: the number and the bytes of its waiting reports."""
        self.quarantine: list[Quarantined] = []
        self.late: Counter[str] = Counter()
        """By action: commands that were owed for a long time and no longer are, so that they count for the rate now."""
        self.moving: dict[str, set[str]] = {}
        """By action: the devices whose queued command must follow them to another log."""
        self.called_off: set[tuple[str, str]] = set()
        """The keys of targets that a user cancels in this tick, also of those that have just ended by themselves."""
        self.held: dict[str, Held] = dict(state.following.held)
        """By action: the targets of devices that have left, as long as nobody knows whether that was meant."""
        self.returning: dict[str, frozenset[str]] = dict(state.following.returning)
        self.is_emptied = not devices and (state.following.is_emptied or bool(state.devices))
        """By action: the devices that get another attempt once the cancel of the last one is in the log."""
        self.wanted: set[tuple[str, str, str, str]] = set()
        self.judged_us: int | None = None
        """Now, if this tick considers that time has passed since the reports of devices."""
        self._merged: dict[str, dict[str, Target]] = {}
        self._owing: dict[str, set[str]] = {}
        """By action: those of the changed targets to which something is owed."""
        self._kinds: dict[str, tuple[int, Mapping[Kind, int]]] = {}
        """By action: the counts, and the number of changes that they include."""
        self._puts: Counter[str] = Counter()
        self._changed_devices: Set[str] | None = None

    # -- looking up --------------------------------------------------------------------------------------------------

    def row(self, action_id: str) -> ActionState | None:
        return self.states.get(action_id) or self.state.actions.get(action_id)

    def target(self, action_id: str, device_id: str) -> Target | None:
        changed = self.changed.get(action_id, {}).get(device_id)
        return changed or self.state.targets.get(action_id, {}).get(device_id)

    def targets(self, action_id: str) -> ValuesView[Target]:
        """All targets of the action in their current state. Do not hold it while targets change."""
        return self._view(action_id).values()

    def index(self, action_id: str) -> Index:
        """The index of the action's targets as they were before this tick."""
        return index_of(self.state, action_id)

    def some(self, action_id: str, ids: Collection[str]) -> Iterator[Target]:
        """The current targets of these ids, and all that have changed in this tick; sorted, so that a repeated tick
        does the same. Changes that are made meanwhile are seen, new targets are not."""
        changed = self.changed.get(action_id, {})
        for device_id in sorted({*ids, *changed}):
            target = self.target(action_id, device_id)
            if target is not None:
                yield target

    def owing(self, action_id: str) -> list[Target]:
        """The targets to which something is owed, by id."""
        ids = self.index(action_id).owing.difference(self.changed.get(action_id, ()))
        ids |= self._owing.get(action_id, _NOBODY)
        return [target for id_ in sorted(ids) if (target := self.target(action_id, id_)) is not None]

    def kinds(self, action_id: str) -> Mapping[Kind, int]:
        """The counts of all targets of the action in their current state."""
        changed = self.changed.get(action_id)
        if not changed:
            return self.index(action_id).kinds
        known = self._kinds.get(action_id)
        if known is None or known[0] != self._puts[action_id]:
            known = self._kinds[action_id] = (self._puts[action_id], self.index(action_id).kinds_with(changed))
        return known[1]

    def sent(self, action_id: str) -> Mapping[int, int]:
        """By second: the current targets whose command became owed, or reached the log, then."""
        changed = self.changed.get(action_id)
        return self.index(action_id).sent_with(changed) if changed else self.index(action_id).sent

    def changed_devices(self) -> Set[str] | None:
        """The ids of devices whose row is new, gone, or another object than in the last tick; None: nobody knows."""
        before, after = self.state.devices, self.devices
        if before is None or self._changed_devices is not None or before is after:
            return self._changed_devices if before is not after else _NOBODY
        found = {id_ for id_, device in after.items() if before.get(id_) is not device}
        self._changed_devices = found.union(before.keys() - after.keys())
        return self._changed_devices

    def fact(self, device_id: str) -> DeviceState | None:
        """What the device has reported. What it reported to a tenant that had it before counts no more."""
        found = self.facts.get(device_id) or self.state.facts.get(device_id)
        device = None if found is None else self.devices.get(device_id)
        return None if found is not None and device is not None and device.tenant != found.tenant else found

    def route(self, device_id: str) -> Route:
        return route(self.devices.get(device_id), self.fact(device_id), self.logs)

    def open_actions(self) -> Iterator[tuple[Action, ActionState]]:
        """The actions that are not over and whose definition is known, sorted by id, so that a repeated tick does the
        same."""
        for action_id in sorted(self.actions):
            row = self.row(action_id)
            if row is not None and not row.phase.over:
                yield self.actions[action_id], row

    def is_held(self, target: Target) -> bool:
        held = self.held.get(target.action_id)
        return held is not None and target.device_id in held.device_ids

    def following(self) -> Following:
        returning = {action_id: ids for action_id, ids in self.returning.items() if ids}
        return Following(self.held, returning, self.is_emptied)

    def over(self, action_id: str) -> bool | None:
        row = self.row(action_id)
        return None if row is None else row.phase.over

    def _view(self, action_id: str) -> Mapping[str, Target]:
        changed = self.changed.get(action_id)
        if not changed:
            return self.state.targets.get(action_id, {})
        if action_id not in self._merged:
            self._merged[action_id] = {**self.state.targets.get(action_id, {}), **changed}
        return self._merged[action_id]

    # -- changing ----------------------------------------------------------------------------------------------------

    def put(self, before: Target | None, after: Target) -> bool:
        """Records the target if it differs from before; returns whether it does."""
        # The time of the last change first: a comparison of forty fields costs as much as their copy.
        if before is not None and after.updated_us == before.updated_us and after == before:
            return False
        if before is not None and before.outbox == "command" != after.outbox:
            self.late[after.action_id] += self.now_us - (before.sent_us or 0) >= LATE_US
        self.changed.setdefault(after.action_id, {})[after.device_id] = after
        self._puts[after.action_id] += 1
        if after.outbox is not None:
            self._owing.setdefault(after.action_id, set()).add(after.device_id)
        elif before is not None and before.outbox is not None:
            self._owing.get(after.action_id, set()).discard(after.device_id)
        if after.action_id in self._merged:
            self._merged[after.action_id][after.device_id] = after
        return True

    def put_row(self, row: ActionState) -> None:
        self.states[row.action_id] = row

    def proof(self, target: Target) -> str | None:
        return proof_of(target, self.actions.get(target.action_id))

    def stop(self, row: ActionState, reason: str) -> None:
        """Sends nothing more for this action from this tick on."""
        self.put_row(replace(row, stopped=row.stopped or reason, phase=ActionPhase.STOPPING))

    # -- saying ------------------------------------------------------------------------------------------------------

    def say(self, event: AuditEvent) -> None:
        if event.event_id not in self.state.said:
            self.events.setdefault(event.event_id, event)

    def say_of_target(self, target: Target, what: str) -> None:
        self.say(
            AuditEvent(
                event_id=f"engine/{target.action_id}/{target.device_id}/{target.attempt}/{what}",
                tenant=target.tenant,
                action_id=target.action_id,
                device_id=target.device_id,
                attempt=target.attempt,
                state=what,
                message=target.message or "",
                at_us=self.now_us,
            )
        )

    def say_of_action(self, action: Action, what: str, message: str) -> None:
        self.say(
            AuditEvent(
                event_id=f"engine/{action.action_id}/{what}",
                tenant=action.tenant,
                action_id=action.action_id,
                state=what,
                message=message,
                at_us=self.now_us,
            )
        )

    def answer(self, request: Request, state: str, message: str) -> None:
        self.say(
            AuditEvent(
                event_id=f"engine/{request.action_id}/request/{request.request_id}",
                tenant=request.tenant,
                action_id=request.action_id,
                device_id=request.device_id,
                request_id=request.request_id,
                state=state,
                message=message,
                at_us=self.now_us,
            )
        )
