"""SQL over Delta tables without a JVM, whatever program wrote them.

Spark can write arbitrary bytes as a string (`CAST(X'FF' AS STRING)`), and DataFusion refuses a whole table because of
one. In that case the query runs on a copy in which invalid UTF-8 is replaced by U+FFFD.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from broker_edge.errors import TableStoreError

log = logging.getLogger(__name__)

T = TypeVar("T")
Take = Callable[[Iterable[pa.RecordBatch]], T]

ROWS_MAX = 1_000_000
BYTES_MAX = 512 << 20
"""What a person's command holds of one table: each row as a dictionary takes another kilobyte."""

_ROWS_AT_ONCE = 8_192
_NO_UTF8 = "utf-8"
"""Parts of the error message, in both spellings."""


def queried(tables: Mapping[str, DeltaTable], sql: str) -> pa.Table:
    """The result of `sql` on tables without deletion vectors. Raises DataFusion's errors, which have no specific
    class."""
    return _on_valid(tables, lambda found: pa.table(_builder(found).execute(sql).read_all()))


def streamed(tables: Mapping[str, DeltaTable], sql: str, take: Take[T]) -> T:
    """What `take` makes of the result, which it gets in batches of some thousand rows: as a whole, a table of a million
    rows takes gigabytes. If the tables contain invalid UTF-8, `take` is called a second time, from the start."""
    return _on_valid(tables, lambda found: take(pa.RecordBatchReader.from_stream(_builder(found).execute(sql))))


def bounded(tables: Mapping[str, DeltaTable], sql: str, *, about: str) -> pa.Table:
    """As `queried`, read in batches: a file of some hundred kilobytes may stand for millions of rows. `sql` must not
    sort, which would hold them all.

    Raises TableStoreError, which names the table as `about` does, if the result has more than ROWS_MAX rows or
    BYTES_MAX bytes.
    """
    return _on_valid(tables, lambda found: held(pa.RecordBatchReader.from_stream(_builder(found).execute(sql)), about))


def held(batches: pa.RecordBatchReader, about: str) -> pa.Table:
    """The batches as one table, within the bounds of `bounded`."""
    # The texts of a view share their buffers with those of other batches.
    schema = pa.schema([field.with_type(_compact(field.type)) for field in batches.schema])
    found, rows, size_bytes = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        found.append(batch.cast(schema))
        rows, size_bytes = rows + batch.num_rows, size_bytes + found[-1].nbytes
        if rows > ROWS_MAX or size_bytes > BYTES_MAX:
            raise TableStoreError(
                f"the table {about} has more than {ROWS_MAX:,} rows or {BYTES_MAX >> 20} MiB, and this command reads "
                "no more: remove the rows that do not belong there, or read it with Spark"
            )
    return pa.Table.from_batches(found, schema)


def _compact(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.string()
    return pa.list_(_compact(kind.value_type)) if pa.types.is_list(kind) else kind


def _on_valid(tables: Mapping[str, DeltaTable], ask: Callable[[Mapping[str, DeltaTable]], T]) -> T:
    try:
        return ask(tables)
    except Exception as error:
        if _NO_UTF8 not in str(error).lower():
            raise
        log.warning("the table %s contains invalid UTF-8: such bytes are read as U+FFFD", " or ".join(tables))
    with TemporaryDirectory(prefix="headwater-utf8-") as folder:
        copies = {}
        for name, table in tables.items():
            path = str(Path(folder) / name)
            write_deltalake(path, _valid_batches(table))
            copies[name] = DeltaTable(path)
        return ask(copies)


def _valid_batches(table: DeltaTable) -> pa.RecordBatchReader:
    scan = table.to_pyarrow_dataset().scanner(batch_size=_ROWS_AT_ONCE, batch_readahead=1, fragment_readahead=1)
    found = scan.to_reader()
    valid = (part for batch in found for part in valid_texts(pa.Table.from_batches([batch])).to_batches())
    return pa.RecordBatchReader.from_batches(found.schema, valid)


def _builder(tables: Mapping[str, DeltaTable]) -> QueryBuilder:
    builder = QueryBuilder()
    for name, table in tables.items():
        builder = builder.register(name, table)
    return builder


def valid_texts(table: pa.Table) -> pa.Table:
    """The table with every string as valid UTF-8."""
    columns = [_valid(column) for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def _valid(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pa.chunked_array([_valid_array(chunk) for chunk in column.chunks], type=column.type)


def _valid_array(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        found = array.cast(pa.large_binary() if pa.types.is_large_string(kind) else pa.binary()).to_pylist()
        return pa.array([None if one is None else one.decode(errors="replace") for one in found], kind)
    if pa.types.is_map(kind):
        keys, items = _valid_array(array.keys), _valid_array(array.items)
        return pa.MapArray.from_arrays(array.offsets, keys, items, kind, mask=array.is_null())
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, _valid_array(array.values), kind, mask=array.is_null())
    return array
