"""Appends to `action_events` and `quarantine`, each batch of a stream once, through deltalake.

Delta remembers the newest batch per query and table; what is not newer is skipped. Like the engine's store this writes
tables by path; on Unity Catalog the same two appends would go through Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from pipelines.action_rows import arrow_of, rows_of
from pipelines.errors import SetupError
from pipelines.tables import ACTION_EVENTS, QUARANTINE, Table, add_missing_columns, uri_of
from sinks.conflicts import committed

Row = Mapping[str, Any]


class EventLog:
    """The two tables under `root`. Raises SetupError when they are not there."""

    def __init__(self, root: Path | str, *, storage_options: Mapping[str, str] | None = None) -> None:
        options = dict(storage_options) if storage_options else None
        try:
            self._events = DeltaTable(uri_of(root, ACTION_EVENTS.name), storage_options=options)
            self._quarantine = DeltaTable(uri_of(root, QUARANTINE.name), storage_options=options)
            add_missing_columns(self._events, ACTION_EVENTS)
        except DeltaError as error:
            make = f"pipelines.tables.create_by_path({str(root)!r})"
            raise SetupError(f"the tables of actions are not under {root}; make them with {make}") from error

    def append(self, events: Sequence[Row], quarantine: Sequence[Row], *, query_id: str, batch_id: int) -> None:
        """Both or, after a crash, the rest. Quarantine goes first: `places` looks at the events only."""
        if quarantine:
            self._append_once(self._quarantine, QUARANTINE, self._fresh(quarantine), f"{query_id}:quarantine", batch_id)
        if events:
            self._append_once(self._events, ACTION_EVENTS, events, f"{query_id}:events", batch_id)

    def places(self) -> dict[str, dict[str, list[int]]]:
        """Where a stream with an empty checkpoint goes on: `{log id: {partition: [next offset, epoch before it]}}`."""
        # Ordered by epoch first: where a log was cut and written again, an offset counts for its newer record, and a
        # higher one of the older epoch is no place to go on at.
        sql = (
            'SELECT log_id, "partition", max(epoch) AS epoch, last_value("offset" ORDER BY epoch, "offset") AS last '
            "FROM e WHERE source <> 'engine' GROUP BY log_id, \"partition\""
        )
        found: dict[str, dict[str, list[int]]] = {}
        for row in self._query(self._events, sql):
            found.setdefault(row["log_id"], {})[str(row["partition"])] = [row["last"] + 1, row["epoch"]]
        return found

    def _append_once(self, table: DeltaTable, kind: Table, rows: Sequence[Row], app_id: str, version: int) -> None:
        values = arrow_of(rows, kind)

        def write() -> None:
            table.update_incremental()
            newest = table.transaction_version(app_id)
            if (newest is not None and newest >= version) or not rows:
                return
            properties = CommitProperties(app_transactions=[Transaction(app_id, version)])
            write_deltalake(table, values, mode="append", commit_properties=properties)

        committed(write, f"batch {version} of {kind.name}")

    def _fresh(self, rows: Sequence[Row]) -> list[Row]:
        """Rows whose record is not there yet: another checkpoint may read them a second time."""
        sql = 'SELECT log_id, "partition", "offset", epoch FROM e WHERE pipeline = \'status\''
        known = {tuple(row.values()) for row in self._query(self._quarantine, sql)}
        names = ("log_id", "partition", "offset", "epoch")
        return [row for row in rows if tuple(row[name] for name in names) not in known]

    @staticmethod
    def _query(table: DeltaTable, sql: str) -> list[dict[str, Any]]:
        table.update_incremental()
        return list(rows_of(pa.table(QueryBuilder().register("e", table).execute(sql).read_all())))
