"""A fleet around the pure engine, moved step by step: brokers and their logs, the status job, the tables, the engine's
process and the devices. Nothing here is random: a state machine says what happens next.

The process does what `actions.job` does between the tables and the engine. What must hold is in
`support.machine_promises`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from actions.engine import (
    STEP_US,
    Action,
    Artifact,
    AuditEvent,
    Decision,
    Device,
    DeviceState,
    EngineState,
    Limits,
    Logs,
    Place,
    Publish,
    Report,
    Request,
    Served,
    Target,
    apply,
    in_past,
    moved_clock,
    record_places,
    row_in_past,
)
from actions.engine.model import ActionState
from broker_edge.device.calls import Command
from support.agent_device import AgentDevice, SteppedAgent
from support.engine import SECOND, START_US
from support.machine_promises import MachinePromises
from support.model_device import Log

IDS = ("d0", "d1", "d2", "d3")
POISON = "x/y"
"""A device whose id cannot be in a topic."""
FIRMWARE = tuple(Artifact("fw", version, "default", version * 64, 10, "b" * 128, "k1") for version in ("2", "3"))
PARTS = ("events", "device_updates", "target_updates", "state_updates")
"""The order of the commits of a decision."""
_HOLD_US = 600 * SECOND


@dataclass(slots=True)
class Box:
    """A broker, its log, and what the other processes know of it."""

    log: Log
    known: Served
    is_up: bool = True
    is_read: bool = True
    """Whether the status job reads its log."""
    answers: str = "now"
    """When the engine sees the answer to a batch: now, late, or never."""
    late: dict[Publish, Place] | None = None
    heard_us: int = 0
    """By the engine's clock: the log was read up to this moment."""


@dataclass(slots=True)
class Tables:
    """What a restart finds."""

    targets: dict[str, dict[str, Target]] = field(default_factory=dict)
    states: dict[str, ActionState] = field(default_factory=dict)
    facts: dict[str, DeviceState] = field(default_factory=dict)
    events: dict[str, AuditEvent] = field(default_factory=dict)
    reports: list[Report] = field(default_factory=list)
    actions: list[Action] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    devices: Mapping[str, Device] = field(default_factory=dict)
    artifacts: Mapping[tuple[str, str, str], Artifact] = field(default_factory=dict)
    settled: int = 0
    """So many of the first requests are not read again by a restart. Written with the rows of actions."""

    def write(self, decision: Decision) -> None:
        for event in decision.events:
            self.events.setdefault(event.event_id, event)
        self.facts |= {fact.device_id: fact for fact in decision.device_updates}
        for target in decision.target_updates:
            self.targets.setdefault(target.action_id, {})[target.device_id] = target
        self.states |= {row.action_id: row for row in decision.state_updates}

    def loaded(self, now_us: int) -> EngineState:
        """The state of an engine that starts now."""
        targets = {id_: {d: in_past(t, now_us) for d, t in rows.items()} for id_, rows in self.targets.items()}
        all_ = [target for rows in targets.values() for target in rows.values()]
        copied = frozenset(target.key for target in all_ if target.copies)
        giving_way = frozenset(target.key for target in all_ if target.gives_way is not None)
        states = {id_: row_in_past(row, now_us) for id_, row in self.states.items()}
        return EngineState(
            actions=states,
            targets=targets,
            said=frozenset(self.events),
            facts=dict(self.facts),
            copied=copied,
            giving_way=giving_way,
        )


class World:
    """`tick` is the engine; `agent` is what devices run."""

    def __init__(
        self,
        tick: Callable[..., Decision],
        *,
        boxes: int = 2,
        agent: type[SteppedAgent] = SteppedAgent,
        faults: frozenset[str] = frozenset(),
    ) -> None:
        self._tick, self.faults = tick, faults
        self.steady_us, self.skew_us = START_US, 0
        self.boxes = [Box(Log(f"log{n}"), Served(f"b{n}", f"log{n}")) for n in range(boxes)]
        self.gone: list[Log] = []
        self.devices = {id_: AgentDevice(id_, agent) for id_ in IDS}
        self.tables = Tables(artifacts={one.key: one for one in FIRMWARE})
        self.everyone = {id_: Device(id_, "default") for id_ in (*IDS, POISON)}
        self.tables.devices = self.everyone
        self.limits = Limits(allow_unsigned=True)
        self.bad: dict[str, str] = {}
        """action_id → how its work fails: "always", or "sometimes"."""
        self.bounds: dict[str, int] = {}
        """action_id → how many devices may begin it, because all fail and it has an abort."""
        self.state, self.read_to = EngineState(), 0
        self.answered: set[str] = set()
        """The requests that the process no longer passes to the engine."""
        self.reached: set[str] = set()
        """The logs that took everything that was owed to them in the last turn."""
        self.withdrawn: set[tuple[str, str, str]] = set()
        """Action, device and copy of those that the last turn withdraws, where it can. The answer to a cancel may tell
        of another one."""
        self.held: tuple[int, int] | None = None
        self.meant: dict[str, int] = {}
        """request_id of an approval that names no wave → the wave from 0 that waited then."""
        self.promises = MachinePromises(self)
        for device in self.devices.values():
            for box in self.boxes:
                device.connect(box.log)
            device.connect(self.boxes[ord(device.id[-1]) % boxes].log)
            device.restart()
        self.devices_work(1)

    @property
    def now_us(self) -> int:
        """By the engine's clock."""
        return self.steady_us + self.skew_us

    @property
    def logs(self) -> list[Log]:
        return [box.log for box in self.boxes]

    def wait(self, seconds: float) -> None:
        self.steady_us += int(seconds * SECOND)

    def is_approved(self, action_id: str, wave: int) -> bool:
        """Whether somebody has approved that this wave, from 0, begins."""
        for one in self.tables.requests:
            event = self.tables.events.get(f"engine/{action_id}/request/{one.request_id}")
            is_done = event is not None and event.state == "DONE"
            meant = self.meant.get(one.request_id) if one.wave is None else one.wave - 1
            if one.kind == "approve" and one.action_id == action_id and is_done and meant == wave:
                return True
        return False

    def is_lost(self, target: Target) -> bool:
        """Whether a report of the target was in a log when its box was replaced, and nobody had read it."""
        for log in self.gone:
            for partition, rows in log.reports.items():
                unread = rows[log.read[partition] :]
                if any((row["action_id"], row["device_id"]) == target.key for row in unread):
                    return True
        return False

    # -- devices -----------------------------------------------------------------------------------------------------

    def box_of(self, device: AgentDevice) -> Box | None:
        return next((box for box in self.boxes if box.log is device.log), None)

    def move(self, id_: str, to: int | None) -> None:
        self.devices[id_].connect(None if to is None else self.boxes[to % len(self.boxes)].log)
        if to is not None:
            self.devices[id_].told.outgoing.append((("", 0), "ONLINE", None, None))

    def devices_work(self, steps: int, ids: tuple[str, ...] = IDS, *, most: int = 8, twice: bool = False) -> None:
        for _ in range(steps):
            for id_ in ids:
                self._work(self.devices[id_], most, twice=twice)

    def _work(self, device: AgentDevice, most: int, *, twice: bool) -> None:
        box = self.box_of(device)
        is_online = box is not None and box.is_up
        if is_online:
            device.read(most, self.steady_us, partial(self.promises.begins, device.id))
        device.work(partial(self._succeeds, device.id), self.steady_us)
        if is_online:
            device.flush(self.steady_us, twice=twice)

    def _succeeds(self, id_: str, command: Command) -> bool:
        how = self.bad.get(command.action_id)
        return how != "always" and (how is None or (command.attempt + ord(id_[-1])) % 2 == 0)

    # -- the status job ----------------------------------------------------------------------------------------------

    def collect(self, box: Box, most: int | None = None) -> None:
        """The status job reads the log, or the first records that it has not read."""
        if not (box.is_up and box.is_read):
            return
        is_complete = True
        for partition, rows in sorted(box.log.reports.items()):
            start = box.log.read[partition]
            end = len(rows) if most is None else min(len(rows), start + most)
            self.tables.reports += [Report(**row, recorded_us=self.now_us) for row in rows[start:end]]
            box.log.read[partition] = end
            is_complete = is_complete and end == len(rows)
        if is_complete:
            box.heard_us = self.now_us

    # -- the engine's process ----------------------------------------------------------------------------------------

    def set_clock(self, seconds: int) -> None:
        """Somebody sets the clock of the engine's machine while it runs."""
        by_us = seconds * SECOND
        self.skew_us += by_us
        if abs(by_us) <= STEP_US or "clock" in self.faults:
            self.promises.limits.forget()
            return
        self._commit(moved_clock(self.state, by_us, self.now_us))
        self.held = (self.now_us - by_us, self.steady_us + _HOLD_US) if by_us > 0 else None
        for box in self.boxes:
            box.heard_us = 0

    def turn(self) -> Decision:
        """One turn of the job, at a time of its own: the order of requests is that of their times."""
        self.wait(0.000_001)
        for box in self.boxes:
            if box.late is not None and box.answers != "late":
                self._place(box.late)
                box.late = None
        decision = self.decided()
        before = self.state
        self._settle(decision)
        self._commit(decision)
        self.promises.ticked(before, decision)
        self._publish(decision)
        self.promises.settled()
        return decision

    def decided(self) -> Decision:
        for box in self.boxes:
            box.known = replace(box.known, away=not box.is_up)
            box.known = replace(box.known, log_id=box.log.id) if box.is_up else box.known
        if self.held is not None and self.steady_us >= self.held[1]:
            self.held = None
        stock = {(log.id, one.name, one.version, one.sha256): log.lacks() for log in self.logs for one in FIRMWARE}
        logs = Logs(tuple(box.known for box in self.boxes), stock)
        start, self.read_to = self.read_to, len(self.tables.reports)
        return self._tick(
            self.state,
            self.tables.actions,
            [one for one in self.tables.requests if one.request_id not in self.answered],
            self.tables.reports[start:],
            self.tables.devices,
            self.now_us,
            artifacts=self.tables.artifacts,
            limits=self.limits,
            heard_us=self.now_us if self.held is None else min(self.now_us, self.held[0]),
            logs=logs,
            read_us={box.log.id: box.heard_us for box in self.boxes},
        )

    def kill(self, parts: int, again: int) -> None:
        """The process dies in the commits of a tick, and starts again. It reads some reports a second time."""
        self._die(parts, again)

    def take_over(self, parts: int, turns: int) -> None:
        """A second process claims the tables in the commits of the first one. If these were complete, the first one
        still publishes, at some time, and cannot write where. Everything else of it is refused."""
        decision = self._die(parts, 0)
        for _ in range(turns):
            self.turn()
        for box in self.boxes if parts == len(PARTS) else ():
            mine = [one for one in decision.publishes if one.log_id in (None, box.log.id) and "/" not in one.device_id]
            for one in mine if box.is_up else ():
                self.promises.repeated(one)
                box.log.append(one)

    def _die(self, parts: int, again: int) -> Decision:
        self.wait(0.000_001)
        start = self.read_to
        decision = self.decided()
        self._settle(decision)
        self._commit(Decision(**{name: getattr(decision, name) for name in PARTS[:parts]}))
        waiting = {report.place for report in self.state.waiting} | {report.place for report in decision.waiting}
        first = next((n for n, report in enumerate(self.tables.reports) if report.place in waiting), start)
        self.state, self.reached = self.tables.loaded(self.now_us), set()
        self.withdrawn = set()
        self.promises.limits.forget()
        self.read_to, self.held = max(0, min(first, start) - again), None
        self.answered = {one.request_id for one in self.tables.requests[: self.tables.settled]}
        if "requests" in self.faults:
            self.answered |= {one.request_id for one in self.tables.requests if self._is_said(one)}
        for box in self.boxes:
            box.late, box.heard_us = None, 0
        return decision

    def _settle(self, decision: Decision) -> None:
        """As the job drops the requests that a decision handles."""
        done = {id_ for row in self.state.actions.values() for id_ in row.requests_done}
        done |= {id_ for row in decision.state_updates for id_ in row.requests_done}
        done |= {event.request_id for event in decision.events if event.request_id is not None}
        self.answered |= {
            one.request_id for one in self.tables.requests if one.request_id in done or self._is_said(one)
        }

    def _is_said(self, request: Request) -> bool:
        return f"engine/{request.action_id}/request/{request.request_id}" in self.state.said

    def _commit(self, decision: Decision) -> None:
        self.tables.write(decision)
        if decision.state_updates:
            undecided = (n for n, one in enumerate(self.tables.requests) if one.request_id not in self.answered)
            self.tables.settled = next(undecided, len(self.tables.requests))
        self.state = apply(self.state, decision)

    def _publish(self, decision: Decision) -> None:
        self.reached = {box.log.id for box in self.boxes if box.is_up and box.late is None}
        self.withdrawn = self._copies()
        for box in self.boxes:
            mine = [one for one in decision.publishes if one.log_id in (None, box.known.log_id)]
            if not mine or not box.is_up or box.late is not None:
                continue
            if "batch" in self.faults and any("/" in one.device_id for one in mine):
                continue  # The broker refuses the record, and the publisher the batch.
            refused = {one: "its topic" for one in mine if "/" in one.device_id}
            places = {one: self._append(box.log, one) for one in mine if one not in refused}
            if box.answers == "now":
                self._place(places, refused)
            elif box.answers == "late":
                box.late = places

    def _copies(self) -> set[tuple[str, str, str]]:
        targets = [self.state.targets.get(action_id, {}).get(id_) for action_id, id_ in self.state.copied]
        return {(one.action_id, one.device_id, copy) for one in targets if one is not None for copy in one.copies}

    def _append(self, log: Log, publish: Publish) -> Place:
        self.promises.placed(publish, log)
        return Place(2, log.append(publish), log.id)

    def _place(self, places: Mapping[Publish, Place], refused: Mapping[Publish, str] | None = None) -> None:
        self._commit(record_places(self.state, places, self.now_us, refused=refused or {}))
