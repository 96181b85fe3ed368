"""What became of a record of the log in the tables: its row in bronze and in silver, the sentence of its quarantine,
the range in which its offset was lost, and the action that it was sent for or reported about.

No payload is read, and no column that was made of one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from actions.history import History
from broker_edge.errors import SetupError
from sinks.folder import TableFolder
from sinks.rows import rows_of
from sinks.sql_text import literal
from sinks.table_query import queried
from sinks.tables import BRONZE, INGEST_GAPS, QUARANTINE, QUARANTINE_ARCHIVE, FieldTable, uri_of

Rows = list[dict[str, Any]]

ROWS_MAX = 20
"""Of each table. A record has one row in bronze, in a log that never went back."""
SILVER_MAX = 100
_FILES_MAX = 20
"""Files whose statistics admit the record, which are looked into for its commit."""
_COMMITS_MAX = 100
"""Commits that are looked at, from the time of the file on: a batch may wait before it is committed."""
_SECOND_MS = 1_000
_SILVER = "silver_"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record is in the logs of all brokers. `partition` is the number."""

    log_id: str
    partition: int
    offset: int

    def where(self) -> str:
        """The condition in SQL that a row is of this record."""
        return f'log_id = {literal(self.log_id)} AND "partition" = {self.partition:d} AND "offset" = {self.offset:d}'


class RecordRows:
    """`actions` reads the tables of actions, `beside_silver` those that the silver job writes, `silver` is their folder
    and `bronze` that of bronze. `of_tenant` is the condition in SQL that a row of them is to be shown."""

    def __init__(
        self, actions: History, beside_silver: History, silver: TableFolder, bronze: TableFolder, of_tenant: str
    ) -> None:
        self._actions, self._beside = actions, beside_silver
        self._silver_folder, self._bronze, self._of_tenant = silver, bronze, of_tenant

    def find(self, place: Place) -> dict[str, Any]:
        """What docs/console.md calls `tables`. Raises DataFusion's errors, which have no class."""
        where = f"{place.where()} AND {self._of_tenant}"
        lost = (
            f'log_id = {literal(place.log_id)} AND "partition" = {place.partition:d} AND start <= {place.offset:d} '
            f'AND ("end" IS NULL OR "end" > {place.offset:d}) AND {self._of_tenant}'
        )
        beside, actions = self._beside, self._actions

        def refused(of: History, table: FieldTable) -> Rows | None:
            columns = "pipeline, reason, quarantined_at AS at_us"
            sql = f"SELECT {columns} FROM {table.name} WHERE {where} LIMIT {ROWS_MAX}"
            return _there(lambda: of.query(table.name, sql))

        gaps = (
            'SELECT start, "end", reason, consumer_group, reported_at AS at_us FROM ingest_gaps '
            f"WHERE {lost} LIMIT {ROWS_MAX}"
        )
        targets = f"SELECT action_id, device_id, state, message, updated_at AS at_us FROM targets LIMIT {ROWS_MAX}"
        reported = "source, action_id, device_id, state, message, recorded_at AS at_us"
        events = f"SELECT {reported} FROM events LIMIT {ROWS_MAX}"
        quarantine = refused(beside, QUARANTINE)
        if quarantine is not None:
            # The engine moves old rows, to where its own tables are.
            quarantine = [*quarantine, *(refused(actions, QUARANTINE_ARCHIVE) or [])][:ROWS_MAX]
        return {
            "bronze": self._record(
                BRONZE.name, self._bronze, place, 'topic, client_id, epoch, "timestamp" AS appended_us'
            ),
            "silver": self._silver(place),
            "quarantine": quarantine,
            "lost": _there(lambda: beside.query(INGEST_GAPS.name, gaps)),
            "commands": _there(lambda: actions.targets(where, targets)),
            "reports": _there(lambda: list(actions.each_event(where, events))),
        }

    def _record(self, name: str, folder: TableFolder, place: Place, columns: str) -> dict[str, Any] | None:
        """The rows in one table of records, and the commit of the file that has them; None without the table."""
        try:
            table = folder.table()
        except TableNotFoundError:
            return None
        sql = f"SELECT {columns} FROM found WHERE {place.where()} AND {self._of_tenant} LIMIT {ROWS_MAX}"
        rows = list(rows_of(queried({"found": table}, sql)))
        commit = _commit(folder, table, place) if rows else None
        return {"table": name, "version": table.version(), "rows": rows, "commit": commit}

    def _silver(self, place: Place) -> Rows:
        """Of each table of silver that has the record."""
        silver = self._silver_folder
        names = [name for name in silver.folders() if name.startswith(_SILVER)][:SILVER_MAX]
        folders = {name: TableFolder.of(uri_of(silver.uri, name), silver.access) for name in names}
        columns = "device_id, event_time AS event_us, epoch"
        found = (self._record(name, folder, place, columns) for name, folder in folders.items())
        return [one for one in found if one is not None and one["rows"]]


def _there(ask: Callable[[], Rows]) -> Rows | None:
    """The answer, or None without the table."""
    try:
        return ask()
    except SetupError:
        return None


def _commit(folder: TableFolder, table: DeltaTable, place: Place) -> dict[str, Any] | None:
    """The commit that added the file with the record; None if the table's log does not go back so far."""
    for path, modified_ms in _files(table, place):
        if _has(folder, path, place):
            return _adding(folder, table.version(), path, modified_ms)
    return None


def _files(table: DeltaTable, place: Place) -> list[tuple[str, int]]:
    """The files whose statistics admit the record, the newest first, with their time in milliseconds."""
    added = pa.table(table.get_add_actions(flatten=True))
    there = set(added.column_names)
    wanted = {"partition": place.partition, "offset": place.offset}
    columns = [f"{side}.{name}" for name in wanted for side in ("min", "max") if f"{side}.{name}" in there]
    found = []
    for row in added.select(["path", "modification_time", *columns]).to_pylist():
        if all(_admits(row.get(f"min.{name}"), value, row.get(f"max.{name}")) for name, value in wanted.items()):
            found.append((str(row["path"]), _milliseconds(row["modification_time"])))
    return sorted(found, key=lambda one: -one[1])[:_FILES_MAX]


def _admits(least: int | None, value: int, most: int | None) -> bool:
    return (least is None or least <= value) and (most is None or value <= most)


def _milliseconds(modified: Any) -> int:
    return int(modified.timestamp() * 1_000) if hasattr(modified, "timestamp") else int(modified)


def _has(folder: TableFolder, path: str, place: Place) -> bool:
    wanted = {"partition": place.partition, "offset": place.offset, "log_id": place.log_id}
    try:
        # Without pyarrow.dataset, which loads pandas.
        with folder.open_to_read(unquote(path)) as file:
            for batch in pq.ParquetFile(file).iter_batches(columns=list(wanted)):
                rows = batch
                for name, value in wanted.items():
                    rows = rows.filter(pc.equal(rows[name], pa.scalar(value, rows[name].type)))
                if rows.num_rows:
                    return True
    except FileNotFoundError:
        pass  # A compaction has replaced it, and the old file is gone by now.
    return False


def _adding(folder: TableFolder, newest: int, path: str, modified_ms: int) -> dict[str, Any] | None:
    """The commit that added a file, searched by its time: versions and times of commits grow together."""

    def is_before(version: int) -> bool:
        modified_s = folder.modified_s(_commit_name(version))
        # Commits that the table has forgotten are the oldest ones.
        return modified_s is None or modified_s * 1_000 < modified_ms - _SECOND_MS

    low, high = 0, newest
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if is_before(middle) else (low, middle)
    for version in range(low, min(newest, low + _COMMITS_MAX) + 1):
        content = folder.read(_commit_name(version))
        if content is None:
            continue
        actions = [json.loads(line) for line in content.splitlines() if line]
        if any(unquote(one["add"]["path"]) == unquote(path) for one in actions if "add" in one):
            told: Mapping[str, Any] = next((one["commitInfo"] for one in actions if "commitInfo" in one), {})
            modified_s = folder.modified_s(_commit_name(version))
            if modified_s is None:
                return None
            return {"version": version, "at_us": int(modified_s * 1e6), "operation": told.get("operation")}
    return None


def _commit_name(version: int) -> str:
    return f"_delta_log/{version:020}.json"
