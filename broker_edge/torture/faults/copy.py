"""A data folder that is copied while the broker runs, as people do: the copy must open and serve a valid prefix."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil

from broker_edge.torture.life import Bench, Life
from broker_edge.torture.load import MqttLoad
from broker_edge.torture.process import BrokerError, BrokerProcess
from broker_edge.torture.reader import Bounds, LogReader, LostOffsetsError, Row
from broker_edge.torture.report import Finding


class Copy(Life):
    """Each cycle copies the folder under load and starts a broker on the copy.

    Every record that was readable before the copy began is there with its bytes, and later records equal those that the
    original got at their offsets. Parts of the copy are from different times, so it is not a backup; use `headwater log
    backup`.
    """

    name = "copy"
    about = "the data folder is copied while the broker runs, and the copy is opened"
    killed_first = 0.0
    pause_s = 0.05
    windows = (1, 4, 16)
    starts_interrupted = 0.0

    def __init__(self, bench: Bench) -> None:
        super().__init__(dataclasses.replace(bench, has_retention=False))
        self._copied: list[tuple[Bounds, list[Row]]] = []

    def publish(self, load: MqttLoad) -> None:
        self.wait_acked(load, self.moments.randint(1, self.bench.records_max // 2))
        with LogReader(self.broker.flight) as reader:
            before = reader.bounds()
        target = self.bench.folder / "copy"
        shutil.rmtree(target, ignore_errors=True)
        # Temporary files may disappear during the copy.
        with contextlib.suppress(shutil.Error):
            shutil.copytree(self.data_dir, target)
        copy = BrokerProcess(data_dir=target, log_file=self.bench.folder / "copy.log", program=self.bench.program)
        with copy:
            try:
                copy.start()
            except BrokerError as refusal:
                self.report.add(Finding.STUCK, f"the copy does not open: {refusal}")
                return
            self._copied = self._read(copy, before)
        super().publish(load)
        self.observe()
        for bounds, rows in self._copied:
            self._compare(bounds, rows)
        shutil.rmtree(target, ignore_errors=True)

    def _read(self, copy: BrokerProcess, before: dict[str, Bounds]) -> list[tuple[Bounds, list[Row]]]:
        copied = []
        with LogReader(copy.flight) as reader:
            for bounds in reader.bounds().values():
                readable = before[bounds.name].high_watermark
                if bounds.high_watermark < readable:
                    missing = readable - bounds.high_watermark
                    self.report.add(
                        Finding.LOST, f"the copy of {bounds.name} ends {missing} records early", count=missing
                    )
                try:
                    copied.append((bounds, list(reader.rows(bounds, bounds.log_start, bounds.high_watermark))))
                except LostOffsetsError as lost:
                    self.report.add(Finding.HOLE, f"the copy of {bounds.name}: {lost}", count=lost.end - lost.start)
        return copied

    def _compare(self, bounds: Bounds, rows: list[Row]) -> None:
        """Compares rows, after the original has been read beyond the end of the copy."""
        with LogReader(self.broker.flight) as reader:
            there = {row.offset: row for row in reader.rows(bounds, bounds.log_start, bounds.high_watermark)}
        for row in rows:
            if there.get(row.offset) != row:
                self.report.add(Finding.CHANGED, f"the copy of {bounds.name} has another record at {row.offset}")
