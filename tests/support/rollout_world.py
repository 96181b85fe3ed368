"""A rollout with real parts, without a JVM: broker and engine as processes that are killed, and the simulated fleet
with faults. The status job's own parsing copies what they report into `action_events`.

Used by the test of a small fleet and by `tests/bench/fleet.py` for a large one.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import random
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actions.event_log import EventLog
from actions.fleet_desk import FleetDesk
from actions.status_rows import RECEIPTS, STATUS_FILTER, parse
from broker_edge import Client, HeadwaterError
from broker_edge.device.faults import Fault, Share, assign
from broker_edge.device.faults import parse as parse_faults
from broker_edge.device.fleet import FleetSettings, RunningFleet, device_ids
from broker_edge.device.fleet_log import last_told, read
from broker_edge.device.simulated import Updates
from broker_edge.torture.process import BrokerProcess
from broker_edge.values import Commit
from sinks.rows import now_us, rows_of
from support.ports import free_port

EXPECTED = {
    "ok": "SUCCEEDED",
    "fails": "FAILED",
    "refuses": "REJECTED",
    "silent": "TIMED_OUT",
    "stuck": "TIMED_OUT",
    "offline": "TIMED_OUT",
}
"""The final state of a command at a device with each fault."""
UPDATE_FAULTS = parse_faults(
    "interrupted=20%,crash@install=10%,crash@confirm=5%,wrong-checksum=10%,fails=10%,refuses=5%,silent=5%,"
    "reflashed=5%,offline=5%"
)
UPDATE_EXPECTED = {
    "ok": "SUCCEEDED",
    "interrupted": "SUCCEEDED",
    "crash@install": "SUCCEEDED",
    "crash@confirm": "SUCCEEDED",
    "wrong-checksum": "FAILED",
    "fails": "FAILED",
    "refuses": "REJECTED",
    "silent": "TIMED_OUT",
    "reflashed": "TIMED_OUT",
    "offline": "TIMED_OUT",
}
"""The final state of an update at a device with each fault."""

STATUS_GROUP = "status"
"""The consumer group of the status job, by default."""
_CONNECTING_MAX = 50
_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "log_id", "epoch")


def fixed_ports() -> dict[str, str]:
    """Settings for a broker with the same addresses after each start."""
    return {f"listeners.{name}.bind": f"127.0.0.1:{free_port()}" for name in ("mqtt", "flight", "admin")}


def fleet_settings(
    count: int, *, port: int, log: Path, faults: float = 0.0, seed: int = 0, updates: Updates | None = None
) -> FleetSettings:
    """Simulated devices, the given share of which has a fault: faults of commands in equal parts or, with `updates`,
    those of updates. No device sends telemetry. `log` is the fleet's own log."""
    if updates is None:
        kinds = [Fault(kind) for kind in EXPECTED if kind != "ok"]
        shares = tuple(Share(kind, 100 * faults / len(kinds)) for kind in kinds if faults)
    else:
        percent = sum(share.percent for share in UPDATE_FAULTS)
        shares = tuple(Share(one.fault, one.percent / percent * 100 * faults) for one in UPDATE_FAULTS if faults)
    return FleetSettings(
        count=count,
        port=port,
        telemetry=False,
        faults=shares,
        updates=updates,
        seed=seed,
        log_path=log,
        connect_timeout_s=120,
        connect_parallel=_CONNECTING_MAX,
    )


def running(settings: FleetSettings) -> RunningFleet:
    # Brokers are killed during the test, and gmqtt would log a traceback for each lost connection.
    logging.getLogger("gmqtt").setLevel(logging.ERROR)
    return RunningFleet(settings, [{"value": 0}])


def kinds_of(settings: FleetSettings) -> dict[str, str]:
    """Device id → kind."""
    ids = device_ids(settings)
    found = assign(ids, settings.faults, seed=settings.seed)
    return {id_: str(found.get(id_, "ok")) for id_ in ids}


def begun(log: Path) -> Counter[tuple[str, str, int]]:
    """How often each (action, device, attempt) was executed, according to the fleet's own log."""
    lines = (line for line in read(log) if line["event"] == "begun")
    return Counter((line["action_id"], line["device_id"], line["attempt"]) for line in lines)


def differences(
    log: Path,
    action_id: str,
    devices: Mapping[str, str],
    states: Mapping[str, str],
    expected: Mapping[str, str] = EXPECTED,
) -> list[str]:
    """Differences between the tables and the expected states, or the last reports in the fleet's own log."""
    wrong = [
        f"{id_} ({kind}) is {states[id_]} and not {expected[kind]}"
        for id_, kind in devices.items()
        if states[id_] != expected[kind]
    ]
    return wrong + untrue(log, action_id, states)


def untrue(log: Path, action_id: str, states: Mapping[str, str]) -> list[str]:
    """Final states in the tables that the last reports in the fleet's own log contradict."""
    told = {id_: state for (id_, action, _), state in last_told(log).items() if action == action_id}
    wrong = []
    for id_, state in states.items():
        last = told.get(id_)
        # CANCELLED is the answer to the withdrawal of a command that timed out. A device that had nothing to stop,
        # because no command reached it, says nothing.
        unfinished = last in (None, "ACCEPTED", "IN_PROGRESS", "CANCELLED")
        is_so = state == last or (state == "TIMED_OUT" and unfinished) or (state == "CANCELLED" and last is None)
        if not is_so:
            wrong.append(f"{id_} is {state} and last reported {last}")
    return wrong


class StatusPump:
    """Copies statuses and receipts into the tables, as the status job does, on a thread. `restart` resumes after the
    rows of the table, as that job does with an empty checkpoint, and tells the brokers what it has finished."""

    def __init__(self, root: str, *servers: str, clock_us: Callable[[], int] = now_us) -> None:
        self._root, self._servers, self._clock_us = root, servers, clock_us
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def restart(self) -> None:
        self.stop()
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="pump", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        log, query_id, epoch = EventLog(self._root), uuid.uuid4().hex, time.time_ns() // 1_000
        finished: dict[str, dict[int, int]] = {}
        next_: dict[str, dict[int, int]] = {}
        for log_id, partitions in log.places().items():
            next_[log_id] = {int(number): place[0] for number, place in partitions.items()}
        batch_id = 0
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(Client(one, timeout_s=5, retries=0)) for one in self._servers]
            while not self._stop.wait(0.1):
                for client in clients:
                    with contextlib.suppress(HeadwaterError):  # The broker is down; its records are read later.
                        log_id = client.version().log_id
                        places = next_.setdefault(log_id, {})
                        batch_id += self._batch(client, log, places, query_id, batch_id)
                        if finished.get(log_id) != places:
                            ends = {number: Commit(place) for number, place in places.items()}
                            client.commit(STATUS_GROUP, reader_epoch=epoch, offsets=ends)
                            finished[log_id] = dict(places)

    def _batch(self, client: Client, log: EventLog, next_: dict[int, int], query_id: str, batch_id: int) -> int:
        filters = [STATUS_FILTER, RECEIPTS]
        records: list[dict[str, Any]] = []
        ends: dict[int, int] = {}
        for number, bounds in client.offsets(filters=filters).partitions.items():
            start, end = next_.setdefault(number, bounds.log_start), bounds.high_watermark
            if start < end:
                table = client.fetch(number, start, end, filters=filters).to_table()
                records += rows_of(table.select(list(_COLUMNS)))
                ends[number] = end
        if records:
            parsed = parse(records, tenant="default", recorded_us=self._clock_us())
            log.append(parsed.events, parsed.quarantine, query_id=query_id, batch_id=batch_id)
        next_.update(ends)
        return 1 if records else 0


@dataclass
class RolloutWorld:
    """Tables, broker, engine and pump, and a method that kills one of them. The seed decides when."""

    folder: Path
    broker: BrokerProcess
    devices: Mapping[str, str]
    seed: int
    tick_s: float = 0.5
    others: tuple[BrokerProcess, ...] = ()
    """Further brokers."""
    clock_us: Callable[[], int] = now_us
    engine: tuple[str, ...] = ("-m", "pipelines.actions")
    """How Python starts the engine."""
    labels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Label → device id → value, besides the label `kind`."""
    kills: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.root = str(self.folder / "tables")
        self.desk = FleetDesk(self.root, by="ann", create=True)
        labels = {id_: {name: of[id_] for name, of in self.labels.items()} for id_ in self.devices}
        self.desk.describe_devices({id_: {"kind": kind, **labels[id_]} for id_, kind in self.devices.items()})
        self.brokers = (self.broker, *self.others)
        self.servers = ["grpc://{}:{}".format(*broker.flight) for broker in self.brokers]
        self.server = self.servers[0]
        self.pump = StatusPump(self.root, *self.servers, clock_us=self.clock_us)
        self._random = random.Random(self.seed)
        self._engine: subprocess.Popen[bytes] | None = None
        self._config = self.folder / "pipelines.yaml"
        self._config.write_text(json.dumps({"actions": {"tick_s": self.tick_s, "poll_s": 0.1}}))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        self.pump.restart()
        self._start_engine()
        try:
            yield
        finally:
            self.pump.stop()
            self._kill_engine()

    def _start_engine(self) -> None:
        command = [sys.executable, *self.engine, "--config", str(self._config), "--root", self.root]
        command += [word for server in self.servers for word in ("--server", server)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with (self.folder / "engine.stderr.txt").open("ab") as errors:
            self._engine = subprocess.Popen(command, stderr=errors, env=environment)

    def _kill_engine(self) -> None:
        if self._engine is not None:
            self._engine.kill()
            self._engine.wait()

    def start_another_engine(self) -> None:
        """Starts a second engine beside the first, which must give way by itself."""
        first = self._engine
        assert first is not None
        self._start_engine()
        first.wait(60)

    def kill_something(self) -> None:
        what = self._random.choice(("engine", "engine", "pump", "broker"))
        self.kills[what] += 1
        if what == "engine":
            self._kill_engine()
            self._start_engine()
        elif what == "pump":
            self.pump.restart()
        else:
            broker = self._random.choice(self.brokers)
            broker.kill()
            broker.start()

    def until_over(
        self,
        action_id: str,
        *,
        seconds: float,
        kills: int = 0,
        pause_s: float = 3.0,
        each: Callable[[dict[str, Any] | None], None] = lambda row: None,
    ) -> dict[str, Any]:
        """Returns the row of the action once it is over. Until then, kills processes, approves as bob, and calls `each`
        with the row."""
        approver = FleetDesk(self.root, by="bob")
        approved: set[int] = set()
        deadline = time.monotonic() + seconds
        # The first as soon as the engine has the action: a short one may end within the pause.
        next_kill = time.monotonic()
        while True:
            row = self.desk.action(action_id)
            if row is not None and row["phase"] in ("ENDED", "REFUSED"):
                return row
            if row is not None and row["phase"] == "WAITING_APPROVAL" and row["wave"] not in approved:
                approver.ask("approve", action_id)
                approved.add(row["wave"])
            each(row)
            if kills and row is not None and time.monotonic() >= next_kill:
                self.kill_something()
                kills -= 1
                next_kill = time.monotonic() + self._random.uniform(0.5, 1.5) * pause_s
            assert self._engine is not None
            assert self._engine.poll() is None, "the engine ended by itself"
            assert time.monotonic() < deadline, f"seed {self.seed}: {action_id} has not ended: {row}"
            time.sleep(0.2)

    def commands(self) -> Counter[tuple[str, str, int]]:
        """How often the log has the command of each (action, device, attempt)."""
        found: Counter[tuple[str, str, int]] = Counter()
        for server in self.servers:
            with Client(server) as client:
                for number, bounds in client.offsets(filters="devices/+/actions").partitions.items():
                    stream = client.fetch(number, bounds.log_start, bounds.high_watermark, filters="devices/+/actions")
                    for value in stream.to_table().column("value").to_pylist():
                        body = json.loads(value)
                        if body["type"] in ("command", "ota"):
                            found[(body["action_id"], body["device_id"], body["attempt"])] += 1
        return found
