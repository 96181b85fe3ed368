"""Compares the acknowledgements of publishers with the contents of the log, across crashes.

The checker remembers every record it has ever read, so that it detects an offset that later has other bytes. The load
tells it what was sent and acknowledged. The findings are
  lost        acknowledged or read before, and no longer readable
  duplicated  one publish readable at two offsets
  reordered   at another offset than the acknowledged one, or after a later record of its connection
  unexpected  readable, but never sent
  changed     other bytes than were sent, or than were read at that offset before
  hole        an offset below the high watermark without a record
  epoch       an epoch that decreased, or did not grow with a restart
  early       delivered to a subscriber, but not in the log, or not at the offset named in the delivery
It starts and stops no processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from broker_edge.torture.load import LoadResult, Place
from broker_edge.torture.reader import Bounds, LogReader, LostOffsetsError, OutOfRangeError, Row
from broker_edge.torture.records import Publisher, Recipe, RecordName, name_of
from broker_edge.torture.report import Finding, Report

INTERNAL_PARTITION = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """A record as it was read."""

    fingerprint: bytes
    name: RecordName | None
    epoch: int


@dataclass(slots=True)
class _Memory:
    """What was read of one partition. `next` is where reading continues."""

    next: int = 0
    log_start: int = 0
    epoch: int = 0  # The epoch of the last record read.
    term: int = 0  # The epoch that the broker reported.
    rows: dict[int, _Known] = field(default_factory=dict)


class LogCheck:
    """One log, checked repeatedly. `report` collects its faults."""

    def __init__(self, recipe: Recipe, publishers: tuple[Publisher, ...], *, has_retention: bool = False) -> None:
        """With retention, records below the log start may be gone. The publishers must then use MQTT 5, because only
        the acknowledged offset distinguishes them from lost records."""
        self._has_retention = has_retention
        self.report = Report(recipe.seed)
        self._recipe = recipe
        self._publishers = {one.connection: one for one in publishers}
        self._memories: dict[str, _Memory] = {}
        self._places: dict[RecordName, Place] = {}
        self._copies: dict[RecordName, list[Place]] = {}  # Further copies of records that were sent again at QoS 1.
        self._last: dict[tuple[int, int], int] = {}  # (run, connection) -> highest sequence read
        self._sent: dict[tuple[int, int], int] = {}  # Counts of the runs that have ended.
        self._acked: dict[RecordName, Place | None] = {}
        self._unchecked: list[RecordName] = []
        self._lost: set[RecordName] = set()
        self._early: set[RecordName] = set()
        self._log_id: str | None = None

    def add(self, result: LoadResult) -> None:
        """Adds the results of a finished run of the load."""
        for one in result.connections:
            self.report.violations += [f"{one.publisher.client_id}: {text}" for text in one.violations]
            for sequence, place in one.acked.items():
                self._acked[result.name(one, sequence)] = place
                self._unchecked.append(result.name(one, sequence))
            self._acked |= one.late
            self._unchecked += one.late
            if one.publisher.qos == 2:
                self.report.qos2_acked += len(one.acked) + len(one.late)
                self.report.qos2_completed += one.completed
            publisher = (result.run, one.publisher.connection)
            self._sent[publisher] = one.sent
            last = self._last.get(publisher, -1)
            if last >= one.sent:
                self.report.add(Finding.UNEXPECTED, f"{result.name(one, last)} was read, {one.sent} were sent")
        self.report.sent += result.sent
        self.report.acked += result.acked

    def observe(self, reader: LogReader) -> None:
        """Reads new records. Also called while the load runs: what was readable once must stay readable."""
        for bounds in self._bounds(reader):
            memory = self._memory(bounds)
            memory.term = max(memory.term, bounds.epoch)
            self._read(reader, bounds, memory.next)

    def after_restart(self, reader: LogReader, *, reread: int = 4096) -> None:
        """Checks what a restart must not change, reads new records and the last `reread` offsets again, then checks the
        acknowledgements added since the last check."""
        self.report.restarts += 1
        self._check_again(reader, reread=reread, growth=1)

    def after_failover(self, reader: LogReader, *, reread: int = 4096) -> None:
        """The same after something happened to a cluster, whose leader may go on in its epoch."""
        self._check_again(reader, reread=reread, growth=0)

    def _check_again(self, reader: LogReader, *, reread: int, growth: int) -> None:
        """`growth` is how much higher the epoch must be than before."""
        for bounds in self._bounds(reader):
            memory = self._memory(bounds)
            if bounds.epoch < memory.term + growth:
                what = "a restart" if growth else "a failover"
                self.report.add(
                    Finding.EPOCH, f"{bounds.name}: epoch {bounds.epoch} after {what}, {memory.term} before"
                )
            memory.term = bounds.epoch
            self._shrunk(bounds, memory)
            self._read(reader, bounds, max(bounds.log_start, memory.next - reread))
        self._check_acks(self._unchecked)
        self._unchecked = []

    def epoch_at(self, place: Place) -> int | None:
        """The epoch of the record that was read there; None if none was."""
        memory = self._memories.get(place.partition)
        known = None if memory is None else memory.rows.get(place.offset)
        return None if known is None else known.epoch

    def delivered(self, names: set[RecordName], places: Mapping[Place, RecordName], to: str) -> None:
        """Checks after a restart that no record was delivered to a subscriber without being in the log."""
        for name in names - self._places.keys() - self._early:
            self._early.add(name)
            self.report.add(Finding.EARLY, f"{name} was delivered to {to} and is not in the log")
        for place, name in places.items():
            if name not in self._early and place not in (self._places.get(name), *self._copies.get(name, ())):
                self._early.add(name)
                self.report.add(Finding.EARLY, f"{name} was delivered to {to} at {place}, and is not there")

    @property
    def acked(self) -> set[RecordName]:
        return set(self._acked)

    def everything(self, reader: LogReader) -> None:
        """Reads the whole log again and checks all acknowledgements."""
        for bounds in self._bounds(reader):
            self._shrunk(bounds, self._memory(bounds))
            self._read(reader, bounds, bounds.log_start)
        for run, connection in self._last.keys() - self._sent.keys():
            self.report.add(Finding.UNEXPECTED, f"records of connection {connection} in run {run}, which did not exist")
        self._check_acks(list(self._acked))
        self._unchecked = []

    def _bounds(self, reader: LogReader) -> list[Bounds]:
        return [*reader.bounds().values(), *reader.bounds(partitions=[INTERNAL_PARTITION]).values()]

    def _memory(self, bounds: Bounds) -> _Memory:
        return self._memories.setdefault(bounds.name, _Memory())

    def _shrunk(self, bounds: Bounds, memory: _Memory) -> None:
        """Checks records outside the bounds that were readable before."""
        for offset in range(bounds.high_watermark, memory.next):
            self._forget(bounds.name, memory.rows.pop(offset, None), offset)
        memory.next = min(memory.next, bounds.high_watermark)
        # The broker truncates its own partition below a snapshot; records of clients stay, unless retention removes
        # them.
        gone = bounds.log_start - memory.log_start
        if gone > 0 and bounds.number != INTERNAL_PARTITION and not self._has_retention:
            self.report.add(Finding.HOLE, f"{bounds.name}: log start moved to {bounds.log_start}", count=gone)
        for offset in range(memory.log_start, bounds.log_start):
            known = memory.rows.pop(offset, None)
            if self._has_retention and known is not None and known.name is not None:
                self._places.pop(known.name, None)
        memory.log_start = max(memory.log_start, bounds.log_start)
        memory.next = max(memory.next, memory.log_start)

    def _forget(self, partition: str, known: _Known | None, offset: int) -> None:
        name = known.name if known else None
        if name is None:
            self.report.add(Finding.LOST, f"{partition}:{offset} was readable before")
            return
        if self._places.get(name) == Place(partition, offset):
            del self._places[name]
        self._lose(name, f"{name} was readable at {partition}:{offset}")

    def _lose(self, name: RecordName, text: str) -> None:
        if name not in self._lost:
            self._lost.add(name)
            self.report.add(Finding.LOST, text)

    def _read(self, reader: LogReader, bounds: Bounds, start: int) -> None:
        """Reads [start, high watermark); starts again at the new log start if retention moves it during the read."""
        while True:
            try:
                self._read_once(reader, bounds, start)
                return
            except LostOffsetsError as lost:
                # This disk was not damaged, so the broker must not report damage.
                text = f"{bounds.name}: the broker reports {lost.start} to {lost.end} as lost"
                self.report.add(Finding.HOLE, text, count=lost.end - lost.start)
                start = lost.end
                continue
            except OutOfRangeError:
                if not self._has_retention:
                    raise
            bounds = next(one for one in self._bounds(reader) if one.name == bounds.name)
            self._shrunk(bounds, self._memory(bounds))
            start = max(start, bounds.log_start)

    def _read_once(self, reader: LogReader, bounds: Bounds, start: int) -> None:
        memory = self._memory(bounds)
        expected = start
        for row in reader.rows(bounds, start, bounds.high_watermark):
            if row.offset != expected:
                text = f"{bounds.name}: read {row.offset} instead of {expected}"
                self.report.add(Finding.HOLE, text, count=max(1, row.offset - expected))
            expected = row.offset + 1
            known = memory.rows.get(row.offset)
            fresh = _Known(_fingerprint(row), name_of(row.value), row.epoch)
            if known is None:
                self._judge(bounds.name, memory, row, fresh)
                memory.rows[row.offset] = fresh
            elif known.fingerprint != fresh.fingerprint:
                self._replaced(Place(bounds.name, row.offset), row, known, fresh)
                memory.rows[row.offset] = fresh
        if expected < bounds.high_watermark:
            text = f"{bounds.name}: nothing from {expected} to the high watermark {bounds.high_watermark}"
            self.report.add(Finding.HOLE, text, count=bounds.high_watermark - expected)
        memory.next = max(memory.next, bounds.high_watermark)
        self.report.readable = len(self._places)

    def _judge(self, partition: str, memory: _Memory, row: Row, known: _Known) -> None:
        """Checks a record that is read for the first time."""
        place = Place(partition, row.offset)
        if self._has_retention and row.offset < memory.log_start:
            # A node that begins to lead may still have what the leader before it has removed. Its content counts, but
            # the order was judged without it.
            if known.name is not None:
                self._judge_content(place, row, known.name)
            return
        if row.epoch < memory.epoch:
            self.report.add(Finding.EPOCH, f"{partition}:{row.offset} has epoch {row.epoch} after {memory.epoch}")
        memory.epoch = max(memory.epoch, row.epoch)
        self._log_id = self._log_id or row.log_id
        if row.log_id != self._log_id:
            self.report.add(Finding.CHANGED, f"{partition}:{row.offset} is of log {row.log_id}, not {self._log_id}")
        name = known.name
        if name is None:
            if not row.topic.startswith("$"):
                self.report.add(Finding.UNEXPECTED, f"{partition}:{row.offset} on {row.topic}: {row.value[:32]!r}")
            return
        publisher_of = self._publishers.get(name.connection)
        if name in self._places:
            if publisher_of is not None and publisher_of.resends and publisher_of.qos == 1:
                self._copies.setdefault(name, []).append(place)
                self._judge_content(place, row, name)
                return
            self.report.add(Finding.DUPLICATED, f"{name} at {self._places[name]} and {place}")
            return
        self._places[name] = place
        self._judge_content(place, row, name)
        publisher = (name.run, name.connection)
        if name.sequence >= self._sent.get(publisher, name.sequence + 1):
            self.report.add(Finding.UNEXPECTED, f"{name} at {place}: {self._sent[publisher]} were sent")
        if name.sequence < self._last.get(publisher, -1):
            self.report.add(Finding.REORDERED, f"{name} at {place} is after {self._last[publisher]}")
        self._last[publisher] = max(name.sequence, self._last.get(publisher, -1))

    def _replaced(self, place: Place, row: Row, known: _Known, fresh: _Known) -> None:
        """The offset has another record than before. `_check_acks` finds where the acknowledged one is now, if
        anywhere."""
        was, now = known.name or "a record of the broker", fresh.name or f"a record on {row.topic}"
        self.report.add(Finding.CHANGED, f"{place} was {was}, is {now}{' with other bytes' if was == now else ''}")
        if known.name is not None and self._places.get(known.name) == place:
            del self._places[known.name]
        if fresh.name is not None:
            self._places[fresh.name] = place
            self._judge_content(place, row, fresh.name)

    def _judge_content(self, place: Place, row: Row, name: RecordName) -> None:
        publisher = self._publishers.get(name.connection)
        if publisher is None:
            self.report.add(Finding.UNEXPECTED, f"{name} at {place}: no such connection")
            return
        retain = self._recipe.retain(publisher, name.sequence)
        wanted = (publisher.topic, publisher.client_id, publisher.qos, retain)
        if (row.topic, row.client_id, row.qos, row.retain) != wanted:
            got = (row.topic, row.client_id, row.qos, row.retain)
            self.report.add(Finding.CHANGED, f"{name} at {place} was sent as {wanted}, is {got}")
        if row.value != self._recipe.payload(name):
            self.report.add(Finding.CHANGED, f"{name} at {place}: other bytes than were sent")

    def _check_acks(self, names: list[RecordName]) -> None:
        for name in names:
            told, found = self._acked[name], self._places.get(name)
            if found is None and told is not None and self._is_expired(told):
                continue
            if found is None:
                self._lose(name, f"{name} was acknowledged{f' at {told}' if told else ''} and is not in the log")
            elif told is not None and told != found and told not in self._copies.get(name, ()):
                self.report.add(Finding.REORDERED, f"{name} was acknowledged at {told} and is at {found}")

    def _is_expired(self, place: Place) -> bool:
        return self._has_retention and place.offset < self._memories[place.partition].log_start


def _fingerprint(row: Row) -> bytes:
    """Everything in the row that must never change at its offset."""
    named = repr((row.epoch, row.timestamp_us, row.topic, row.key, row.client_id, row.qos, row.retain, row.log_id))
    return hashlib.blake2b(named.encode() + row.value, digest_size=16).digest()
