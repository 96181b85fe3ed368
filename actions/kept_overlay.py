"""The tables of the engine for a program that asks again and again: what it has read of `action_journal` is kept.

`journal_overlay` reads the whole journal for each question. Here only the rows are read that are new since the last
one; the newest row of each key is kept, and SQL reads those from a small Delta table in a temporary folder.

As there, the journal is read before the table is opened, and a row counts only if its number is above the mark in the
table. So a merge in between does no harm.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from actions.journal import journal_mark
from actions.journal_overlay import together
from sinks.rows import arrow_of, rows_of
from sinks.table_query import queried, streamed
from sinks.tables import ACTION_JOURNAL, ACTION_STATE, ACTION_TARGETS, DEVICE_STATE, FieldTable, uri_of

log = logging.getLogger(__name__)

_OF_TARGETS = {
    *("action_id", "tenant", "device_id", "attempt", "state", "wave", "progress", "message", "late"),
    *("queued_at", "delivered_at", "started_at", "finished_at", "updated_at", "log_id", "partition", "offset"),
}
"""The columns of targets that are kept: those that pages show. A question about another one fails while the journal has
rows."""
_TARGETS = FieldTable(
    ACTION_TARGETS.name,
    ACTION_TARGETS.meaning,
    ACTION_TARGETS.written_by,
    tuple(field for field in ACTION_TARGETS.fields if field.name in _OF_TARGETS),
    key=ACTION_TARGETS.key,
)
_BEHIND = {table.name: table for table in (_TARGETS, ACTION_STATE, DEVICE_STATE)}
_NUMBER = "journal_number"


class KeptTable:
    """A table with what the engine has committed to it until it was opened. It lasts as long as this object."""

    def __init__(self, tables: Mapping[str, DeltaTable], named: str, held: TemporaryDirectory[str] | None) -> None:
        self._tables, self._named, self._held = tables, named, held

    def parts(self) -> tuple[dict[str, DeltaTable], str]:
        """The tables of a query, and what its WITH clause begins with, or an empty text."""
        return dict(self._tables), self._named

    def select(self, sql: str, read: Callable[[Mapping[str, DeltaTable], str], pa.Table] = queried) -> pa.Table:
        """The result of a SELECT on the table. Raises the errors of `read`."""
        return read(self._tables, f"WITH {self._named} {sql}" if self._named else sql)


class _Overlay:
    """The newest row of each key in the journal, of one table."""

    def __init__(self, table: FieldTable) -> None:
        self.table = table
        self.last = 0
        """The number of the newest row."""
        self._rows: pa.Buffer | None = None
        """Compressed: an eighth, and most questions do without it."""
        self._folder: TemporaryDirectory[str] | None = None

    def add(self, numbers: list[int], rows: list[dict[str, Any]]) -> None:
        """Takes rows in the order of their numbers."""
        new = arrow_of(rows, self.table).append_column(_NUMBER, pa.array(numbers, pa.int64()))
        every = new if self._rows is None else pa.concat_tables([_unpacked(self._rows), new])
        newest = every.group_by(list(self.table.key)).aggregate([(_NUMBER, "max")])[f"{_NUMBER}_max"]
        self._rows = _packed(every.filter(pc.is_in(every[_NUMBER], newest)))
        self.last, self._folder = numbers[-1], None

    def folder(self) -> TemporaryDirectory[str] | None:
        """A Delta table with the rows, or None without any. A question that is being answered holds it."""
        if self._rows is not None and self._folder is None:
            self._folder = TemporaryDirectory(prefix="headwater-journal-")
            write_deltalake(self._folder.name, _unpacked(self._rows))
        return self._folder

    def clear(self) -> None:
        self.last, self._rows, self._folder = 0, None, None


def _packed(rows: pa.Table) -> pa.Buffer:
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, rows.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(rows.combine_chunks())
    return stream.getvalue()


def _unpacked(rows: pa.Buffer) -> pa.Table:
    return pa.ipc.open_stream(rows).read_all()


class KeptTables:
    """The tables under `root`. May be used from several threads."""

    def __init__(self, root: Path | str, options: Callable[[], Mapping[str, str] | None]) -> None:
        self._root, self._options = root, options
        self._lock = threading.Lock()
        self._opened: dict[str, DeltaTable] = {}
        self._overlays = {name: _Overlay(table) for name, table in _BEHIND.items()}
        self._read = 0
        """The number of the journal's last row that was read."""

    def fresh(self, name: str) -> KeptTable:
        """Raises DeltaError if there is no such table."""
        with self._lock:
            if name not in _BEHIND:
                return KeptTable({name: self._newest(name)}, "", None)
            self._take()
            table, overlay = self._newest(name), self._overlays[name]
            mark = journal_mark(table)
            if overlay.last <= mark:
                overlay.clear()
            folder = overlay.folder()
            if folder is None:
                return KeptTable({name: table}, "", None)
            tables = {f"{name}_merged": table, f"{name}_journal": DeltaTable(folder.name)}
            return KeptTable(tables, f"{name} AS ({together(_BEHIND[name], table, f'{_NUMBER} > {mark:d}')})", folder)

    def forget(self) -> None:
        """Reads everything anew: a file was missing, so somebody may have made the tables anew."""
        with self._lock:
            self._opened = {}
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._read = 0
        for overlay in self._overlays.values():
            overlay.clear()

    def _newest(self, name: str) -> DeltaTable:
        table = self._opened.get(name)
        if table is not None:
            try:
                table.update_incremental()
                return table
            except Exception:  # Its old versions may have been removed; there is no specific class for that.
                log.info("the table %s is opened anew", name)
        opened = self._options()
        table = DeltaTable(uri_of(self._root, name), storage_options=dict(opened) if opened else None)
        self._opened[name] = table
        return table

    def _take(self) -> None:
        """Reads what is new in the journal."""
        try:
            journal = self._newest(ACTION_JOURNAL.name)
        except TableNotFoundError:
            return  # Tables of an older version have none.
        if not journal.file_uris():
            return
        sql = f"SELECT number, table_name, row FROM {ACTION_JOURNAL.name} WHERE number > {self._read:d} ORDER BY number"
        try:
            streamed({ACTION_JOURNAL.name: journal}, sql, self._take_batches)
        except BaseException:
            # Some rows of a batch may have been taken: all are read again next time.
            self._begin_anew()
            raise

    def _take_batches(self, batches: Iterable[pa.RecordBatch]) -> None:
        for batch in batches:
            found: dict[str, tuple[list[int], list[dict[str, Any]]]] = {}
            last = self._read
            for row in rows_of(pa.Table.from_batches([batch])):
                last = max(last, row["number"])
                if row["table_name"] in _BEHIND:
                    numbers, rows = found.setdefault(row["table_name"], ([], []))
                    numbers.append(row["number"])
                    rows.append(json.loads(row["row"]))
            for name, (numbers, rows) in found.items():
                self._overlays[name].add(numbers, rows)
            self._read = last
