"""What a task does with the records that it fetched for bronze: Parquet files in the table's folder, by day.

Nothing here commits: a file counts once the Delta log names it (`bronze_commit`), and one that nothing will ever name
is swept by maintenance (`orphans`). No record is touched in Python; columns go from Flight to Parquet as they came.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sinks.folder import TableFolder

PARTITION_COLUMN = "ingest_date"
STATISTICS_COLUMNS = ("topic", "partition", "offset", "timestamp", "log_id", "epoch", "client_id")
"""Columns whose bounds the table keeps. Those of payloads help no query, and gathering them costs."""

FILE_PREFIX = "bronze-"
FILE_BYTES_MAX = 256 << 20
GROUP_ROWS_MAX = 262_144
GROUP_BYTES_MAX = 8 << 20
"""A row group is held in memory until it is written: the bound of what a task keeps. Four times as much takes a third
more CPU, for memory that was given back between two groups."""
DAYS_OPEN_MAX = 4
"""Files of one task that are open at once. Records come in the order of time, so only a clock that jumped needs more
than two; then the oldest file is closed early."""

PAGE_BYTES = 256 << 10
"""Of a page at most, unless one payload is larger. A page is one write, and writes of a megabyte take page cache in
blocks whose first touch costs more than the copy (four to eight times as much on a virtual machine that gives memory
back to its host). Pages of 64 KiB cost a tenth of a task more: each column is handed over in as many pieces."""
SAMPLE_BYTES = 64 << 10
STORED_FROM = 0.9
"""Payloads of which compression leaves so much are stored as they are: trying costs more than all other columns."""

_PAYLOAD_COLUMN = "value"
_HEADERS = "headers"
_HEADER_COLUMNS = ["headers.list.element.key", "headers.list.element.value"]
_DICTIONARY_COLUMNS = ["key", "topic", "log_id", "client_id", "tenant", "headers.list.element.key"]
# Offsets follow each other, which general compression sees badly and at six times the cost.
_ENCODINGS = {"offset": "DELTA_BINARY_PACKED"}
# The Parquet writer's own default.
_ROWS_AT_ONCE_MAX = 1_024
_STATISTICS_CHARACTERS = 32
_LAST_CHARACTER = "\U0010ffff"
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A finished file as the Delta log will name it; `statistics` is Delta's JSON."""

    path: str
    day: str
    size_bytes: int
    modified_ms: int
    rows: int
    statistics: str


@dataclass(frozen=True, slots=True)
class FileSpec:
    """How a task writes: where to, what it adds to each record, how it compresses. Goes to the tasks."""

    folder: TableFolder
    tenant: str
    compression: str = "zstd"


def write_files(records: Iterable[pa.RecordBatch], spec: FileSpec) -> Iterator[AddedFile]:
    """Writes the records, and gives each file once it is whole.

    When reading or writing fails, what is not whole is removed as far as that is possible, and the error goes on.
    """
    open_files: dict[int, _File] = {}
    try:
        for batch in records:
            for day, part in _by_day(batch):
                file = open_files.get(day)
                if file is not None and not file.takes(part):
                    yield open_files.pop(day).finish()
                    file = None
                if file is None:
                    if len(open_files) >= DAYS_OPEN_MAX:
                        yield open_files.pop(next(iter(open_files))).finish()
                    file = open_files[day] = _File(day, spec, part)
                file.append(part)
                if file.is_full:
                    yield open_files.pop(day).finish()
        while open_files:
            yield open_files.pop(next(iter(open_files))).finish()
    finally:
        for file in open_files.values():
            file.discard()


def _by_day(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batch in pieces of one UTC day each, as days since 1970. Nearly always that is the batch itself."""
    times = batch.column("timestamp").cast(pa.int64())
    if not len(times):
        return
    bounds = pc.min_max(times).as_py()
    first, last = bounds["min"] // _DAY_US, bounds["max"] // _DAY_US
    if first == last:
        yield first, batch
        return
    # No record is older than 1970, so the division rounds down.
    days = pc.divide(times, _DAY_US)
    for day in sorted(pc.unique(days).to_pylist()):
        yield day, batch.filter(pc.equal(days, day))


class _File:
    """One open file and the rows of its next row group."""

    def __init__(self, day: int, spec: FileSpec, first: pa.RecordBatch) -> None:
        self._day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()
        self._spec = spec
        # Of its own, so that two attempts of a task never meet.
        self._path = f"{PARTITION_COLUMN}={self._day}/{FILE_PREFIX}{uuid.uuid4()}.{spec.compression}.parquet"
        # Whether a value is there need not be said of columns in which all are: a fifth of what writing costs.
        self._required = frozenset(_without_nulls(first))
        self._stream = spec.folder.open(self._path)
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[Any] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0

    @property
    def is_full(self) -> bool:
        return bool(self._stream.tell() >= FILE_BYTES_MAX)

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Whether the rows have a value wherever this file has no way to say that one is missing."""
        return self._required <= set(_without_nulls(batch))

    def append(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= GROUP_ROWS_MAX or self._pending_bytes >= GROUP_BYTES_MAX:
            self._write_group()

    def finish(self) -> AddedFile:
        self._write_group()
        assert self._writer is not None, "a file has at least the rows for which it was opened"
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stream.close()
        (metadata,) = self._metadata
        return AddedFile(
            path=self._path,
            day=self._day,
            size_bytes=size_bytes,
            modified_ms=time.time_ns() // 1_000_000,
            rows=metadata.num_rows,
            statistics=_statistics(metadata),
        )

    def discard(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._stream.close()
            self._spec.folder.remove(self._path)

    def _write_group(self) -> None:
        if not self._pending:
            return
        rows = pa.Table.from_batches(self._pending)
        # A dictionary of one value costs four bytes a row to make, and nothing in the file.
        tenant = pa.DictionaryArray.from_arrays(_zeros(len(rows)), pa.array([self._spec.tenant]))
        fields = [field.with_nullable(field.name not in self._required) for field in rows.schema]
        fields.append(pa.field("tenant", tenant.type, nullable=False))
        rows = pa.Table.from_arrays([*rows.columns, tenant], schema=pa.schema(fields))
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._stream,
                rows.schema,
                compression=_compression(rows, self._spec.compression),
                use_dictionary=_DICTIONARY_COLUMNS,
                column_encoding=_ENCODINGS,
                write_statistics=list(STATISTICS_COLUMNS),
                # The Arrow schema would say that `tenant` is a dictionary, which is nobody's business.
                store_schema=False,
                metadata_collector=self._metadata,
                # A page ends with the batch that takes it over its size: with the second one.
                data_page_size=PAGE_BYTES // 2,
                write_batch_size=_rows_of(rows, (PAGE_BYTES - PAGE_BYTES // 8) // 2),
            )
        self._writer.write_table(rows, row_group_size=len(rows))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def _without_nulls(batch: pa.RecordBatch) -> Iterator[str]:
    """Names of the columns in which no value is missing. Not the headers: most records have none, and some have."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name != _HEADERS and not column.null_count:
            yield field.name


def _compression(rows: pa.Table, name: str) -> dict[str, str]:
    """Codecs by column, for a file that begins with `rows`: payloads that do not shrink are stored."""
    codecs = dict.fromkeys([*rows.schema.names, *_HEADER_COLUMNS], name)
    if not _shrinks(rows.column(_PAYLOAD_COLUMN), name):
        codecs[_PAYLOAD_COLUMN] = "none"
    return codecs


def _shrinks(payloads: pa.ChunkedArray, codec: str) -> bool:
    """Whether compression is worth its time, by payloads from the beginning and the middle."""
    half = SAMPLE_BYTES // 2
    sample = b"".join(_first_bytes(payloads.slice(start, half), half) for start in (0, len(payloads) // 2))
    return not sample or pa.Codec(codec).compress(sample).size < STORED_FROM * len(sample)


def _first_bytes(payloads: pa.ChunkedArray, count: int) -> bytes:
    """The first `count` bytes of what the payloads hold, in their order."""
    found = bytearray()
    for payload in payloads:
        found += (payload.as_buffer() or b"")[: count - len(found)]
        if len(found) >= count:
            break
    return bytes(found)


def _rows_of(rows: pa.Table, size_bytes: int) -> int:
    """How many rows come to about so many bytes, in what the writer takes at once."""
    return max(1, min(_ROWS_AT_ONCE_MAX, size_bytes * len(rows) // max(1, int(rows.nbytes))))


def _zeros(count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])


# Statistics, from those that the Parquet writer has gathered on its way.


@dataclass(slots=True)
class _Bounds:
    """Bounds of one column over the row groups; `is_known` ends where a group has none."""

    low: Any = None
    high: Any = None
    nulls: int = 0
    is_known: bool = True

    def take(self, statistics: Any) -> None:
        if statistics is None or not statistics.has_min_max:
            self.is_known = False
            return
        self.nulls += statistics.null_count
        self.low = statistics.min if self.low is None else min(self.low, statistics.min)
        self.high = statistics.max if self.high is None else max(self.high, statistics.max)


def _statistics(metadata: Any) -> str:
    """Delta's statistics of a file: bounds that hold for every row, rounded outwards where they are shortened."""
    places = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    columns = {name: _Bounds() for name in STATISTICS_COLUMNS}
    for group in range(metadata.num_row_groups):
        for name, bounds in columns.items():
            bounds.take(metadata.row_group(group).column(places[name]).statistics)
    known = {name: bounds for name, bounds in columns.items() if bounds.is_known}
    low = {name: _low(bounds.low) for name, bounds in known.items()}
    high = {name: _high(bounds.high) for name, bounds in known.items()}
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": low,
            "maxValues": {name: value for name, value in high.items() if value is not None},
            "nullCount": {name: bounds.nulls for name, bounds in known.items()},
        },
        ensure_ascii=False,
    )


def _low(value: Any) -> Any:
    if isinstance(value, datetime):
        return _milliseconds(value)
    return value[:_STATISTICS_CHARACTERS] if isinstance(value, str) else value


def _high(value: Any) -> Any:
    """As `_low`, but not below the value; None where no short text is above it."""
    if isinstance(value, datetime):
        return _milliseconds(value + timedelta(microseconds=999))
    if not isinstance(value, str) or len(value) <= _STATISTICS_CHARACTERS:
        return value
    kept, rest = value[:_STATISTICS_CHARACTERS], value[_STATISTICS_CHARACTERS:]
    return None if rest.startswith(_LAST_CHARACTER) else kept + _LAST_CHARACTER


def _milliseconds(moment: datetime) -> str:
    """Delta's notation, whose readers expect three digits: rounded down."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1_000:03}Z"
