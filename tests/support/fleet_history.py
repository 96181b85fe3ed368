"""One random history of a fleet: devices that move between brokers, brokers that go away or are replaced, people who
ask for anything, and an engine that is killed between its commits. The seed decides everything.

The devices and logs are models of `broker_edge.device` and of the broker; the engine is the real one. What it promises
is in `support.fleet_promises`.
"""

from __future__ import annotations

import random
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
    Timeouts,
    apply,
    record_places,
    tick,
)
from support.engine import SECOND, START_US, action_of
from support.fleet_promises import Promises
from support.model_device import Log, ModelDevice

DEVICES = tuple(f"d{number}" for number in range(4))
ARTIFACT = Artifact("fw", "2", "default", "a" * 64, 10, "b" * 128, "k1")
_KINDS = ("cancel", "cancel", "retry", "force", "pause", "resume")
_DRAIN_MAX = 150
_CALM = 12
"""Steps in which all brokers answer and no device moves."""


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
        self,
        seed: int,
        *,
        forgets_copies: bool = False,
        forgets_journals: bool = False,
        loses_force: bool = False,
        holds_nothing: bool = False,
        urgent: bool = False,
    ) -> None:
        self.chance = random.Random(seed)
        self._forgets_copies, self._loses_force = forgets_copies, loses_force
        chance = self.chance
        self.now_us, self.is_draining = START_US, False
        self._urgent = urgent
        """Many updates to different versions, one more urgent than the other."""
        self.is_ota = chance.random() < 0.4 or urgent
        self.boxes = [Box(Log(f"log{n}"), Served(f"b{n}", f"log{n}")) for n in range(chance.choice((1, 2, 2, 3)))]
        self.gone: list[Log] = []
        self.devices = {id_: ModelDevice(id_, keeps_journal=not forgets_journals) for id_ in DEVICES}
        self.table = {id_: Device(id_, "default") for id_ in DEVICES}
        # Not `chance`, so that they do not change what else happens.
        self._rewrites, self._priorities = random.Random(-1 - seed), random.Random(-1_000_000 - seed)
        self.rewritten: dict[str, Device] | None = None
        """What the table of devices has again once its rewriting is done."""
        share = 100 if holds_nothing else 10
        limits = {"allow_unsigned": True, "removal_max_percentage": share}
        self.limits = Limits(publish_max=chance.choice((2, 5000)), **limits)
        self.state, self.actions, self.requests = EngineState(), list[Action](), list[Request]()
        self.reports, self.read_to = list[Report](), 0
        self.events: dict[str, dict[str, Any]] = {}
        self.promises = Promises(seed)
        self._add_action()

    def run(self, steps: int = 60) -> dict[str, str]:
        """The promises that were broken, with the first example of each."""
        for device in self.devices.values():
            for box in self.boxes:
                device.connect(box.log, self.now_us)  # It has a session at every broker.
            device.log = self.chance.choice(self.boxes).log
        for self.promises.step in range(steps):
            self.now_us += self.chance.choice((1, 1, 3, 10)) * SECOND
            self._disturb()
            self._turn()
        self._drain(steps)
        return self.promises.broken

    def _turn(self) -> None:
        for device in self.devices.values():
            self._live(device)
        for box in self.boxes:
            self._collect(box)
        if self.is_draining or self.chance.random() < 0.85:
            self._tick()

    # -- the world ---------------------------------------------------------------------------------------------------

    def _add_action(self) -> None:
        chance = self.chance
        rollout = Rollout(
            max_in_flight=chance.choice((None, 2)),
            retries=chance.choice((0, 0, 1, 2)),
            retry_backoff_s=chance.choice((0, 5)),
            membership=chance.choice(("static", "dynamic")),
            priority=self._priorities.choice((0, 0, 1, 2)),
        )
        times = Timeouts(queued_s=chance.choice((40, 10_000)), delivered_s=chance.choice((40, 10_000)), step_s=10_000)
        mode = chance.choice(("forced", "soft", "soft", "download_only"))
        ota = (
            {"type": "ota", "ota": Ota("fw", self._version(), mode=mode, supersede=chance.random() < 0.3)}
            if self.is_ota
            else {}
        )
        deadline_us = self.now_us + 600 * SECOND if chance.random() < 0.2 else None
        limits = {"rollout": rollout, "timeouts": times, "deadline_us": deadline_us}
        self.actions.append(action_of(f"a{len(self.actions) + 1}", selector=Selector(percentage=100), **limits, **ota))

    def _version(self) -> str:
        return str(2 + len(self.actions)) if self._urgent else "2"

    def _disturb(self) -> None:
        chance = self.chance
        if self._urgent and self._priorities.random() < 0.1 and len(self.actions) < 6:
            self._add_action()
        if chance.random() < 0.08:
            box = chance.choice(self.boxes)
            box.is_up = not box.is_up
        if chance.random() < 0.015:
            box = chance.choice(self.boxes)
            self.gone.append(box.log)
            box.log = Log(f"{box.log.id}x")
        if chance.random() < 0.1:
            chance.choice(self.boxes).log.has_artifact ^= True
        if self.rewritten is not None:
            self.table, self.rewritten = self.rewritten, None
        elif self._rewrites.random() < 0.03:
            self.table, self.rewritten = {}, self.table
        id_ = chance.choice(DEVICES)
        if chance.random() < 0.05 and id_ in self.table:
            log = chance.choice((None, "b0", "log0", self.boxes[-1].log.id, "nobody"))
            self.table = {**self.table, id_: Device(id_, "default", log=log)}
        if chance.random() < 0.01 and self.rewritten is None:
            left = {known: row for known, row in self.table.items() if known != id_}
            self.table = left if id_ in self.table else {**left, id_: Device(id_, "default")}
        if chance.random() < 0.07:
            kind = chance.choice(_KINDS)
            of_one = kind not in ("pause", "resume") and chance.random() < 0.5
            self._ask(kind, chance.choice(self.actions), id_ if of_one else None)
        if chance.random() < 0.02 and len(self.actions) < 3:
            self._add_action()

    def _ask(self, kind: str, action: Action, device_id: str | None = None) -> None:
        # Requests of one moment count in the order of their ids.
        id_ = f"r{len(self.requests):04}"
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
            self.promises.begun(device, key, box.log, self.state.targets.get(key[0], {}).get(device.id))

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
        known = [replace(ARTIFACT, version=str(2 + number)) for number in range(6 if self._urgent else 1)]
        stock = {(box.log.id, *one.key[1:], one.sha256): box.log.lacks() for box in self.boxes for one in known}
        logs = Logs(tuple(box.known for box in self.boxes), stock)
        start, self.read_to = self.read_to, len(self.reports)
        arguments = (self.actions, list(self.requests), self.reports[start:], self.table, self.now_us)
        more = {"artifacts": {one.key: one for one in known}, "limits": self.limits, "logs": logs}
        before = self.state
        decision = tick(before, *arguments, **more)
        if self.promises.step % 5 == 0 and tick(before, *arguments, **more) != decision:
            self.promises.breaks("a tick is a function of its arguments", decision)
        lacking = {box.log.id for box in self.boxes if box.log.lacks()} if self.is_ota and not logs.alone else set()
        self.promises.decided(before, decision, self.limits.publish_max, lacking)
        if self.rewritten is not None:
            self.promises.spared(before, decision)
        if not self.is_draining and chance.random() < 0.04:
            self._kill(decision, start)
            return
        self._commit(decision)
        retried = [(one.action_id, one.device_id) for one in self.requests if one.kind == "retry"]
        self.promises.ticked(before, self.state, retried)
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
        self.promises.placed(publish, [*(box.log for box in self.boxes), *self.gone])
        if self._loses_force and publish.kind == "force":
            return Place(2, 0, log.id)
        return Place(2, log.append(publish), log.id)

    def _place(self, places: dict[Publish, Place]) -> None:
        if self.is_draining or self.chance.random() < 0.9:  # Otherwise killed before the second commit.
            self._commit(record_places(self.state, places, self.now_us))

    def _drain(self, steps: int) -> None:
        """Everything works, and every device visits every broker, until nothing happens any more."""
        self.is_draining, quiet = True, 0
        self.table, self.rewritten = (self.table if self.rewritten is None else self.rewritten), None
        self.table = {id_: Device(id_, "default") for id_ in self.table}
        for box in self.boxes:
            box.is_up, box.log.has_artifact = True, True
        for device in self.devices.values():
            if device.log not in [box.log for box in self.boxes]:
                device.leave(interrupted=False)
                device.log = self.boxes[0].log
        for action in self.actions:
            self._ask("resume", action)
            if self.chance.random() < 0.3:
                self._ask("force", action)
        # Updates of many actions wait for each other, and each of their attempts may have to time out.
        for turn in range(3 * _DRAIN_MAX if self._urgent else _DRAIN_MAX):
            self.promises.step = steps + turn
            is_late = turn >= 60 and turn % 20 == 0 if self._urgent else turn in (60, 80, 100)
            self.now_us += (20_000 if is_late else 5) * SECOND
            if turn == _CALM:
                self.promises.withdrawn([box.log for box in self.boxes], self.devices, self.state)
            for number, device in enumerate(self.devices.values() if turn >= _CALM and turn % 4 == 0 else ()):
                device.leave(interrupted=False)
                device.log = self.boxes[(turn // 4 + number) % len(self.boxes)].log
            self._turn()
            self.promises.informed(self.devices.values(), self.state)
            quiet = quiet + 1 if not self._unfinished() else 0
            if turn >= _CALM and quiet > 4 * len(self.boxes):
                break
        self.promises.ended(self._unfinished())
        if not self.is_ota:
            self.promises.follows(list(self.events.values()), self.reports, self.state)

    def _unfinished(self) -> list[Target]:
        served = {box.log.id for box in self.boxes}
        all_ = [one for rows in self.state.targets.values() for one in rows.values()]
        left = [one for one in all_ if {copy.partition("/")[2] for copy in one.copies} & served]
        return [one for one in all_ if not one.final] + left
