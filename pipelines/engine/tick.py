"""One tick of the action engine, as a pure function of what the tables say and the time.

It changes nothing it is given, and the same arguments give the same decision: a tick that is repeated after a crash
decides the same rows and the same records under the same idempotency keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from .lifecycle import REPORTABLE, cancelled, timed_out, with_receipt, with_status
from .model import (
    SECOND_US,
    Action,
    ActionPhase,
    ActionState,
    AuditEvent,
    Decision,
    Device,
    EngineState,
    Limits,
    Quarantined,
    Report,
    Request,
    Target,
    TargetState,
)
from .outbox import owed
from .selection import refusal, select
from .summary import said_of_nobody, summarized

_DEFAULT_LIMITS = Limits()
_LATER_KINDS = ("pause", "resume", "force", "retry", "approve")


def tick(
    state: EngineState,
    actions: Collection[Action],
    requests: Collection[Request],
    reports: Iterable[Report],
    devices: Mapping[str, Device],
    now_us: int,
    *,
    limits: Limits = _DEFAULT_LIMITS,
) -> Decision:
    """What to write and to publish now.

    `actions` holds the rows of every open action and the new ones, `requests` those not known to be handled, `reports`
    the new rows of `action_events` (repeats do no harm), `devices` the whole table by device id.
    """
    work = _Work(state, now_us, limits)
    work.admit(actions, devices)
    work.apply(reports)
    work.answer(requests)
    work.expire()
    work.fill_outbox()
    return work.decision()


def apply(state: EngineState, decision: Decision) -> EngineState:
    """The state once the decision has been committed."""
    targets = dict(state.targets)
    by_action: dict[str, dict[str, Target]] = {}
    for target in decision.target_updates:
        by_action.setdefault(target.action_id, {})[target.device_id] = target
    for action_id, updates in by_action.items():
        targets[action_id] = {**targets.get(action_id, {}), **updates}
    actions = {**state.actions, **{row.action_id: row for row in decision.state_updates}}
    said = state.said | {event.event_id for event in decision.events} if decision.events else state.said
    return EngineState(actions=actions, targets=targets, waiting=decision.waiting, said=said)


class _Work:
    """The scratch pad of one tick: the state below, what changed above. Lives for one call."""

    def __init__(self, state: EngineState, now_us: int, limits: Limits) -> None:
        self._state = state
        self._now_us = now_us
        self._limits = limits
        self._actions: dict[str, Action] = {}
        self._targets: dict[str, dict[str, Target]] = {}
        self._states: dict[str, ActionState] = {}
        self._events: dict[str, AuditEvent] = {}
        self._waiting: list[Report] = []
        self._quarantine: list[Quarantined] = []

    # -- looking up and changing -------------------------------------------------------------------------------------

    def _action_state(self, action_id: str) -> ActionState | None:
        return self._states.get(action_id) or self._state.actions.get(action_id)

    def _target(self, action_id: str, device_id: str) -> Target | None:
        changed = self._targets.get(action_id, {}).get(device_id)
        return changed or self._state.targets.get(action_id, {}).get(device_id)

    def _targets_of(self, action_id: str) -> dict[str, Target]:
        return {**self._state.targets.get(action_id, {}), **self._targets.get(action_id, {})}

    def _put(self, before: Target, after: Target) -> bool:
        if after is before or after == before:
            return False
        self._targets.setdefault(after.action_id, {})[after.device_id] = after
        return True

    def _say(self, event: AuditEvent) -> None:
        if event.event_id not in self._state.said:
            self._events.setdefault(event.event_id, event)

    def _say_of_target(self, target: Target, what: str) -> None:
        self._say(
            AuditEvent(
                event_id=f"engine/{target.action_id}/{target.device_id}/{target.attempt}/{what}",
                tenant=target.tenant,
                action_id=target.action_id,
                device_id=target.device_id,
                attempt=target.attempt,
                state=target.state.value,
                message=target.message or "",
                at_us=self._now_us,
            )
        )

    # -- the steps of a tick -----------------------------------------------------------------------------------------

    def admit(self, actions: Collection[Action], devices: Mapping[str, Device]) -> None:
        """Take each action by the row that was committed first, and give new ones their targets."""
        rows: dict[str, list[Action]] = {}
        for action in actions:
            rows.setdefault(action.action_id, []).append(action)
        for action_id in sorted(rows):
            started = self._state.actions.get(action_id)
            candidates = sorted(rows[action_id], key=lambda row: (row.commit_version, row.digest))
            first = candidates[0]
            if started is not None:
                # The row that started it, if it is among them; what is stored outranks what is found.
                matching = [row for row in candidates if row.digest == started.digest]
                if matching:
                    first = matching[0]
                    self._actions[action_id] = first
            else:
                self._actions[action_id] = first
                self._start(first, devices)
            for other in candidates:
                if other.digest != (started.digest if started else first.digest):
                    self._say_duplicate(other)

    def _say_duplicate(self, action: Action) -> None:
        self._say(
            AuditEvent(
                event_id=f"engine/{action.action_id}/duplicate/{action.digest}",
                tenant=action.tenant,
                action_id=action.action_id,
                state="REFUSED",
                message=f"a row with action_id {action.action_id} was committed earlier and counts; use another id",
                at_us=self._now_us,
            )
        )

    def _start(self, action: Action, devices: Mapping[str, Device]) -> None:
        now_us = self._now_us
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
        wrong = refusal(action)
        if wrong is not None:
            message = f"refused, nothing was sent: {wrong}"
            self._states[action.action_id] = replace(row, phase=ActionPhase.REFUSED, ended_us=now_us, message=message)
            self._say_of_action(action, "REFUSED", message)
            return
        selection = select(action, devices)
        for device_id in selection.selected:
            self._new_target(action, device_id, TargetState.PENDING, None)
        for device_id in selection.unknown:
            message = f"device {device_id} is not in the table devices"
            self._new_target(action, device_id, TargetState.SKIPPED, message)
        if not selection.selected:
            row = replace(row, message=said_of_nobody(action, len(selection.unknown)))
            self._say_of_action(action, "ENDED", row.message)
        self._states[action.action_id] = row

    def _new_target(self, action: Action, device_id: str, state: TargetState, message: str | None) -> None:
        now_us = self._now_us
        self._targets.setdefault(action.action_id, {})[device_id] = Target(
            action_id=action.action_id,
            tenant=action.tenant,
            device_id=device_id,
            state=state,
            created_us=now_us,
            since_us=now_us,
            updated_us=now_us,
            finished_us=now_us if state is TargetState.SKIPPED else None,
            message=message,
        )

    def _say_of_action(self, action: Action, state: str, message: str) -> None:
        self._say(
            AuditEvent(
                event_id=f"engine/{action.action_id}/{state}",
                tenant=action.tenant,
                action_id=action.action_id,
                state=state,
                message=message,
                at_us=self._now_us,
            )
        )

    def apply(self, reports: Iterable[Report]) -> None:
        """Move targets by the reports that waited and the new ones, in the order of their places in the log."""
        unique = {report.place: report for report in (*self._state.waiting, *reports)}
        for place in sorted(unique):
            report = unique[place]
            if report.source == "status" and report.state not in REPORTABLE:
                names = ", ".join(sorted(REPORTABLE))
                self._quarantine.append(
                    Quarantined(report, f"unknown state {report.state!r}; a device reports {names}")
                )
                continue
            target = self._target(report.action_id, report.device_id)
            if target is None or report.attempt > target.attempt:
                self._wait(report)
            elif report.attempt == target.attempt:
                self._report(target, report)
            # An older attempt is history: it stays in action_events and moves nothing.

    def _wait(self, report: Report) -> None:
        limit_s = self._limits.wait_unmatched_s
        if self._now_us - report.recorded_us < limit_s * SECOND_US:
            self._waiting.append(report)
            return
        what = f"action {report.action_id}, device {report.device_id}, attempt {report.attempt}"
        self._quarantine.append(Quarantined(report, f"no target matched within {limit_s} s: {what}"))

    def _report(self, target: Target, report: Report) -> None:
        if report.source == "receipt":
            if report.state == TargetState.DELIVERED:
                self._put(target, with_receipt(target, report, self._now_us))
            return
        after = with_status(target, report, self._now_us)
        if self._put(target, after) and after.late and not target.late:
            self._say_of_target(after, "LATE_SUCCESS")

    def answer(self, requests: Collection[Request]) -> None:
        """Carry out what people asked for; whatever cannot be done is answered with the reason."""
        for request in sorted(requests, key=lambda row: (row.at_us, row.request_id)):
            action_state = self._action_state(request.action_id)
            if action_state is None or action_state.tenant != request.tenant:
                if self._now_us - request.at_us >= self._limits.wait_unmatched_s * SECOND_US:
                    self._answer(request, "REFUSED", f"refused: there is no action {request.action_id}")
                continue
            if request.request_id in action_state.requests_done:
                continue
            if request.kind == "cancel":
                self._cancel(request)
            elif request.kind in _LATER_KINDS:
                self._answer(request, "REFUSED", f"refused: {request.kind} is not supported yet")
            else:
                kinds = ", ".join(("cancel", *_LATER_KINDS))
                self._answer(request, "REFUSED", f"refused: unknown kind {request.kind!r}; the kinds are {kinds}")
            done = (*action_state.requests_done, request.request_id)
            self._states[request.action_id] = replace(action_state, requests_done=done)

    def _answer(self, request: Request, state: str, message: str) -> None:
        self._say(
            AuditEvent(
                event_id=f"engine/{request.action_id}/request/{request.request_id}",
                tenant=request.tenant,
                action_id=request.action_id,
                device_id=request.device_id,
                request_id=request.request_id,
                state=state,
                message=message,
                at_us=self._now_us,
            )
        )

    def _cancel(self, request: Request) -> None:
        targets = self._targets_of(request.action_id)
        if request.device_id is not None and request.device_id not in targets:
            self._answer(request, "REFUSED", f"refused: device {request.device_id} is not a target of this action")
            return
        chosen = [targets[request.device_id]] if request.device_id is not None else list(targets.values())
        reason = f"cancelled by {request.by or 'somebody'}" + (f": {request.reason}" if request.reason else "")
        counts = {"ended at once": 0, "asked to stop": 0, "already ended": 0}
        for target in chosen:
            after = cancelled(target, reason, self._now_us)
            if target.final:
                counts["already ended"] += 1
            else:
                counts["ended at once" if after.final else "asked to stop"] += 1
            self._put(target, after)
        self._answer(request, "DONE", "cancel: " + ", ".join(f"{n} {what}" for what, n in counts.items()))

    def _open_targets(self, wanted: Callable[[Target], bool]) -> list[Target]:
        """Open targets of running actions in a fixed order, so that a repeated tick picks the same ones."""
        running = {id_ for id_, row in self._state.actions.items() if row.phase is ActionPhase.RUNNING}
        running |= {id_ for id_, row in self._states.items() if row.phase is ActionPhase.RUNNING}
        found = []
        for action_id in sorted(running & self._actions.keys()):
            targets = self._targets_of(action_id)
            found += [targets[id_] for id_ in sorted(targets) if not targets[id_].final and wanted(targets[id_])]
        return found

    def expire(self) -> None:
        for target in self._open_targets(lambda _: True):
            after = timed_out(target, self._actions[target.action_id], self._limits, self._now_us)
            if self._put(target, after):
                self._say_of_target(after, "TIMED_OUT")

    def fill_outbox(self) -> None:
        """Let pending targets become owed, as far as the bound on what is owed allows."""
        used = len(self._open_targets(lambda target: target.outbox is not None))
        free = max(0, self._limits.publish_max - used)
        idle = self._open_targets(lambda target: target.state is TargetState.PENDING and target.outbox is None)
        for target in idle[:free]:
            self._put(target, replace(target, outbox="command", updated_us=self._now_us))

    def decision(self) -> Decision:
        due = self._open_targets(lambda target: target.outbox is not None)
        touched = sorted(self._states.keys() | self._targets.keys())
        states = []
        for action_id in touched:
            row = self._action_state(action_id)
            if row is None:
                raise ValueError(f"targets of action {action_id} changed, but it has no row in action_state")
            after = summarized(row, self._targets_of(action_id).values(), self._now_us)
            if after != self._state.actions.get(action_id):
                states.append(after)
        return Decision(
            target_updates=tuple(target for targets in self._targets.values() for target in targets.values()),
            state_updates=tuple(states),
            publishes=tuple(owed(target, self._actions[target.action_id]) for target in due),
            events=tuple(self._events.values()),
            quarantine=tuple(self._quarantine),
            waiting=tuple(self._waiting),
        )
