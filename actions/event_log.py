"""Appends to `action_events` and `quarantine`, each batch of a stream once, through deltalake.

Delta remembers the newest batch of events per query and skips batches that are not newer. Rows of quarantine are
identified by the log position of their record. Like the engine's store this writes tables by path; on Unity Catalog the
same two appends would go through Spark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from broker_edge.errors import SetupError
from sinks.conflicts import committed
from sinks.few_rows import writer_properties
from sinks.rows import arrow_of, rows_of
from sinks.sql_text import near
from sinks.store import StoreAccess
from sinks.tables import (
    ACTION_EVENTS,
    ACTION_EVENTS_ARCHIVE,
    QUARANTINE,
    QUARANTINE_ARCHIVE,
    FieldTable,
    update_by_path,
    uri_of,
)

Row = Mapping[str, Any]

_PLACE = ("log_id", "partition", "offset", "epoch")


class EventLog:
    """The two tables under `root`. Raises SetupError if they do not exist. A copy that is sent to another process opens
    them there when it first needs them, with the secrets of `access` as they are there."""

    def __init__(self, root: Path | str, *, access: StoreAccess | None = None) -> None:
        self._root, self._access = root, access or StoreAccess()
        self._opened: tuple[DeltaTable, DeltaTable] | None = self._open()

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root, "_access": self._access, "_opened": None}

    def _open(self) -> tuple[DeltaTable, DeltaTable]:
        options = self._access.deltalake() or None
        try:
            events = DeltaTable(uri_of(self._root, ACTION_EVENTS.name), storage_options=options)
            quarantine = DeltaTable(uri_of(self._root, QUARANTINE.name), storage_options=options)
            update_by_path(events, ACTION_EVENTS)
        except DeltaError as error:
            make = f"sinks.tables.create_by_path({str(self._root)!r})"
            raise SetupError(f"the tables of actions are not under {self._root}: make them with {make}") from error
        return events, quarantine

    @property
    def _tables(self) -> tuple[DeltaTable, DeltaTable]:
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    @property
    def _events(self) -> DeltaTable:
        return self._tables[0]

    @property
    def _quarantine(self) -> DeltaTable:
        return self._tables[1]

    def append(self, events: Sequence[Row], quarantine: Sequence[Row], *, query_id: str, batch_id: int) -> None:
        """Appends both or, after a crash, the rest. Quarantine goes first, because `places` only considers the events.

        Raises one of `halving.CONTENT_ERRORS` for a row that a table cannot store. Some rows may then already be in
        `quarantine`; passing them again is harmless.
        """
        values = arrow_of(events, ACTION_EVENTS)
        fresh = self._fresh(quarantine)
        if fresh:
            # By position and not by batch: an older version may have written only some of the rows that this one finds.
            self._append(self._quarantine, arrow_of(fresh, QUARANTINE), f"batch {batch_id} of {QUARANTINE.name}")
        if events:
            self._append_once(self._events, values, f"{query_id}:events", batch_id)

    def try_out(self, events: Sequence[Row], quarantine: Sequence[Row]) -> None:
        """Raises what `append` would raise for the content of these rows, without changing the tables."""
        with TemporaryDirectory(prefix="headwater-try-") as folder:
            for rows, kind in ((events, ACTION_EVENTS), (quarantine, QUARANTINE)):
                if rows:
                    write_deltalake(str(Path(folder) / kind.name), arrow_of(rows, kind))

    def places(self) -> dict[str, dict[str, list[int]]]:
        """Where a stream with an empty checkpoint resumes: `{log id: {partition: [next offset, epoch before it]}}`."""
        # Ordered by epoch first: if a log was truncated and rewritten, an offset counts for its newer record, and the
        # stream must not resume at a higher offset of the older epoch.
        sql = (
            'SELECT log_id, "partition", max(epoch) AS epoch, last_value("offset" ORDER BY epoch, "offset") AS last '
            "FROM e WHERE source <> 'engine' AND log_id IS NOT NULL AND \"partition\" IS NOT NULL "
            'AND "offset" IS NOT NULL GROUP BY log_id, "partition"'
        )
        found: dict[str, dict[str, list[int]]] = {}
        # The live table first: a row that moves after this read is then in the archive.
        tables = [self._events, *self._archive(ACTION_EVENTS_ARCHIVE)]
        newest: dict[tuple[str, int], tuple[int, int]] = {}
        for row in (row for table in tables for row in self._query(table, sql)):
            place, at = (row["log_id"], row["partition"]), (row["epoch"] or 0, row["last"])
            newest[place] = max(newest.get(place, at), at)
        for (log_id, partition), (epoch, last) in newest.items():
            found.setdefault(log_id, {})[str(partition)] = [last + 1, epoch]
        return found

    def _archive(self, table: FieldTable) -> list[DeltaTable]:
        """This archive, if there is one: the newest record of a partition, or one that is read again, may be in it."""
        uri, options = uri_of(self._root, table.name), self._access.deltalake() or None
        is_there = DeltaTable.is_deltatable(uri, storage_options=options)
        return [DeltaTable(uri, storage_options=options)] if is_there else []

    def _append_once(self, table: DeltaTable, values: pa.Table, app_id: str, version: int) -> None:
        def write() -> None:
            table.update_incremental()
            newest = table.transaction_version(app_id)
            if newest is not None and newest >= version:
                return
            properties = CommitProperties(app_transactions=[Transaction(app_id, version)])
            how = writer_properties(table, values)
            write_deltalake(table, values, mode="append", commit_properties=properties, writer_properties=how)

        committed(write, f"batch {version} of {ACTION_EVENTS.name}")

    @staticmethod
    def _append(table: DeltaTable, values: pa.Table, what: str) -> None:
        def write() -> None:
            table.update_incremental()
            write_deltalake(table, values, mode="append", writer_properties=writer_properties(table, values))

        committed(write, what)

    def _fresh(self, rows: Sequence[Row]) -> list[Row]:
        """Rows whose record is not in the table yet: a batch may be replayed, or read again with another checkpoint."""
        if not rows:
            return []
        where = near(((row["log_id"], row["partition"], row["offset"]) for row in rows), pipeline="status")
        sql = f'SELECT log_id, "partition", "offset", epoch FROM e WHERE {where}'
        # The live table first: a row that moves after this read is then in the archive.
        tables = [self._quarantine, *self._archive(QUARANTINE_ARCHIVE)]
        known = {tuple(row.values()) for table in tables for row in self._query(table, sql)}
        return [row for row in rows if tuple(row[name] for name in _PLACE) not in known]

    @staticmethod
    def _query(table: DeltaTable, sql: str) -> list[dict[str, Any]]:
        table.update_incremental()
        return list(rows_of(pa.table(QueryBuilder().register("e", table).execute(sql).read_all())))
