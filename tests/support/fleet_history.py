"""One random history of a fleet: devices that move between brokers, brokers that go away or are replaced, people who
ask for anything, and an engine that is killed between its commits. The seed decides everything.

The devices and logs are models of `broker_edge.device` and of the broker; the engine is the real one. `broken` says
which promises the history broke.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from actions.engine import (
    Action,
    Artifact,
    Decision,
    Device,
    EngineState,
    Limits,
    Logs,
    Ota,
    Place,
    Publish,
    Report,
    Request,
    Rollout,
    Selector,
    Served,
    Target,
    TargetState,
    Timeouts,
    apply,
    record_places,
    tick,
)
from support.action_fold import differences
from support.engine import SECOND, START_US, action_of
from support.model_device import Log, ModelDevice

S = TargetState
DEVICES = tuple(f"d{number}" for number in range(4))
ARTIFACT = Artifact("fw", "2", "default", "a" * 64, 10, "b" * 128, "k1")
_KINDS = ("cancel", "cancel", "retry", "force", "pause", "resume")
_DRAIN_MAX = 150


@dataclass(slots=True)
class Box:
    """A broker: its log, and what the engine knows about it."""

    log: Log
    known: Served
    is_up: bool = True
    late: dict[Publish, Place] | None = None
    """The answer to a batch that the engine has not seen yet."""


class History:
    """The faults are for negative controls."""

    def __init__(
        self, seed: int, *, forgets_copies: bool = False, forgets_journals: bool = False, loses_force: bool = False
    ) -> None:
        self.seed, self.chance = seed, random.Random(seed)
        self._forgets_copies, self._loses_force = forgets_copies, loses_force
        chance = self.chance
        self.now_us, self.step, self.is_draining = START_US, 0, False
        self.is_ota = chance.random() < 0.4
        self.boxes = [Box(Log(f"log{n}"), Served(f"b{n}", f"log{n}")) for n in range(chance.choice((1, 2, 2, 3)))]
        self.gone: list[Log] = []
        self.devices = {id_: ModelDevice(id_, keeps_journal=not forgets_journals) for id_ in DEVICES}
        self.table = {id_: Device(id_, "default") for id_ in DEVICES}
        self.limits = Limits(publish_max=chance.choice((2, 5000)), allow_unsigned=True)
        self.state, self.actions, self.requests = EngineState(), list[Action](), list[Request]()
        self.reports, self.read_to = list[Report](), 0
        self.events: dict[str, dict[str, Any]] = {}
        self.broken: dict[str, str] = {}
        self._uninformed = Counter[tuple[str, str, int]]()
        self._add_action()

    def run(self, steps: int = 60) -> dict[str, str]:
        for device in self.devices.values():
            for box in self.boxes:
                device.connect(box.log, self.now_us)  # It has a session at every broker.
            device.log = self.chance.choice(self.boxes).log
        for self.step in range(steps):
            self.now_us += self.chance.choice((1, 1, 3, 10)) * SECOND
            self._disturb()
            self._turn()
        self._drain(steps)
        return self.broken

    def _turn(self) -> None:
        for device in self.devices.values():
            self._live(device)
        for box in self.boxes:
            self._collect(box)
        if self.is_draining or self.chance.random() < 0.85:
            self._tick()

    def _breaks(self, promise: str, detail: str = "") -> None:
        self.broken.setdefault(promise, f"seed {self.seed} step {self.step}: {detail}")

    # -- the world ---------------------------------------------------------------------------------------------------

    def _add_action(self) -> None:
        chance = self.chance
        rollout = Rollout(
            max_in_flight=chance.choice((None, 2)),
            retries=chance.choice((0, 0, 1, 2)),
            retry_backoff_s=chance.choice((0, 5)),
            membership=chance.choice(("static", "dynamic")),
        )
        times = Timeouts(queued_s=chance.choice((40, 10_000)), delivered_s=chance.choice((40, 10_000)), step_s=10_000)
        mode = chance.choice(("forced", "soft", "soft", "download_only"))
        ota = {"type": "ota", "ota": Ota("fw", "2", mode=mode, supersede=chance.random() < 0.3)} if self.is_ota else {}
        deadline_us = self.now_us + 600 * SECOND if chance.random() < 0.2 else None
        limits = {"rollout": rollout, "timeouts": times, "deadline_us": deadline_us}
        self.actions.append(action_of(f"a{len(self.actions) + 1}", selector=Selector(percentage=100), **limits, **ota))

    def _disturb(self) -> None:
        chance = self.chance
        if chance.random() < 0.08:
            box = chance.choice(self.boxes)
            box.is_up = not box.is_up
        if chance.random() < 0.015:
            box = chance.choice(self.boxes)
            self.gone.append(box.log)
            box.log = Log(f"{box.log.id}x")
        if chance.random() < 0.1:
            chance.choice(self.boxes).log.has_artifact ^= True
        id_ = chance.choice(DEVICES)
        if chance.random() < 0.05 and id_ in self.table:
            log = chance.choice((None, "b0", "log0", self.boxes[-1].log.id, "nobody"))
            self.table = {**self.table, id_: Device(id_, "default", log=log)}
        if chance.random() < 0.01:
            left = {known: row for known, row in self.table.items() if known != id_}
            self.table = left if id_ in self.table else {**left, id_: Device(id_, "default")}
        if chance.random() < 0.07:
            kind = chance.choice(_KINDS)
            of_one = kind not in ("pause", "resume") and chance.random() < 0.5
            self._ask(kind, chance.choice(self.actions), id_ if of_one else None)
        if chance.random() < 0.02 and len(self.actions) < 3:
            self._add_action()

    def _ask(self, kind: str, action: Action, device_id: str | None = None) -> None:
        id_ = f"r{len(self.requests)}"
        ask = Request(id_, "default", action.action_id, kind, device_id=device_id, by="bob", at_us=self.now_us)
        self.requests.append(ask)

    def _live(self, device: ModelDevice) -> None:
        chance = self.chance
        if not self.is_draining and chance.random() < 0.08:
            at = chance.choice((None, *self.boxes))
            device.leave(interrupted=chance.random() < 0.5)
            device.log = None if at is None else at.log
        elif not self.is_draining and chance.random() < 0.01:
            device.lose_journal()
        box = next((box for box in self.boxes if box.log is device.log), None)
        if box is None or not box.is_up:
            return
        for key in device.live(box.log, chance, self.now_us, is_pressed=self.is_draining):
            self._check_begin(device, key, box.log)

    def _collect(self, box: Box) -> None:
        """The status job reads a part of each partition."""
        if not box.is_up:
            return
        for partition, rows in sorted(box.log.reports.items()):
            start = box.log.read[partition]
            end = len(rows) if self.is_draining else min(len(rows), start + self.chance.randint(0, 3))
            self.reports += [Report(**row, recorded_us=self.now_us) for row in rows[start:end]]
            box.log.read[partition] = end

    # -- the engine --------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        chance = self.chance
        for box in self.boxes:
            if self.is_draining or chance.random() < 0.8:  # Otherwise its last answer is old.
                box.known = replace(box.known, away=not box.is_up)
                box.known = replace(box.known, log_id=box.log.id) if box.is_up else box.known
        stock = {(box.log.id, "fw", "2", ARTIFACT.sha256): box.log.lacks() for box in self.boxes}
        logs = Logs(tuple(box.known for box in self.boxes), stock)
        start, self.read_to = self.read_to, len(self.reports)
        arguments = (self.actions, list(self.requests), self.reports[start:], self.table, self.now_us)
        more = {"artifacts": {ARTIFACT.key: ARTIFACT}, "limits": self.limits, "logs": logs}
        before = self.state
        decision = tick(before, *arguments, **more)
        if tick(before, *arguments, **more) != decision:
            self._breaks("a tick is a function of its arguments")
        self._check_orders(before, decision, {log[0] for log, reason in stock.items() if reason is not None})
        if not self.is_draining and chance.random() < 0.04:
            self._kill(decision, start)
            return
        self._commit(decision)
        self._check_rows(before, decision)
        self._publish(decision)

    def _commit(self, decision: Decision) -> None:
        for event in decision.events:
            said = {"event_id": event.event_id, "source": "engine", "action_id": event.action_id, "state": event.state}
            said |= {"device_id": event.device_id, "attempt": event.attempt, "recorded_at": self.now_us}
            self.events.setdefault(event.event_id, {**said, **dict.fromkeys(("log_id", "partition", "offset"))})
        self.state = apply(self.state, decision)
        if self._forgets_copies:
            rows = {a: {d: replace(t, copies=()) for d, t in some.items()} for a, some in self.state.targets.items()}
            self.state = replace(self.state, targets=rows, copied=frozenset())

    def _kill(self, decision: Decision, start: int) -> None:
        """Writes a part of the decision in the order of the commits, and starts an engine from the tables."""
        parts = ("events", "device_updates", "target_updates", "state_updates")
        written = {name: getattr(decision, name) for name in parts[: self.chance.randint(0, len(parts))]}
        self._commit(Decision(**written))
        copied = frozenset(t.key for rows in self.state.targets.values() for t in rows.values() if t.copies)
        self.state = replace(self.state, waiting=(), devices=None, logs=None, copied=copied, moving={})
        self.read_to = self.chance.randint(0, start)
        for box in self.boxes:
            box.late = None

    def _publish(self, decision: Decision) -> None:
        chance = self.chance
        for box in self.boxes:
            mine = [one for one in decision.publishes if one.log_id == box.known.log_id or one.log_id is None]
            if box.late is not None:
                if self.is_draining or chance.random() < 0.6:
                    self._place(box.late)
                    box.late = None
            elif mine and box.is_up and (self.is_draining or chance.random() < 0.9):
                cut = len(mine) if self.is_draining or chance.random() < 0.8 else chance.randint(0, len(mine))
                places = {one: self._append(box.log, one) for one in mine[:cut] if one.log_id in (None, box.log.id)}
                if self.is_draining or chance.random() < 0.65:
                    self._place(places)
                elif chance.random() < 0.7:  # Otherwise the answer is lost.
                    box.late = places

    def _append(self, log: Log, publish: Publish) -> Place:
        for other in (*(box.log for box in self.boxes), *self.gone):
            if other.value(publish.idempotency_key) not in (None, publish.value):
                self._breaks("one key, one content", publish.idempotency_key)
        if self._loses_force and publish.kind == "force":
            return Place(2, 0, log.id)
        return Place(2, log.append(publish), log.id)

    def _place(self, places: dict[Publish, Place]) -> None:
        if self.is_draining or self.chance.random() < 0.9:  # Otherwise killed before the second commit.
            self._commit(record_places(self.state, places, self.now_us))

    # -- the promises ------------------------------------------------------------------------------------------------

    def _check_begin(self, device: ModelDevice, key: tuple[str, int], log: Log) -> None:
        """A device has begun a command."""
        name = f"{key[0]}/{device.id}/{key[1]}"
        if device.begun[key] > 1 and not device.has_lost_journal:
            self._breaks("a device with its journal carries out an attempt once", name)
        target = self.state.targets.get(key[0], {}).get(device.id)
        if target is None or f"{name}/cancel" in log.places:
            return
        over = target.final and (target.attempt > key[1] or target.state in (S.CANCELLED, S.REMOVED))
        if over and f"{key[1]}/{log.id}" not in target.copies:
            self._breaks("a command that nobody wants is withdrawn, or remembered", f"{name} in {log.id}: {target}")

    def _check_rows(self, before: EngineState, decision: Decision) -> None:
        owed = Counter(one.log_id for one in decision.publishes if one.kind == "command")
        if max(owed.values(), default=0) > self.limits.publish_max:
            self._breaks("publish_max", str(owed))
        asked = {(one.action_id, one.device_id) for one in self.requests if one.kind == "retry"}
        for action_id, rows in self.state.targets.items():
            row = self.state.actions[action_id]
            if row.open != sum(not one.final for one in rows.values()):
                self._breaks("the row of an action counts its targets", f"{row}")
            for id_, now in rows.items():
                was = before.targets.get(action_id, {}).get(id_)
                if now.final and now.outbox:
                    self._breaks("nothing is owed to a target that is over", f"{now}")
                if was is None or action_id not in before.actions:
                    continue
                late = was.state is S.TIMED_OUT and now.state is S.SUCCEEDED
                is_other = now.attempt == was.attempt and now.state is not was.state and not late
                if now.attempt < was.attempt or (was.final and is_other):
                    self._breaks("a final state is final", f"{was} became {now}")
                by_people = asked & {(action_id, None), (action_id, id_)}
                if was.state is S.CANCELLING and now.attempt > was.attempt and not by_people:
                    self._breaks("nobody retries what was cancelled", f"{now}")

    def _check_orders(self, before: EngineState, decision: Decision, lacking: set[str]) -> None:
        for publish in decision.publishes if self.is_ota and len(self.boxes) > 1 else ():
            was = before.targets.get(publish.action_id, {}).get(publish.device_id)
            was_owed = was is not None and (was.outbox, was.log_id) == ("command", publish.log_id)
            if publish.kind == "command" and not was_owed and publish.log_id in lacking:
                self._breaks("no order is sent to a log without its artifact", publish.idempotency_key)

    def _check_forced(self) -> None:
        """All brokers answer: a device that was forced soon knows it."""
        for device in self.devices.values():
            for key, mode in device.running.items():
                target = self.state.targets.get(key[0], {}).get(device.id)
                if target is None or target.attempt != key[1] or target.state not in (S.ACCEPTED, S.IN_PROGRESS):
                    continue
                self._uninformed[device.id, *key] += mode == "soft" and target.forced
                if self._uninformed[device.id, *key] > 12:
                    self._breaks("a device learns that it is forced, wherever it is", f"{target}")

    def _drain(self, steps: int) -> None:
        """Everything works, and every device visits every broker, until nothing happens any more."""
        self.is_draining, quiet = True, 0
        self.table = {id_: Device(id_, "default") for id_ in self.table}
        for box in self.boxes:
            box.is_up, box.log.has_artifact = True, True
        for action in self.actions:
            self._ask("resume", action)
        for turn in range(_DRAIN_MAX):
            self.step = steps + turn
            self.now_us += (20_000 if turn in (60, 80, 100) else 5) * SECOND
            for number, device in enumerate(self.devices.values() if turn % 4 == 0 else ()):
                device.leave(interrupted=False)
                device.log = self.boxes[(turn // 4 + number) % len(self.boxes)].log
            self._turn()
            self._check_forced()
            quiet = quiet + 1 if not self._unfinished() else 0
            if quiet > 4 * len(self.boxes):
                break
        for target in self._unfinished():
            self._breaks("every action ends", f"{target}")
        self._check_withdrawn()
        if not self.is_ota:
            self._check_fold()

    def _unfinished(self) -> list[Target]:
        served = {box.log.id for box in self.boxes}
        all_ = [one for rows in self.state.targets.values() for one in rows.values()]
        left = [one for one in all_ if {copy.partition("/")[2] for copy in one.copies} & served]
        return [one for one in all_ if not one.final] + left

    def _check_withdrawn(self) -> None:
        """No log has a command that nobody wants, and that its device has not read yet, without a cancel."""
        for log in (box.log for box in self.boxes):
            for publish in log.records:
                name, device = publish.idempotency_key, self.devices[publish.device_id]
                target = self.state.targets.get(publish.action_id, {}).get(publish.device_id)
                read = device.acknowledged[publish.action_id, publish.attempt]
                if publish.kind != "command" or target is None or log.id in read or f"{name}/cancel" in log.places:
                    continue
                if target.attempt == publish.attempt and target.state is S.TIMED_OUT:
                    continue  # Its success would still count.
                self._breaks(
                    "a command that nobody wants is withdrawn", f"{name} in {log.id}, read in {read}: {target}"
                )

    def _check_fold(self) -> None:
        events = list(self.events.values())
        for one in self.reports:
            row = {name: getattr(one, name) for name in ("source", "action_id", "device_id", "attempt", "state")}
            place = dict(zip(("log_id", "partition", "offset"), one.place, strict=True))
            events.append({**row, **place, "event_id": str(one.place), "recorded_at": one.recorded_us})
        names = ("action_id", "device_id", "attempt", "late", "report_log_id", "report_partition", "report_offset")
        for rows in self.state.targets.values():
            forced = [one for one in rows.values() if "forced by" in (one.message or "")]
            kept = [one for one in rows.values() if one not in forced and one.state is not S.REMOVED]
            told = [{**{name: getattr(one, name) for name in names}, "state": one.state.value} for one in kept]
            for line in differences(events, told):
                self._breaks("states follow from the events", line)
