"""Reads rows of the action tables wherever they are: in the table, or in its archive.

A table is opened before its archive. So a row that moves meanwhile is in one of the two versions, or in both, never in
neither. A target of the table counts before the one in the archive, which is older.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from actions.journal_overlay import FreshTable
from actions.kept_overlay import KeptTable, KeptTables
from broker_edge.errors import SetupError
from sinks.rows import rows_of
from sinks.store import StoreAccess
from sinks.table_query import queried
from sinks.tables import (
    ACTION_EVENTS,
    ACTION_EVENTS_ARCHIVE,
    ACTION_REQUESTS,
    ACTION_REQUESTS_ARCHIVE,
    ACTION_TARGETS,
    ACTION_TARGETS_ARCHIVE,
    BROKER_LOGS,
    uri_of,
)

TARGETS, EVENTS = "targets", "events"
"""The names in SQL for the rows of both tables."""


class History:
    """The tables under `root`. Raises SetupError for one that does not exist; tables of an older version have no
    archives."""

    def __init__(self, root: Path | str, access: StoreAccess, kept: KeptTables | None = None) -> None:
        """`kept` is for programs that ask again and again."""
        self._root, self._access, self._kept = root, access, kept

    def query(self, name: str, sql: str) -> list[dict[str, Any]]:
        """The rows of `sql`, which reads this table by its name."""
        return list(rows_of(self._fresh(name).select(sql)))

    def joined(self, names: Sequence[str], sql: str) -> list[dict[str, Any]]:
        """The rows of `sql`, which reads these tables by their names."""
        fresh = [self._fresh(name) for name in names]
        tables, named = dict[str, DeltaTable](), list[str]()
        for one in fresh:
            parts, beginning = one.parts()
            tables |= parts
            named += [beginning] if beginning else []
        return list(rows_of(queried(tables, f"WITH {', '.join(named)} {sql}" if named else sql)))

    def targets(self, where: str, sql: str = f"SELECT * FROM {TARGETS}") -> list[dict[str, Any]]:
        """The rows of `sql`, which reads the targets that fulfil the condition as `targets`."""
        return list(self.each_target(where, sql))

    def each_target(self, where: str, sql: str = f"SELECT * FROM {TARGETS}") -> Iterator[dict[str, Any]]:
        """The same, one after another."""
        both = (ACTION_TARGETS.name, ACTION_TARGETS_ARCHIVE.name, ("action_id", "device_id"))
        yield from self._asked(*both, where, TARGETS, sql)

    def each_event(self, where: str, sql: str) -> Iterator[dict[str, Any]]:
        """The rows of `sql`, which reads the events that fulfil the condition as `events`, one after another."""
        yield from self._asked(ACTION_EVENTS.name, ACTION_EVENTS_ARCHIVE.name, ("event_id",), where, EVENTS, sql)

    def events(self, where: str) -> list[dict[str, Any]]:
        """The events that fulfil the condition, by id, each once: a row that is just being moved is in both tables."""
        rows = self._both(ACTION_EVENTS.name, ACTION_EVENTS_ARCHIVE.name, where)
        by_id = {row["event_id"]: row for _, row in rows}
        return [by_id[event_id] for event_id in sorted(by_id)]

    def requests(self, where: str) -> list[dict[str, Any]]:
        """The requests that fulfil the condition, by time. Of a row that is in both tables one counts."""
        rows = list(self._both(ACTION_REQUESTS.name, ACTION_REQUESTS_ARCHIVE.name, where))
        found = [row for name, row in rows if name == ACTION_REQUESTS.name]
        there = Counter(map(_content, found))
        for name, row in rows:
            if name == ACTION_REQUESTS.name:
                continue
            if there[_content(row)]:
                there[_content(row)] -= 1
            else:
                found.append(row)
        return sorted(found, key=lambda row: (row["at"] or 0, row["request_id"] or ""))

    def log_owners(self) -> dict[str, str]:
        """Log id → the broker that the engine knows as its owner. Empty if no engine of this version has run."""
        if not self._exists(BROKER_LOGS.name):
            return {}
        rows = self.query(BROKER_LOGS.name, f"SELECT log_id, broker FROM {BROKER_LOGS.name}")
        return {row["log_id"]: row["broker"] for row in rows}

    def _asked(
        self, live: str, old: str, key: Sequence[str], where: str, name: str, sql: str
    ) -> Iterator[dict[str, Any]]:
        """The rows of `sql`, which reads as `name` the rows of both tables, without those of the archive whose key the
        table has."""
        fresh = self._fresh(live)
        tables, named = fresh.parts()
        both = f"SELECT * FROM {live} WHERE {where}"
        if self._exists(old):
            tables[old] = self._opened(old)
            same = " AND ".join(f"t.{column} = o.{column}" for column in key)
            newer = f"SELECT 1 FROM (SELECT * FROM {live} WHERE {where}) t WHERE {same}"
            both += f" UNION ALL BY NAME SELECT * FROM {old} o WHERE ({where}) AND NOT EXISTS ({newer})"
        yield from rows_of(queried(tables, f"WITH {named}{', ' if named else ''}{name} AS ({both}) {sql}"))

    def _both(self, live: str, old: str, where: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in (live, old):
            if name == live or self._exists(name):
                for row in self.query(name, f"SELECT * FROM {name} WHERE {where}"):
                    yield name, row

    def _exists(self, name: str) -> bool:
        return bool(DeltaTable.is_deltatable(uri_of(self._root, name), storage_options=self._access.deltalake()))

    def _fresh(self, name: str) -> FreshTable | KeptTable:
        try:
            if self._kept is not None:
                return self._kept.fresh(name)
            return FreshTable(self._root, name, self._access.deltalake())
        except DeltaError as error:
            raise self.missing(name) from error

    def _opened(self, name: str) -> DeltaTable:
        try:
            return DeltaTable(uri_of(self._root, name), storage_options=self._access.deltalake())
        except DeltaError as error:
            raise self.missing(name) from error

    def missing(self, name: str) -> SetupError:
        return SetupError(
            f"there is no table {name} under {self._root}: give the folder of the tables with --root or --config"
        )


def _content(row: dict[str, Any]) -> str:
    return str(sorted((name, str(value)) for name, value in row.items() if value is not None))
