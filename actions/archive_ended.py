"""Moves the targets and the handled requests of actions that ended long ago to their archives, and old rows of
quarantine.

The steps are those of `archive`: copy, compare, sync, delete on the version that was copied. Each can be repeated, and
what is left to do is found in the tables. Before the first target of an action moves, `archived_at` of its row says
that some may be in the archive. A target can change later, by a late report or a retry. Its row is then written to
`action_targets` again and counts there; when it moves again, it replaces the one in the archive.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from actions import archive
from actions.archive import IDS_MAX, OWING, ArchiveTables, plain, time_of
from broker_edge.errors import TableStoreError
from sinks.rows import now_us
from sinks.sql_text import literal, literals
from sinks.table_query import queried
from sinks.tables import (
    ACTION_REQUESTS,
    ACTION_REQUESTS_ARCHIVE,
    ACTION_STATE,
    ACTION_TARGETS,
    ACTION_TARGETS_ARCHIVE,
    QUARANTINE,
    QUARANTINE_ARCHIVE,
    FieldTable,
)

log = logging.getLogger(__name__)

ACTIONS_MAX, REQUESTS_MAX = 500, 500
"""Actions, or requests, in one statement: one commit moves those of many small actions."""
_QUARANTINE_ROWS = 1_000
"""Rows of quarantine have the payload, of up to 256 KiB."""
_KEY = list(ACTION_TARGETS.key)
_STATE, _TARGETS = ACTION_STATE.name, ACTION_TARGETS.name


def _over(before_us: int) -> str:
    return f"s.phase IN ('ENDED', 'REFUSED') AND s.ended_at <= {time_of(before_us)}"


class _Moving:
    """Copies the rows of a condition, compares them, and deletes them."""

    def __init__(self, tables: ArchiveTables, live: FieldTable, old: FieldTable) -> None:
        self._tables = tables
        self._live, self._old = live.name, old.name

    def _moved(self, live: DeltaTable, where: str) -> None:
        """A delete that another writer prevents is repeated with the next part."""
        rows = self._rows(self._live, live, where)
        if not rows.num_rows:
            return
        self._copy(rows, where)
        missing = self._left(rows, self._archived(where)).num_rows
        if missing:
            raise TableStoreError(
                f"the table {self._old} lacks {missing} rows that were copied to it: nothing was deleted"
            )
        self._tables.sync()
        try:
            self._tables.delete(live, self._live, where)
        except CommitFailedError as error:
            log.info("rows of %s were archived, and are deleted with the next try: %s", self._live, str(error)[:200])
        else:
            log.info("%d rows of %s moved to %s", rows.num_rows, self._live, self._old)

    def _copy(self, rows: pa.Table, where: str) -> None:
        fresh = self._left(rows, self._archived(where))
        if fresh.num_rows:
            self._tables.append(self._old, fresh)

    def _left(self, rows: pa.Table, archived: pa.Table) -> pa.Table:
        """The rows that are not among the archived ones, in which others may be."""
        return _left(rows, archived)

    def _archived(self, where: str) -> pa.Table:
        return self._rows(self._old, self._tables.current(self._old), where)

    @staticmethod
    def _rows(name: str, table: DeltaTable, where: str) -> pa.Table:
        return plain(queried({name: table}, f"SELECT * FROM {name} WHERE {where}"))


class TargetArchive(_Moving):
    def __init__(self, tables: ArchiveTables) -> None:
        super().__init__(tables, ACTION_TARGETS, ACTION_TARGETS_ARCHIVE)

    def move(self, before_us: int, loaded: Collection[str]) -> bool:
        live = self._tables.current(self._live)
        ids, is_large = self._found(live, before_us, loaded)
        if not ids:
            return False
        self._tables.alike(self._live, self._old)
        self._mark(ids)
        where = f"action_id IN {literals(ids)}"
        if is_large:
            where += self._until(live, where)
        self._moved(live, where)
        return True

    def _found(self, live: DeltaTable, before_us: int, loaded: Collection[str]) -> tuple[list[str], bool]:
        """Actions whose targets make one part; or one with more of them, and True."""
        tables = {self._live: live, _STATE: self._tables.current(_STATE)}
        sql = (
            f"SELECT t.action_id AS action_id, count(*) AS number FROM {self._live} t "
            f"JOIN {_STATE} s ON t.action_id = s.action_id LEFT JOIN ({OWING}) o ON t.action_id = o.action_id "
            f"WHERE {_over(before_us)} AND o.action_id IS NULL "
            f"GROUP BY t.action_id ORDER BY number, t.action_id LIMIT {IDS_MAX + len(loaded)}"
        )
        found = [row for row in queried(tables, sql).to_pylist() if row["action_id"] not in loaded]
        ids, number = list[str](), 0
        for row in found[:ACTIONS_MAX]:
            number += row["number"]
            if ids and number > archive.PART_ROWS:
                return ids, False
            ids.append(row["action_id"])
        return ids, number > archive.PART_ROWS

    def _mark(self, ids: Sequence[str]) -> None:
        where = f"action_id IN {literals(ids)} AND archived_at IS NULL"
        if self._rows(_STATE, self._tables.current(_STATE), where).num_rows:
            self._tables.update(_STATE, {"archived_at": time_of(now_us())}, where)

    def _until(self, live: DeltaTable, where: str) -> str:
        """The first devices of a large action."""
        sql = f"SELECT device_id FROM {self._live} WHERE {where} ORDER BY device_id LIMIT {archive.PART_ROWS}"
        found = queried({self._live: live}, sql).column("device_id").to_pylist()
        return f" AND device_id BETWEEN {literal(min(found))} AND {literal(max(found))}" if found else ""

    def _copy(self, rows: pa.Table, where: str) -> None:
        there = _same_targets(rows, self._archived(where))
        if not there.num_rows:
            self._tables.append(self._old, rows)
        elif self._left(rows, there).num_rows:
            # Some have moved before, and have changed since.
            self._tables.put(self._old, rows)

    def _left(self, rows: pa.Table, archived: pa.Table) -> pa.Table:
        there = _same_targets(rows, archived)
        # To find out which rows differ takes twenty times as long.
        return rows.slice(0, 0) if _are_equal(rows, there) else _left(rows, there)


class RequestArchive(_Moving):
    """A request that the engine has not answered stays, and so does one about an action that does not exist."""

    def __init__(self, tables: ArchiveTables) -> None:
        super().__init__(tables, ACTION_REQUESTS, ACTION_REQUESTS_ARCHIVE)

    def move(self, before_us: int, loaded: Collection[str]) -> bool:
        live = self._tables.current(self._live)
        tables = {name: self._tables.current(name) for name in (_STATE, _TARGETS)}
        # The engine has answered those in requests_done; nothing asks for them any more.
        sql = (
            f"SELECT DISTINCT r.action_id AS action_id, r.request_id AS request_id FROM {self._live} r "
            f"JOIN {_STATE} s ON r.action_id = s.action_id LEFT JOIN ({OWING}) o ON r.action_id = o.action_id "
            f"WHERE {_over(before_us)} AND o.action_id IS NULL AND array_has(s.requests_done, r.request_id) "
            f"AND (r.at IS NULL OR r.at <= {time_of(before_us)}) LIMIT {IDS_MAX + len(loaded)}"
        )
        found = queried({self._live: live, **tables}, sql).to_pylist()
        due = sorted((row["action_id"], row["request_id"]) for row in found if row["action_id"] not in loaded)
        if not due:
            return False
        self._tables.alike(self._live, self._old)
        by_action: dict[str, list[str]] = {}
        for action_id, request_id in due[:REQUESTS_MAX]:
            by_action.setdefault(action_id, []).append(request_id)
        each = (f"(action_id = {literal(id_)} AND request_id IN {literals(ids)})" for id_, ids in by_action.items())
        self._moved(live, " OR ".join(each))
        return True


class QuarantineArchive(_Moving):
    """By age alone: a row of quarantine belongs to a record, not to an action. Rows of other jobs stay."""

    def __init__(self, tables: ArchiveTables) -> None:
        super().__init__(tables, QUARANTINE, QUARANTINE_ARCHIVE)

    def move(self, before_us: int, loaded: Collection[str]) -> bool:
        live = self._tables.current(self._live)
        where = f"pipeline IN ('actions', 'status') AND quarantined_at <= {time_of(before_us)}"
        sql = f"SELECT quarantined_at FROM {self._live} WHERE {where} ORDER BY quarantined_at LIMIT {_QUARANTINE_ROWS}"
        found = queried({self._live: live}, sql).column("quarantined_at").cast(pa.timestamp("us", "UTC"))
        if not len(found):
            return False
        self._tables.alike(self._live, self._old)
        until_us = max(found.cast(pa.int64()).to_pylist())
        self._moved(live, f"pipeline IN ('actions', 'status') AND quarantined_at <= {time_of(until_us)}")
        return True


def _same_targets(rows: pa.Table, archived: pa.Table) -> pa.Table:
    """The archived rows of the same targets as the rows."""
    if not archived.num_rows:
        return archived
    places = archived.select(_KEY).append_column("place", pa.array(range(archived.num_rows), pa.int64()))
    found = places.join(rows.select(_KEY), _KEY, join_type="left semi")
    return archived.take(found.column("place").combine_chunks())


def _are_equal(rows: pa.Table, archived: pa.Table) -> bool:
    """Whether both have the same targets with the same content."""
    if rows.num_rows != archived.num_rows:
        return False
    order = [(name, "ascending") for name in _KEY]
    one, other = (table.select(rows.column_names).take(pc.sort_indices(table, order)) for table in (rows, archived))
    return bool(one.equals(other.cast(one.schema)))


def _left(rows: pa.Table, archived: pa.Table) -> pa.Table:
    """The rows that are not among the archived ones. Of equal rows each counts."""
    names = rows.column_names
    there = Counter(map(str, archived.select(names).to_pylist()))
    left = []
    for number, row in enumerate(rows.to_pylist()):
        said = str(row)
        if there[said]:
            there[said] -= 1
        else:
            left.append(number)
    return rows.take(pa.array(left, pa.int64()))
