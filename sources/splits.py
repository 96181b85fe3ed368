"""Splits: how the offsets of a batch are divided into tasks, and how a task reads them.

A *split* is a range of one partition together with the broker that holds it. A *task* is one or more splits of one
broker: small ranges are grouped, because a task costs Spark more than reading their records. With the internal option
`yield=splits` a task returns its splits as rows instead of reading them; the receiver of such a row reads it with
`read_split`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from broker_edge.errors import OffsetError
from broker_edge.fields import Field, FieldTable
from sources.fetch import fetch
from sources.log_server import LogServer
from sources.offsets import OffsetRange
from sources.options import SourceOptions
from sources.schema import struct_of

TOGETHER_MAX = 32_768
"""Ranges of one broker share a task up to this many offsets: about 20 ms of reading, which is the cost of a task."""

_SPLITS = FieldTable(
    "splits",
    "Rows of a stream with `yield=splits`: what to read, and where.",
    "the source",
    (
        Field("server", "string", "address of the broker", nullable=False),
        Field("log_id", "string", nullable=False),
        Field("partition", "int", nullable=False),
        Field("start", "bigint", nullable=False),
        Field("end", "bigint", nullable=False),
        Field("end_epoch", "bigint", "epoch of the record before `end`; null where it is not known"),
    ),
)
SPLIT_SCHEMA = _SPLITS.arrow_schema()


@dataclass(frozen=True, slots=True)
class Split:
    """Records `[start, end)` of one partition at `server`; `end_epoch` is the epoch of the record before `end`."""

    server: str
    log_id: str
    partition: int
    start: int
    end: int
    end_epoch: int | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Split:
        """Parses a row of `yield=splits`, given as a dictionary; raises `OffsetError` for anything else."""
        try:
            return cls(**{name: row[name] for name in SPLIT_SCHEMA.names})
        except KeyError as error:
            raise OffsetError(f"{json.dumps(dict(row), default=str)} is not a split: {error} is missing") from error

    @property
    def offsets(self) -> OffsetRange:
        return OffsetRange(self.log_id, self.partition, self.start, self.end, self.end_epoch)


class SplitTask(InputPartition):  # type: ignore[misc]
    """One task: splits of one broker."""

    def __init__(self, address: str, offsets: Sequence[OffsetRange]) -> None:
        super().__init__(None)
        self.address = address
        self.offsets = tuple(offsets)


def spark_split_schema() -> StructType:
    """The columns of a DataFrame with `yield=splits`."""
    return struct_of(_SPLITS)


def plan_tasks(found: Sequence[OffsetRange], addresses: Mapping[str, str], options: SourceOptions) -> list[SplitTask]:
    """Divides ranges into tasks: large ones into pieces, small ones of one broker grouped.

    No piece has more than `maxRecordsPerPartition` offsets, and with `minPartitions` there are about that many tasks or
    more. Both count offsets, including those of records that a filter drops.
    """
    pieces = _in_pieces(list(found), options.max_records_per_partition, options.min_partitions)
    # With an explicit number of tasks nothing is grouped.
    together = TOGETHER_MAX if options.min_partitions is None else 0
    if options.max_records_per_partition is not None:
        together = min(together, options.max_records_per_partition)
    tasks: list[SplitTask] = []
    room: dict[str, tuple[SplitTask, int]] = {}
    for piece in pieces:
        address = addresses[piece.log_id]
        length = piece.end - piece.start
        task, left = room.get(address, (None, 0))
        if task is None or length > left:
            task, left = SplitTask(address, ()), together
            tasks.append(task)
        task.offsets = (*task.offsets, piece)
        room[address] = task, left - length
    return tasks


def _in_pieces(found: list[OffsetRange], max_records: int | None, min_partitions: int | None) -> list[OffsetRange]:
    if max_records is not None:
        found = [part for one in found for part in one.split(-(-(one.end - one.start) // max_records))]
    if min_partitions is None or not 0 < len(found) < min_partitions:
        return found
    total = sum(one.end - one.start for one in found)
    return [part for one in found for part in one.split(round(min_partitions * (one.end - one.start) / total))]


def read_task(task: SplitTask, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """What a task returns to Spark: the records, or with `yield=splits` the splits."""
    if options.yields_splits:
        yield _as_rows(task)
        return
    server = LogServer(task.address, access=options.access_of(task.address))
    try:
        for offsets in task.offsets:
            yield from fetch(offsets, server, options)
    finally:
        server.close()


def read_split(split: Split, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The records of a split in the canonical schema, ordered by offset.

    `options` are those of the stream that returned the split (`parse_options`): topics, headers, handling of data loss,
    timeouts and credentials. If the broker cannot be reached, waits up to `pollTimeoutMs` after the last batch. Raises
    `DataLossError`, `UnavailableError`, `RefusedError` or `OptionError`, like reading rows.
    """
    server = LogServer(split.server, access=options.access_of(split.server))
    try:
        yield from fetch(split.offsets, server, options)
    finally:
        server.close()


def _as_rows(task: SplitTask) -> pa.RecordBatch:
    rows = [
        {
            "server": task.address,
            "log_id": one.log_id,
            "partition": one.partition,
            "start": one.start,
            "end": one.end,
            "end_epoch": one.end_epoch,
        }
        for one in task.offsets
    ]
    return pa.RecordBatch.from_pylist(rows, schema=SPLIT_SCHEMA)
