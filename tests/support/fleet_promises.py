"""What the routes of actions promise, checked on a `support.fleet_history`. `broken` says what did not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from actions.engine import Decision, EngineState, Publish, Report, Target, TargetState
from support.action_fold import differences
from support.model_device import Key, Log, ModelDevice

S = TargetState
ONCE = "a device with its journal carries out an attempt once"
REMEMBERED = "a command that nobody wants is withdrawn, or remembered"
WITHDRAWN = "once all brokers answer, a command that nobody wants has its cancel"
STOPPED = "a device that has begun what nobody wants is stopped"
SPARED = "a table that is empty for a moment removes nobody"
FORCED = "a device learns that it is forced, wherever it is"
_UNINFORMED_MAX = 6


class Promises:
    def __init__(self, seed: int) -> None:
        self.seed, self.step = seed, 0
        self.broken: dict[str, str] = {}
        self._begun_too_late: list[tuple[str, Log]] = []
        """The commands that nobody wanted when a device began them."""
        self._uninformed = Counter[tuple[str, str, int]]()

    def breaks(self, promise: str, detail: object) -> None:
        self.broken.setdefault(promise, f"seed {self.seed} step {self.step}: {detail}")

    def begun(self, device: ModelDevice, key: Key, log: Log, target: Target | None) -> None:
        """A device has begun a command that it found in this log."""
        name = f"{key[0]}/{device.id}/{key[1]}"
        if device.begun[key] > 1 and not device.has_lost_journal:
            self.breaks(ONCE, name)
        if target is None or f"{name}/cancel" in log.places:
            return
        is_over = target.final and (target.attempt > key[1] or target.state in (S.CANCELLED, S.REMOVED))
        gave_way = target.given_up > 0 and target.attempt > key[1]
        if (is_over or gave_way) and f"{key[1]}/{log.id}" not in target.copies:
            self.breaks(REMEMBERED, f"{name} in {log.id}: {target}")
        elif is_over:
            self._begun_too_late.append((name, log))

    def placed(self, publish: Publish, logs: Iterable[Log]) -> None:
        if any(log.value(publish.idempotency_key) not in (None, publish.value) for log in logs):
            self.breaks("one key, one content", publish.idempotency_key)

    def ticked(self, before: EngineState, after: EngineState, retried: Collection[tuple[str, str | None]]) -> None:
        for action_id, rows in after.targets.items():
            if after.actions[action_id].open != sum(not one.final for one in rows.values()):
                self.breaks("the row of an action counts its targets", after.actions[action_id])
            for id_, now in rows.items():
                was = before.targets.get(action_id, {}).get(id_)
                if now.final and now.outbox:
                    self.breaks("nothing is owed to a target that is over", now)
                if was is not None and action_id in before.actions:
                    is_asked = bool({(action_id, None), (action_id, id_)} & set(retried))
                    self._changed(was, now, is_asked=is_asked)

    def _changed(self, was: Target, now: Target, *, is_asked: bool) -> None:
        is_late = was.state is S.TIMED_OUT and now.state is S.SUCCEEDED
        if was.final and now.attempt == was.attempt and now.state is not was.state and not is_late:
            self.breaks("a final state is final", f"{was} became {now}")
        is_again = now.attempt > was.attempt
        was_cancelled = was.state is S.CANCELLING and was.gives_way is None
        if now.attempt < was.attempt or (was_cancelled and is_again and not is_asked):
            self.breaks("nobody retries what was cancelled", now)
        if now.given_up > was.given_up and (now.erred and not was.erred):
            self.breaks("what gives way is no error", now)

    def decided(self, before: EngineState, decision: Decision, publish_max: int, lacking: Collection[str]) -> None:
        """`lacking` are the logs without the artifact of an order."""
        commands = [one for one in decision.publishes if one.kind == "command"]
        if max(Counter(one.log_id for one in commands).values(), default=0) > publish_max:
            self.breaks("publish_max", commands)
        for publish in commands:
            was = before.targets.get(publish.action_id, {}).get(publish.device_id)
            is_new = was is None or (was.outbox, was.log_id) != ("command", publish.log_id)
            if is_new and publish.log_id in lacking:
                self.breaks("no order is sent to a log without its artifact", publish.idempotency_key)

    def spared(self, before: EngineState, decision: Decision) -> None:
        """Call it for a decision on an empty table of devices."""
        for target in decision.target_updates:
            was = before.targets.get(target.action_id, {}).get(target.device_id)
            left = target.leaving or target.state is S.REMOVED
            if left and was is not None and not (was.leaving or was.final):
                self.breaks(SPARED, target)

    def informed(self, devices: Iterable[ModelDevice], state: EngineState) -> None:
        """Call it in every step in which all brokers answer."""
        for device in devices:
            for key, mode in device.running.items():
                target = state.targets.get(key[0], {}).get(device.id)
                if target is None or target.attempt != key[1] or target.state not in (S.ACCEPTED, S.IN_PROGRESS):
                    continue
                self._uninformed[device.id, *key] += mode == "soft" and target.forced
                if self._uninformed[device.id, *key] > _UNINFORMED_MAX:
                    self.breaks(FORCED, target)

    def withdrawn(self, logs: Collection[Log], devices: Mapping[str, ModelDevice], state: EngineState) -> None:
        """Call it when all brokers have answered for a while."""
        for name, log in self._begun_too_late:
            if log in logs and f"{name}/cancel" not in log.places:
                self.breaks(STOPPED, f"{name} in {log.id}: {state.targets[name.split('/')[0]][name.split('/')[1]]}")
        for log in logs:
            for publish in log.records:
                name, key = publish.idempotency_key, (publish.action_id, publish.attempt)
                target = state.targets.get(publish.action_id, {}).get(publish.device_id)
                is_read = log.id in devices[publish.device_id].acknowledged[key]
                if publish.kind != "command" or target is None or is_read or f"{name}/cancel" in log.places:
                    continue
                counts = target.attempt == publish.attempt and target.state is S.TIMED_OUT
                if target.final and not counts:  # Its success would still count.
                    self.breaks(WITHDRAWN, f"{name} in {log.id}: {target}")

    def ended(self, left: Iterable[Target]) -> None:
        for target in left:
            self.breaks("every action ends, and every copy", target)

    def follows(self, events: list[dict[str, Any]], reports: Iterable[Report], state: EngineState) -> None:
        """States of commands follow from the events."""
        names = ("source", "action_id", "device_id", "attempt", "state", "log_id", "partition", "offset")
        for one in reports:
            row = {name: getattr(one, name) for name in names}
            events.append({**row, "event_id": str(one.place), "recorded_at": one.recorded_us})
        for line in differences(events, list(_told(state))):
            self.breaks("states follow from the events", line)


def _told(state: EngineState) -> Iterator[dict[str, Any]]:
    names = ("action_id", "device_id", "attempt", "late", "report_log_id", "report_partition", "report_offset")
    for rows in state.targets.values():
        for one in rows.values():
            # People and places of cancels decide these, and the events have no row for that.
            if one.state is not S.REMOVED and "forced by" not in (one.message or ""):
                yield {**{name: getattr(one, name) for name in names}, "state": one.state.value}
