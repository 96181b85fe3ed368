"""Moves old rows of `action_events` to `action_events_archive`, a part at a time, so that neither a kill nor another
writer loses or doubles one. `archive_ended` does the same with targets, requests and quarantine.

A part is the oldest rows of one action. It is copied in one commit, counted, and only then deleted. After a kill the
part is found again, and the rows that the archive has are not copied again. The delete touches only rows of the version
that was copied: rows that were added since stay.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from actions.engine import TERMINAL
from actions.table_writer import TableWriter
from broker_edge.errors import TableStoreError
from sinks.sql_text import literal
from sinks.table_query import queried
from sinks.tables import ACTION_EVENTS, ACTION_EVENTS_ARCHIVE, ACTION_STATE, ACTION_TARGETS

log = logging.getLogger(__name__)

PART_ROWS = 20_000
"""Approximate number of rows of a part: the engine decides nothing while it moves one."""
IDS_MAX = 10_000
"""Actions that are looked up at once."""
_FINAL = ", ".join(literal(state) for state in sorted(TERMINAL))
OWING = (
    "SELECT DISTINCT action_id FROM action_targets "
    f"WHERE outbox IS NOT NULL OR copies IS NOT NULL OR state NOT IN ({_FINAL})"
)
"""Actions with a target that is open, or to which or to whose old log a record is owed."""
_LIVE, _OLD = ACTION_EVENTS.name, ACTION_EVENTS_ARCHIVE.name


class ArchiveTables(Protocol):
    """What the store gives: tables at their newest version, and commits with the number of the engine."""

    def current(self, name: str) -> DeltaTable: ...

    def alike(self, name: str, archive: str) -> None:
        """Gives the archive the columns that somebody has added to the table."""

    def append(self, name: str, rows: pa.Table) -> None: ...

    def put(self, name: str, rows: pa.Table) -> None:
        """Replaces the rows with these keys, and adds the others."""

    def update(self, name: str, values: Mapping[str, str], where: str) -> None:
        """Sets columns to SQL expressions."""

    def delete(self, table: DeltaTable, name: str, where: str) -> None:
        """Deletes from this version of the table. Raises CommitFailedError without another try."""

    def sync(self) -> None:
        """Returns when the commits are on disk."""


class ArchiveWriter:
    """`ArchiveTables` by the writer of a store."""

    def __init__(self, writer: TableWriter) -> None:
        self.current, self.alike, self.sync = writer.current, writer.alike, writer.sync
        self.update, self.delete = writer.update, writer.delete
        self.append: Callable[[str, pa.Table], None] = writer.append
        self.put: Callable[[str, pa.Table], None] = writer.merge


class Mover(Protocol):
    """Moves one kind of rows."""

    def move(self, before_us: int, loaded: Collection[str]) -> bool:
        """Moves one part of the rows that are older than this time, of actions that ended before it, owe nothing, and
        are not `loaded` by the engine. Returns whether there may be more."""


class Archive:
    """Moves one kind of rows after the other: the events of an action before its targets and requests."""

    def __init__(self, movers: Collection[Mover]) -> None:
        self._movers = tuple(movers)
        self._at = 0

    def move(self, before_us: int, loaded: Collection[str]) -> bool:
        """Moves one part. Returns whether there may be more."""
        while self._at < len(self._movers):
            if self._movers[self._at].move(before_us, loaded):
                return True
            self._at += 1
        self._at = 0
        return False


class EventArchive:
    """Finds and moves parts. Keeps nothing that a restart would need."""

    def __init__(self, tables: ArchiveTables) -> None:
        self._tables = tables
        self._due: deque[str | None] = deque()
        """Actions with old rows; None: rows about no action."""

    def move(self, before_us: int, loaded: Collection[str] = ()) -> bool:
        """Also moves rows that name no action of the tables."""
        if not self._due:
            self._due.extend(one for one in self._found(before_us, len(loaded)) if one is None or one not in loaded)
        while self._due and self._due[0] is not None and self._due[0] in loaded:
            self._due.popleft()
        if not self._due:
            return False
        self._tables.alike(_LIVE, _OLD)
        live = self._tables.current(_LIVE)
        whose = _whose(self._due[0])
        until_us, is_last = self._until_us(live, whose, before_us)
        where = f"{whose} AND recorded_at <= {time_of(until_us)}"
        if not self._moved(live, where):
            return True
        if is_last:
            self._due.popleft()
        return True

    def _found(self, before_us: int, more: int) -> list[str | None]:
        tables = {name: self._tables.current(name) for name in (_LIVE, ACTION_STATE.name, ACTION_TARGETS.name)}
        sql = (
            f"SELECT DISTINCT e.action_id AS action_id FROM {_LIVE} e "
            f"LEFT JOIN {ACTION_STATE.name} s ON e.action_id = s.action_id "
            f"LEFT JOIN ({OWING}) o ON e.action_id = o.action_id "
            f"WHERE e.recorded_at <= {time_of(before_us)} "
            f"AND (s.action_id IS NULL OR s.ended_at <= {time_of(before_us)}) AND o.action_id IS NULL "
            f"LIMIT {IDS_MAX + more}"
        )
        found: list[str | None] = queried(tables, sql).column("action_id").to_pylist()
        return found

    @staticmethod
    def _until_us(live: DeltaTable, whose: str, before_us: int) -> tuple[int, bool]:
        """Up to which time the next part reaches, and whether it is the last one. Rows of the same time stay together,
        so a part may be larger by a batch of the status job."""
        sql = (
            f"SELECT recorded_at FROM {_LIVE} WHERE {whose} AND recorded_at <= {time_of(before_us)} "
            f"ORDER BY recorded_at LIMIT 1 OFFSET {PART_ROWS - 1}"
        )
        found = queried({_LIVE: live}, sql).column("recorded_at").cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        return (before_us, True) if not len(found) else (found[0].as_py(), found[0].as_py() >= before_us)

    def _moved(self, live: DeltaTable, where: str) -> bool:
        """Copies, counts, deletes. False if another writer came between; the next call repeats it."""
        rows = plain(queried({_LIVE: live}, f"SELECT * FROM {_LIVE} WHERE {where}"))
        if not rows.num_rows:
            return True
        fresh = not_in(rows, self._archived(where))
        if fresh.num_rows:
            self._tables.append(_OLD, fresh)
        missing = not_in(rows, self._archived(where)).num_rows
        if missing:
            raise TableStoreError(f"the table {_OLD} lacks {missing} rows that were copied to it: nothing was deleted")
        self._tables.sync()
        try:
            self._tables.delete(live, _LIVE, where)
        except CommitFailedError as error:
            log.info("rows of %s were archived, and are deleted with the next try: %s", _LIVE, str(error)[:200])
            return False
        log.info("%d rows of %s moved to %s", rows.num_rows, _LIVE, _OLD)
        return True

    def _archived(self, where: str) -> pa.Table:
        return queried({_OLD: self._tables.current(_OLD)}, f"SELECT event_id FROM {_OLD} WHERE {where}")


def not_in(rows: pa.Table, archived: pa.Table) -> pa.Table:
    """The rows whose event is not among the archived ones."""
    known = archived.column("event_id").cast(pa.string())
    ids = rows.column("event_id").cast(pa.string())
    return rows.filter(pc.invert(pc.is_in(ids, value_set=known.combine_chunks())))


def plain(rows: pa.Table) -> pa.Table:
    """DataFusion answers with views of texts, which pyarrow cannot filter."""
    return rows.cast(pa.schema([field.with_type(_plain_type(field.type)) for field in rows.schema]))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)


def _whose(action_id: str | None) -> str:
    return "action_id IS NULL" if action_id is None else f"action_id = {literal(action_id)}"


def time_of(at_us: int) -> str:
    """A time for SQL, in the one form that a query and a delete take."""
    return f"arrow_cast({int(at_us)}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
