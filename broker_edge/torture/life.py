"""One log through many crashes: load, fault, restart, check, repeatedly on one data folder.

Subclasses define the crash. Some starts crash before the broker serves. Some crashes are double: a kill -9, a start
that serves what the page cache still holds, and only then the actual crash, because a record that was served once must
be on the disk. Some follow a clean stop, whose mark later starts trust.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar

import pyarrow as pa
import pyarrow.flight as flight

from broker_edge.torture.check import LogCheck
from broker_edge.torture.load import MqttLoad
from broker_edge.torture.outbox import Outbox
from broker_edge.torture.process import BrokerError, BrokerProcess
from broker_edge.torture.producer import PRODUCER, Producer
from broker_edge.torture.reader import LogReader
from broker_edge.torture.records import Publisher, Recipe, publishers, resending_publishers
from broker_edge.torture.report import Finding, Report
from broker_edge.torture.wire import maximum_qos
from broker_edge.torture.witness import witnesses

QUIET_S = 15.0  # Time without any delivery after which missing records count as skipped.
ACKED_S = 60.0  # Limit for the acknowledgements of a cycle; a slower broker counts as hanging, even on a busy machine.
RECYCLED_S = 30.0  # Limit for the first segment that is made from a removed one.


@dataclass(frozen=True, slots=True)
class Bench:
    """The environment of a life, and what it may use."""

    folder: Path
    program: Path
    faults_program: Path | None
    seed: int
    life: int
    has_retention: bool = False
    sabotage: str | None = None
    records_max: int = 3_000  # Maximum number of acknowledgements that one cycle waits for.

    @property
    def moments(self) -> random.Random:
        """The random choices of this life; the same seed and life give the same choices."""
        return random.Random(f"{self.seed}/{self.life}")


class Life:
    """A data folder, a broker on it, and everything that was acknowledged or reported about it."""

    name: ClassVar[str]
    about: ClassVar[str]
    cycles: ClassVar[int] = 25
    # Settings of the load. A fault that waits for other events slows it down with smaller windows and a pause.
    windows: ClassVar[tuple[int, ...]] = (1, 8, 32, 128)
    pause_s: ClassVar[float] = 0.0
    needs_fault_build: ClassVar[bool] = False
    uses_root: ClassVar[bool] = False
    starts_interrupted: ClassVar[float] = 0.25  # The share of starts that crash before the broker serves.
    killed_first: ClassVar[float] = 0.25  # The share of double crashes.
    stopped_first: ClassVar[float] = 0.15  # The share of crashes that follow a clean stop.

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.moments = bench.moments
        self.recipe = Recipe(bench.seed)
        self.has_retention = bench.has_retention
        with_faults = self.needs_fault_build or bench.sabotage is not None
        self.broker = BrokerProcess(
            data_dir=self.data_dir,
            settings=self.settings(),
            log_file=bench.folder / "headwaterd.log",
            program=bench.faults_program if with_faults else bench.program,
            files_max=self.files_max,
        )
        self.outboxes: dict[int, Outbox] = {}
        self.sources: tuple[Publisher, ...] = ()
        self.check = LogCheck(self.recipe, ())
        self.witnesses = () if self.has_retention else witnesses()
        self.producer = Producer(recipe=self.recipe, moments=random.Random(bench.seed))

    @staticmethod
    def lacks() -> list[str]:
        """What this machine lacks for the fault, one sentence each; empty if nothing."""
        return []

    # A fault may override these.

    @property
    def data_dir(self) -> Path:
        return self.bench.folder / "data"

    files_max: int | None = None

    def settings(self) -> Mapping[str, str]:
        """Small segments, so that roll, recycling and retention happen in every life."""
        if not self.has_retention:
            return {"log.segment_bytes": self.moments.choice(("128KiB", "256KiB", "2MiB"))}
        retention = {f"log.classes.{name}.retention.bytes": "256KiB" for name in ("telemetry", "control")}
        return {"log.segment_bytes": "64KiB", **retention}

    def arm(self) -> str:
        """The fault inside the broker for the next start, in the notation of HEADWATER_FAULTS."""
        return ""

    def crash(self, *, under_load: bool) -> None:
        """Ends the broker; it must not be running afterwards."""
        self.broker.kill()

    def restore(self) -> None:
        """Called between the end of a broker and the next start."""

    # One cycle.

    def __enter__(self) -> Life:
        self._start(first=True)
        offers_qos2 = maximum_qos(self.broker.mqtt) == 2
        self.sources = publishers(8, protocols=(5,) if self.has_retention else (5, 4))
        if not self.has_retention:
            self.sources += resending_publishers(qos2=offers_qos2)
        self.outboxes = {one.connection: Outbox() for one in self.sources if one.resends}
        self.check = LogCheck(self.recipe, (*self.sources, PRODUCER), has_retention=self.has_retention)
        for witness in self.witnesses:
            witness.expect_repeats(one.connection for one in self.sources if one.resends and one.qos == 1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.broker.kill()

    @property
    def report(self) -> Report:
        return self.check.report

    def last_words(self) -> str:
        return self.broker.last_words()

    def cycle(self, number: int) -> None:
        """Runs one cycle. Expects a serving broker, and leaves one after a crash."""
        try:
            self._cycle(number)
        except (BrokerError, TimeoutError) as error:
            self.report.add(Finding.STUCK, f"cycle {number}: {error}")
            raise

    def _cycle(self, number: int) -> None:
        with contextlib.suppress(*([OSError] if self.broker.faults else [])):
            for witness in self.witnesses:
                witness.connect(self.broker.mqtt, may_be_refused=bool(self.broker.faults))
        if not self.has_retention:
            self.producer.start(self.broker.flight, run=number)
        with self.load(number) as load:
            self.publish(load)
            self.report.recycled += self._count_recycled()
            killed = self._end()
            # The last answers of the broker before it died are still in the sockets.
            load.wait(lambda one: one.over, seconds=ACKED_S, what="the connections to end with the broker")
        self.check.add(load.stop())
        if not self.has_retention:
            self.check.add(self.producer.finish())
        self.report.resent = sum(one.resent.total() for one in self.outboxes.values())
        for witness in self.witnesses:
            witness.join()
        self.restore()
        if killed:
            self._start()
            self.crash(under_load=False)
            self.restore()
        while self.moments.random() < self.starts_interrupted:
            self.broker.spawn()
            time.sleep(self.moments.uniform(0.0, 0.05))  # A random time of the crash.
            self.crash(under_load=False)
            self.restore()
        self._start()

    def load(self, number: int) -> MqttLoad:
        return MqttLoad(
            address=self.broker.mqtt,
            run=number,
            recipe=self.recipe,
            publishers=self.sources,
            window=self.moments.choice(self.windows),
            pause_s=self.pause_s,
            outboxes=self.outboxes,
        )

    def _end(self) -> bool:
        """Ends the broker; returns whether another crash follows the next start."""
        draw = self.moments.random()
        killed, stopped = draw < self.killed_first, draw > 1 - self.stopped_first
        if stopped and self.broker.is_running and (code := self.broker.stop()) != 0 and not self.broker.faults:
            self.report.add(Finding.STUCK, f"a clean stop ended with exit code {code}: {self.broker.last_words()}")
        if killed:
            self.broker.kill()
        else:
            self.crash(under_load=not stopped)
        return killed

    def publish(self, load: MqttLoad) -> None:
        """Waits for some acknowledgements; half of the time the log is read at the same time."""
        # With retention wait for more, so that segments are removed and recycled while one process runs.
        wanted = self.moments.randint(1, self.bench.records_max) * (3 if self.has_retention else 1)
        if self.moments.random() < 0.5:
            self.wait_acked(load, wanted // 2)
            self.observe()
        self.wait_acked(load, wanted)
        if self.has_retention and self.report.recycled == 0:
            # Retention runs once per second, and a load may be shorter.
            deadline = time.monotonic() + RECYCLED_S
            while self._count_recycled() == 0 and not load.over and time.monotonic() < deadline:
                wanted += self.bench.records_max
                self.wait_acked(load, wanted)

    def wait_acked(self, load: MqttLoad, count: int) -> None:
        """Waits for acknowledgements; also returns when a broker with an armed fault has ended by itself."""
        may_end = bool(self.broker.faults)
        load.wait(
            lambda one: one.acked >= count or (may_end and one.over),
            seconds=ACKED_S,
            what=f"{count} acknowledgements",
        )

    def observe(self) -> None:
        """Checks that what was readable once stays readable."""
        try:
            with LogReader(self.broker.flight) as reader:
                self.check.observe(reader)
        except (pa.ArrowException, flight.FlightError):
            if not self.broker.faults:
                raise

    def _count_recycled(self) -> int:
        """Counts segments whose header says that they are recycled (docs/format.md, section 3)."""
        count = 0
        for segment in self.data_dir.glob("*/*.seg"):
            with contextlib.suppress(FileNotFoundError), segment.open("rb") as file:
                count += file.read(38)[37:] == b"\x01"
        return count

    def finish(self) -> None:
        """Reads the whole log once more, and lets the witnesses catch up: their sessions may repeat records, never skip
        them."""
        if self.broker.faults != self.words(""):
            self._restart_sound()
        with LogReader(self.broker.flight) as reader:
            self.check.everything(reader)
        for witness in self.witnesses:
            witness.connect(self.broker.mqtt)
            missing = witness.wait(self.check.acked, seconds=QUIET_S)
            witness.close()
            self.report.violations += witness.violations
            if missing:
                text = f"{len(missing)} acknowledged records were never delivered, the first is {min(missing)}"
                self.report.violations.append(f"{witness.client_id}: {text}")

    def _start(self, *, first: bool = False) -> None:
        """Starts the broker. A start with an armed fault may end by itself; the next start has none."""
        armed = "" if first else self.arm()
        self.broker.faults = self.words(armed)
        try:
            self.broker.start()
            if not first:
                self.after_start()
        except (BrokerError, pa.ArrowException, flight.FlightError):
            if not armed:
                raise
            self._restart_sound()
            self.after_start()

    def _restart_sound(self) -> None:
        """Restarts without a fault after a start that had one."""
        self.crash(under_load=False)
        self.restore()
        self.broker.faults = self.words("")
        self.broker.start()

    def words(self, armed: str) -> str:
        sabotage = f"sabotage:{self.bench.sabotage}" if self.bench.sabotage else ""
        return ",".join(word for word in (armed, sabotage) if word)

    def after_start(self) -> None:
        with LogReader(self.broker.flight) as reader:
            self.check.after_restart(reader)
        for witness in self.witnesses:
            self.check.delivered(witness.seen, witness.places, witness.client_id)
