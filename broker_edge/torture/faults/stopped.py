"""A log that is damaged on disk after a clean stop: compares every original record with what is served."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_edge.client import Client
from broker_edge.torture.life import Bench, Life
from broker_edge.torture.load import MqttLoad
from broker_edge.torture.process import BrokerError
from broker_edge.torture.reader import LogReader, LostOffsetsError, Row
from broker_edge.torture.records import publishers
from broker_edge.torture.report import Finding
from broker_edge.torture.waiting import wait_until
from broker_edge.values import Row as ProducedRow

RECORDS_EACH = 250
KEYED = 60
INDEXES_S = 60.0

Held = dict[str, dict[int, Row]]  # by partition name and offset


@dataclass(slots=True)
class Served:
    """What a broker serves of its log, and what it reports as lost."""

    rows: Held = field(default_factory=dict)
    lost: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def is_lost(self, partition: str, offset: int) -> bool:
        return any(start <= offset < end for start, end in self.lost.get(partition, ()))


class StoppedNode(Life, ABC):
    """Creates one log, and gives each cycle a fresh copy of it to damage while the broker is down."""

    name = ""
    has_indexes = True

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.pristine = bench.folder / "pristine"
        self.truth: Held = {}

    def settings(self) -> Mapping[str, str]:
        return {"log.segment_bytes": "128KiB", "log.classes.telemetry.partitions": "1"}

    def __enter__(self) -> Life:
        self.broker.faults = self.words("")
        self.broker.start()
        self._write()
        self.truth = self.read().rows
        wait_until(self._is_indexed, seconds=INDEXES_S, what="the indexes of sealed segments")
        code = self.broker.stop()
        if code != 0:
            raise BrokerError(f"a clean stop ended with exit code {code}")
        # A rename is cheaper than a second copy; the first cycle creates the folder again.
        self.data_dir.rename(self.pristine)
        return self

    def cycle(self, number: int) -> None:
        self.broker.kill()
        shutil.rmtree(self.data_dir, ignore_errors=True)
        shutil.copytree(self.pristine, self.data_dir)
        self.damage_and_check(number)
        self.broker.kill()
        self.report.restarts += 1

    def finish(self) -> None:
        return

    @abstractmethod
    def damage_and_check(self, number: int) -> None:
        """Damages the fresh copy, starts the broker on it, and reports anything that it should not serve."""

    def read(self) -> Served:
        """Everything that the running broker serves."""
        served = Served()
        with LogReader(self.broker.flight) as reader:
            for bounds in [*reader.bounds().values(), *reader.bounds(partitions=[0]).values()]:
                rows = served.rows.setdefault(bounds.name, {})
                start = bounds.log_start
                while start < bounds.high_watermark:
                    try:
                        for row in reader.rows(bounds, start, bounds.high_watermark):
                            rows[row.offset] = row
                        break
                    except LostOffsetsError as lost:
                        served.lost.setdefault(bounds.name, []).append((lost.start, lost.end))
                        start = max(lost.end, start + 1)
        return served

    def compare(self, served: Served, what: str) -> int:
        """Reports changed rows, and rows that are missing without a report; returns how many are reported as lost."""
        reported = 0
        for partition, rows in self.truth.items():
            now = served.rows.get(partition, {})
            for offset, row in rows.items():
                if offset in now:
                    if now[offset] != row:
                        self.report.add(Finding.CHANGED, f"{what}: {partition}:{offset} is served with other bytes")
                elif served.is_lost(partition, offset):
                    reported += 1
                else:
                    self.report.add(Finding.LOST, f"{what}: {partition}:{offset} is missing without a report")
            if partition != "internal-0":
                for offset in now.keys() - rows.keys():
                    self.report.add(Finding.UNEXPECTED, f"{what}: {partition}:{offset} never existed")
        return reported

    def _write(self) -> None:
        sources = publishers(6, protocols=(5,))
        with MqttLoad(
            address=self.broker.mqtt, run=0, recipe=self.recipe, publishers=sources, records_each=RECORDS_EACH
        ) as load:
            wanted = RECORDS_EACH * len(sources)
            load.wait(lambda one: one.acked == wanted, seconds=120, what=f"{wanted} acknowledgements")
        result = load.stop()
        self.report.sent += result.sent
        self.report.acked += result.acked
        with Client("grpc://{}:{}".format(*self.broker.flight)) as client:
            keyed = [
                ProducedRow(topic="devices/put/telemetry", value=os.urandom(64), idempotency_key=f"key-{n}")
                for n in range(KEYED)
            ]
            self.report.acked += len(client.produce(keyed))

    def _is_indexed(self) -> bool:
        for folder in self.data_dir.glob("*-*"):
            sealed = sorted(folder.glob("*.seg"))[:-1]
            if any(not path.with_suffix(".idx").exists() for path in sealed):
                return False
        return True
