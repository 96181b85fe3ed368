"""Converts rows of Delta tables to dictionaries and back: timestamps are Unix microseconds, maps are dictionaries.

Opens no table.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from sinks.table_query import valid_texts
from sinks.tables import FieldTable

Row = Mapping[str, Any]


_ROWS_AT_ONCE = 10_000
"""A row as a dictionary needs many times its memory in the table."""


def now_us() -> int:
    return time.time_ns() // 1_000


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows as dictionaries: timestamps as Unix microseconds, maps as dictionaries."""
    maps = []
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            column = table.column(index).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            table = table.set_column(index, field.name, column)
        elif pa.types.is_map(field.type):
            maps.append(field.name)
    for start in range(0, table.num_rows, _ROWS_AT_ONCE):
        for row in _listed(table.slice(start, _ROWS_AT_ONCE)):
            for name in maps:
                if row[name] is not None:
                    row[name] = dict(row[name])
            yield row


def _listed(table: pa.Table) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = table.to_pylist()
    except UnicodeDecodeError:
        # The writer did not check the encoding: invalid bytes become U+FFFD, and the row is judged like any other.
        found = valid_texts(table).to_pylist()
    return found


def values_of(batch: pa.RecordBatch | pa.Table, name: str) -> list[Any]:
    """The values of one column, as `rows_of` gives them; nulls if there is no such column."""
    index = batch.schema.get_field_index(name)
    column = None if index < 0 else batch.column(index)
    if column is None or column.null_count == len(column):
        return [None] * batch.num_rows
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
    try:
        found: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        found = valid_texts(pa.table({name: column})).column(name).to_pylist()
    if pa.types.is_map(column.type):
        return [None if one is None else dict(one) for one in found]
    return found


def arrow_of(rows: Iterable[Row], table: FieldTable) -> pa.Table:
    """The rows in the schema of `table`; missing columns are null."""
    schema = table.arrow_schema()
    taken = list(rows)
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in taken]
        if pa.types.is_map(field.type):
            values = [list(value.items()) if value is not None else None for value in values]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)
