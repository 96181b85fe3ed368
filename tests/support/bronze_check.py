"""Compares a bronze table with the log that it was read from, and with the acknowledgements of the publishers.

The table is read without Spark, so that the check shares no code with the code under test. It counts these faults:
  missing     acknowledged, but not in the table at the acknowledged offset
  unread      in the log, but not in the table
  doubled     an offset that the table has more than once
  unexpected  in the table, but not in the log
  epoch       another epoch than in the log
  changed     other bytes or another topic than in the log, or than were sent
It checks neither the log nor the publishers; `broker_edge.torture.check` does.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from broker_edge.torture.load import LoadResult
from broker_edge.torture.reader import LogReader

_COLUMNS = ("log_id", "partition", "offset", "epoch", "topic", "value")


class Fault(enum.StrEnum):
    MISSING = "missing"
    UNREAD = "unread"
    DOUBLED = "doubled"
    UNEXPECTED = "unexpected"
    EPOCH = "epoch"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, order=True)
class BronzePlace:
    """Identifies a row; unique in bronze."""

    log_id: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Content:
    epoch: int
    topic: str
    value: bytes


Record = tuple[BronzePlace, Content]


@dataclass(frozen=True, slots=True)
class LoggedRecords:
    """All records of one class in a log, and the numbers of its partitions by name."""

    log_id: str
    partitions: Mapping[str, int]
    records: Mapping[BronzePlace, Content]


def read_bronze(table: Path) -> Iterator[Record]:
    """Every row of the table, including duplicates."""
    found = DeltaTable(str(table)).to_pyarrow_table(columns=list(_COLUMNS))
    columns = (found.column(name).to_pylist() for name in _COLUMNS)
    for log_id, partition, offset, epoch, topic, value in zip(*columns, strict=True):
        yield BronzePlace(log_id, partition, offset), Content(epoch, topic, value)


def read_log(address: tuple[str, int], *, class_name: str) -> LoggedRecords:
    """The records of one class that a broker serves."""
    records: dict[BronzePlace, Content] = {}
    partitions: dict[str, int] = {}
    with LogReader(address) as reader:
        for bounds in reader.bounds().values():
            if not bounds.name.startswith(f"{class_name}-"):
                continue
            partitions[bounds.name] = bounds.number
            for row in reader.rows(bounds, bounds.log_start, bounds.high_watermark):
                place = BronzePlace(row.log_id, bounds.number, row.offset)
                records[place] = Content(row.epoch, row.topic, row.value)
    (log_id,) = {place.log_id for place in records}
    return LoggedRecords(log_id, partitions, records)


def compare(bronze: Iterable[Record], log: LoggedRecords, results: Sequence[LoadResult]) -> Counter[Fault]:
    """Counts faults; empty if the table has every record of the log once, as it was sent.

    The publishers must have asked for the offsets of their records.
    """
    faults: Counter[Fault] = Counter()
    table: dict[BronzePlace, Content] = {}
    for place, content in bronze:
        faults[Fault.DOUBLED] += place in table
        table[place] = content
        logged = log.records.get(place)
        if logged is None:
            faults[Fault.UNEXPECTED] += 1
            continue
        faults[Fault.EPOCH] += content.epoch != logged.epoch
        faults[Fault.CHANGED] += (content.topic, content.value) != (logged.topic, logged.value)
    faults[Fault.UNREAD] = len(log.records.keys() - table.keys())
    for place, topic, value in _acknowledged(log, results):
        found = table.get(place)
        if found is None:
            faults[Fault.MISSING] += 1
        else:
            faults[Fault.CHANGED] += (found.topic, found.value) != (topic, value)
    return +faults


def _acknowledged(log: LoggedRecords, results: Sequence[LoadResult]) -> Iterator[tuple[BronzePlace, str, bytes]]:
    """Offset, topic and payload of each record whose publisher was told an offset."""
    for result in results:
        for one in result.connections:
            for sequence, told in one.acked.items():
                assert told is not None, f"{one.publisher.client_id} was not told the offsets of its records"
                place = BronzePlace(log.log_id, log.partitions[told.partition], told.offset)
                yield place, one.publisher.topic, result.recipe.payload(result.name(one, sequence))
