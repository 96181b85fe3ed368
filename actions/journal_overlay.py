"""Reads `action_targets`, `action_state` and `device_state` together with their changes in `action_journal`.

The journal is opened before the table. If the engine merges rows in between, the table has them, and the mark in the
table excludes them from the journal.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from actions.journal import unmerged
from sinks.rows import arrow_of
from sinks.table_query import queried
from sinks.tables import ACTION_JOURNAL, ACTION_STATE, ACTION_TARGETS, DEVICE_STATE, FieldTable, uri_of

_BEHIND = {table.name: table for table in (ACTION_TARGETS, ACTION_STATE, DEVICE_STATE)}


class FreshTable:
    """A table of the engine, opened with all that the engine has committed to it until now.

    Raises DeltaError if there is no such table.
    """

    def __init__(self, root: Path | str, name: str, options: Mapping[str, str] | None = None) -> None:
        opened = dict(options) if options else None
        self._name = name
        self._journal: DeltaTable | None = None
        self._folder: TemporaryDirectory[str] | None = None
        if name in _BEHIND:
            # Tables of an older version have none.
            with contextlib.suppress(TableNotFoundError):
                self._journal = DeltaTable(uri_of(root, ACTION_JOURNAL.name), storage_options=opened)
        self._table = DeltaTable(uri_of(root, name), storage_options=opened)

    def select(self, sql: str, read: Callable[[Mapping[str, DeltaTable], str], pa.Table] = queried) -> pa.Table:
        """The result of a SELECT on the table. Raises the errors of `read`."""
        tables, named = self.parts()
        return read(tables, f"WITH {named} {sql}" if named else sql)

    def parts(self) -> tuple[dict[str, DeltaTable], str]:
        """The tables of a query, and what its WITH clause begins with, if the journal has newer rows. The tables last
        as long as this object."""
        name, table = self._name, self._table
        rows = [] if self._journal is None else unmerged({ACTION_JOURNAL.name: self._journal, name: table})[name]
        if not rows:
            return {name: table}, ""
        self._folder = TemporaryDirectory(prefix="headwater-journal-")
        write_deltalake(self._folder.name, arrow_of(rows, _BEHIND[name]))
        tables = {f"{name}_merged": table, f"{name}_journal": DeltaTable(self._folder.name)}
        return tables, f"{name} AS ({together(_BEHIND[name], table)})"


def together(table: FieldTable, found: DeltaTable, counts: str = "true") -> str:
    """SQL for the rows of `{table}_journal` that fulfil the condition, and those of `{table}_merged` that have no newer
    one there."""
    # A table of an older version may lack a column.
    there = {field.name for field in found.schema().fields}
    columns = ", ".join(f'"{name}"' for name in table.names)
    merged = ", ".join(f'"{name}"' if name in there else f'NULL AS "{name}"' for name in table.names)
    same = " AND ".join(f"j.{column} = t.{column}" for column in table.key)
    name = table.name
    newer = f"NOT EXISTS (SELECT 1 FROM {name}_journal j WHERE {same} AND {counts})"
    return (
        f"SELECT {merged} FROM {name}_merged t WHERE {newer} "
        f"UNION ALL SELECT {columns} FROM {name}_journal WHERE {counts}"
    )
