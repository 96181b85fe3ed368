"""How a task writes the records that it fetched for bronze: as Parquet files in the table's folder, one folder per day.

Nothing here commits. A file counts once the Delta log names it (`bronze_commit`); maintenance removes files that no
commit will ever name (`orphans`). No record is handled one by one in Python: columns go from Flight to Parquet
unchanged.
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
_WRITER_STATISTICS = ("topic", "partition", "offset", "timestamp", "log_id", "epoch", "client_id")
STATISTICS_COLUMNS = (*_WRITER_STATISTICS, "device_id")
"""Columns whose bounds the table keeps. Queries do not use bounds of payload columns, and gathering them costs time.
Those of `device_id` come from its dictionary, at a tenth of what the Parquet writer would take."""

FILE_PREFIX = "bronze-"
FILE_BYTES_MAX = 256 << 20
GROUP_ROWS_MAX = 262_144
GROUP_BYTES_MAX = 8 << 20
"""Size of a row group. It is held in memory until it is written and so limits the memory of a task. Four times this
size takes a third more CPU, because memory is returned to the system between two groups."""
DAYS_OPEN_MAX = 4
"""Files that one task keeps open at once. Records arrive in time order, so more than two are needed only after a clock
jump; then the oldest file is closed early."""

PAGE_BYTES = 256 << 10
"""Maximum size of a page, unless one payload is larger. A page is one write. A write of a megabyte takes page cache in
blocks whose first use costs more than the copy (four to eight times as much on a virtual machine that returns memory to
its host). Pages of 64 KiB make a task a tenth slower: each column is then passed on in as many pieces."""
SAMPLE_BYTES = 64 << 10
STORED_FROM = 0.9
"""If compression leaves at least this part of the payloads, they are stored uncompressed: trying costs more than all
other columns."""

_KEY_COLUMN = "key"
_PAYLOAD_COLUMN = "value"
_HEADERS = "headers"
_HEADER_COLUMNS = ["headers.list.element.key", "headers.list.element.value"]
_DICTIONARY_COLUMNS = ["key", "device_id", "topic", "log_id", "client_id", "tenant", "headers.list.element.key"]
# Offsets are consecutive. General compression makes little of that and costs six times as much.
_ENCODINGS = {"offset": "DELTA_BINARY_PACKED"}
# The default of the Parquet writer.
_ROWS_AT_ONCE_MAX = 1_024
_STATISTICS_CHARACTERS = 32
_LAST_CHARACTER = "\U0010ffff"
_DAY_US = 86_400_000_000


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A finished file as it goes into the Delta log; `statistics` is Delta's JSON."""

    path: str
    day: str
    size_bytes: int
    modified_ms: int
    rows: int
    statistics: str


@dataclass(frozen=True, slots=True)
class FileSpec:
    """How a task writes: target folder, values added to each record, compression, and whether a file is on disk before
    the task names it. Sent to the tasks."""

    folder: TableFolder
    tenant: str
    compression: str = "zstd"
    sync: bool = False


def write_files(records: Iterable[pa.RecordBatch], spec: FileSpec) -> Iterator[AddedFile]:
    """Writes the records, and returns each file once it is complete.

    If reading or writing fails, incomplete files are removed as far as possible, and the error is raised.
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
    """The batch in pieces of one UTC day each, with the days since 1970. Almost always there is one piece: the whole
    batch."""
    times = batch.column("timestamp").cast(pa.int64())
    if not len(times):
        return
    bounds = pc.min_max(times).as_py()
    first, last = bounds["min"] // _DAY_US, bounds["max"] // _DAY_US
    if first == last:
        yield first, batch
        return
    # No record is older than 1970, so the integer division rounds down.
    days = pc.divide(times, _DAY_US)
    for day in sorted(pc.unique(days).to_pylist()):
        yield day, batch.filter(pc.equal(days, day))


class _File:
    """One open file and the rows of its next row group."""

    def __init__(self, day: int, spec: FileSpec, first: pa.RecordBatch) -> None:
        self._day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=day)).date().isoformat()
        self._spec = spec
        # The name is unique, so two attempts of a task never write to the same file.
        self._path = f"{PARTITION_COLUMN}={self._day}/{FILE_PREFIX}{uuid.uuid4()}.{spec.compression}.parquet"
        # Columns without nulls are declared required: encoding their presence is a fifth of the write time.
        self._required = frozenset(_without_nulls(first))
        self._stream = spec.folder.open(self._path)
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[Any] = []
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._devices = _Bounds()

    @property
    def is_full(self) -> bool:
        return bool(self._stream.tell() >= FILE_BYTES_MAX)

    def takes(self, batch: pa.RecordBatch) -> bool:
        """Whether the rows have a value in every column that this file declares required."""
        return self._required <= set(_without_nulls(batch))

    def append(self, batch: pa.RecordBatch) -> None:
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= GROUP_ROWS_MAX or self._pending_bytes >= GROUP_BYTES_MAX:
            self._write_group()

    def finish(self) -> AddedFile:
        self._write_group()
        assert self._writer is not None, "a file holds at least the rows for which it was opened"
        self._writer.close()
        size_bytes = self._stream.tell()
        self._stream.close()
        if self._spec.sync:
            self._spec.folder.sync_content(self._path)
        (metadata,) = self._metadata
        return AddedFile(
            path=self._path,
            day=self._day,
            size_bytes=size_bytes,
            modified_ms=time.time_ns() // 1_000_000,
            rows=metadata.num_rows,
            statistics=_statistics(metadata, self._devices),
        )

    def discard(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._stream.close()
            self._spec.folder.remove(self._path)

    def _write_group(self) -> None:
        if not self._pending:
            return
        rows = pa.Table.from_batches(self._pending)
        # A dictionary of one value takes four bytes a row to build, and no space in the file.
        tenant = pa.DictionaryArray.from_arrays(_zeros(len(rows)), pa.array([self._spec.tenant]))
        key, device = keys_and_devices(rows.column(_KEY_COLUMN))
        self._devices.take_dictionary(device)
        rows = rows.set_column(rows.schema.get_field_index(_KEY_COLUMN), _KEY_COLUMN, key)
        fields = [field.with_nullable(field.name not in self._required) for field in rows.schema]
        fields += [pa.field("tenant", tenant.type, nullable=False), pa.field("device_id", device.type)]
        rows = pa.Table.from_arrays([*rows.columns, tenant, device], schema=pa.schema(fields))
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._stream,
                rows.schema,
                compression=_compression(rows, self._spec.compression),
                use_dictionary=_DICTIONARY_COLUMNS,
                column_encoding=_ENCODINGS,
                write_statistics=list(_WRITER_STATISTICS),
                # The Arrow schema would declare `tenant` as a dictionary, which readers do not need to know.
                store_schema=False,
                metadata_collector=self._metadata,
                # The writer ends a page after the batch that exceeds this size, which is the second one.
                data_page_size=PAGE_BYTES // 2,
                write_batch_size=_rows_of(rows, (PAGE_BYTES - PAGE_BYTES // 8) // 2),
            )
        self._writer.write_table(rows, row_group_size=len(rows))
        self._pending, self._pending_rows, self._pending_bytes = [], 0, 0


def keys_and_devices(keys: pa.ChunkedArray) -> tuple[pa.DictionaryArray, pa.DictionaryArray]:
    """The keys, and the keys as text, null where a key is not UTF-8. Both as dictionaries with the same indices: the
    Parquet writer then encodes each different key once."""
    coded = keys.combine_chunks().dictionary_encode()
    try:
        return coded, pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.string()))
    except pa.ArrowInvalid:
        texts = pa.array([_text(key) for key in coded.dictionary.to_pylist()], pa.string())
    # The Parquet writer takes no dictionary that contains null.
    return coded, texts.take(coded.indices).dictionary_encode()


def _text(key: bytes) -> str | None:
    try:
        return key.decode()
    except UnicodeDecodeError:
        return None


def _without_nulls(batch: pa.RecordBatch) -> Iterator[str]:
    """Names of the columns in which no value is missing. Headers are excluded: most records have none, but some do."""
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if field.name != _HEADERS and not column.null_count:
            yield field.name


def _compression(rows: pa.Table, name: str) -> dict[str, str]:
    """Codecs by column for a file that begins with `rows`. Payloads that hardly shrink are stored uncompressed."""
    codecs = dict.fromkeys([*rows.schema.names, *_HEADER_COLUMNS], name)
    if not _shrinks(rows.column(_PAYLOAD_COLUMN), name):
        codecs[_PAYLOAD_COLUMN] = "none"
    return codecs


def _shrinks(payloads: pa.ChunkedArray, codec: str) -> bool:
    """Whether compression is worthwhile, judged by payloads from the beginning and the middle."""
    half = SAMPLE_BYTES // 2
    sample = b"".join(_first_bytes(payloads.slice(start, half), half) for start in (0, len(payloads) // 2))
    return not sample or pa.Codec(codec).compress(sample).size < STORED_FROM * len(sample)


def _first_bytes(payloads: pa.ChunkedArray, count: int) -> bytes:
    """The first `count` bytes of the concatenated payloads."""
    found = bytearray()
    for payload in payloads:
        found += (payload.as_buffer() or b"")[: count - len(found)]
        if len(found) >= count:
            break
    return bytes(found)


def _rows_of(rows: pa.Table, size_bytes: int) -> int:
    """The number of rows that take about this many bytes, as a multiple of the writer's chunk."""
    return max(1, min(_ROWS_AT_ONCE_MAX, size_bytes * len(rows) // max(1, int(rows.nbytes))))


def _zeros(count: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(bytes(4 * count))])


# Statistics for Delta, from those that the Parquet writer gathered.


@dataclass(slots=True)
class _Bounds:
    """Bounds of one column over the row groups; `is_known` becomes false if a group has none."""

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

    def take_dictionary(self, column: pa.DictionaryArray) -> None:
        """The bounds of a column whose dictionary has only values that occur in it."""
        self.nulls += column.null_count
        if not len(column.dictionary):
            return
        bounds = pc.min_max(column.dictionary).as_py()
        self.low = bounds["min"] if self.low is None else min(self.low, bounds["min"])
        self.high = bounds["max"] if self.high is None else max(self.high, bounds["max"])


def _statistics(metadata: Any, devices: _Bounds) -> str:
    """Delta's statistics of a file: bounds that hold for every row. Shortened bounds are rounded outwards."""
    places = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    columns = {name: _Bounds() for name in _WRITER_STATISTICS}
    for group in range(metadata.num_row_groups):
        for name, bounds in columns.items():
            bounds.take(metadata.row_group(group).column(places[name]).statistics)
    known = {name: bounds for name, bounds in columns.items() if bounds.is_known} | {"device_id": devices}
    low = {name: _low(bounds.low) for name, bounds in known.items() if bounds.low is not None}
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
    """Like `_low`, but not below the value; None if no short text is above it."""
    if isinstance(value, datetime):
        return _milliseconds(value + timedelta(microseconds=999))
    if not isinstance(value, str) or len(value) <= _STATISTICS_CHARACTERS:
        return value
    kept, rest = value[:_STATISTICS_CHARACTERS], value[_STATISTICS_CHARACTERS:]
    return None if rest.startswith(_LAST_CHARACTER) else kept + _LAST_CHARACTER


def _milliseconds(moment: datetime) -> str:
    """Delta's notation, whose readers expect three digits of a second; rounded down."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1_000:03}Z"
