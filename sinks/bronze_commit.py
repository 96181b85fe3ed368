"""The driver's part in writing bronze tables by path: one commit per batch, which a replay does not repeat.

The commit names the files of the batch and the transaction (query id, batch id). Delta records transactions but does
not enforce them, so this module asks the table first. If another process commits the same batch in between, the commit
fails, because two commits that set the same transaction conflict. The native sink records the same pair, so a
checkpoint can move from one writer to the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaProtocolError
from deltalake.transaction import AddAction

from broker_edge.errors import SinkError
from sinks.bronze_files import PARTITION_COLUMN, AddedFile
from sinks.folder import TableFolder
from sinks.synced_table import SyncedTable

_LOGGER = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 3
"""Attempts, each on the table's newest version. Appends conflict only with changes of the table's columns or
properties."""

BATCH_SECONDS_MAX = 12 * 3600.0
"""A batch that took longer is not committed but read again: `orphans` may have removed its files by then."""


class BronzeCommits:
    """The commits of one query to one table. Used only by the query's thread."""

    def __init__(self, folder: TableFolder, *, sync: bool = False) -> None:
        """With `sync`, which needs a local folder, a commit is on disk when `commit` returns."""
        self._folder = folder
        self._table: DeltaTable | None = None
        self._synced: SyncedTable | None = None
        if sync:
            if folder.local is None:
                raise SinkError(f"bronze.sync: {folder.uri} is an object store, which needs no sync: leave it null")
            self._synced = SyncedTable(folder.local, self._known().version())

    def has(self, query_id: str, batch_id: int) -> bool:
        """Whether the newest version of the table contains the batch."""
        version = self._latest().transaction_version(query_id)
        if version is None or version < batch_id:
            return False
        self._sync()
        return True

    def commit(self, files: Iterable[AddedFile], *, query_id: str, batch_id: int, began_s: float) -> None:
        """Adds the files to the table; does nothing without files. `began_s` is `time.monotonic()` from before the
        first file was created. Afterwards the table contains the batch, whichever process committed it.
        """
        files = list(files)
        adds = [_add_action(file) for file in files]
        if not adds:
            return
        if self._synced is not None:
            self._synced.before_commit({file.path for file in files})
        for attempt in range(COMMIT_ATTEMPTS):
            if time.monotonic() - began_s > BATCH_SECONDS_MAX:
                raise SinkError(f"batch {batch_id} took over {BATCH_SECONDS_MAX:.0f} s; it must be read again")
            if attempt and self.has(query_id, batch_id):
                _LOGGER.warning("batch %d is already in %s: another run of this query wrote it", batch_id, self._folder)
                return
            table = self._latest() if attempt else self._known()
            try:
                table.create_write_transaction(
                    adds,
                    mode="append",
                    schema=table.schema(),
                    partition_by=[PARTITION_COLUMN],
                    commit_properties=CommitProperties(app_transactions=[Transaction(query_id, batch_id)]),
                )
                self._sync()
                return
            except CommitFailedError as error:
                _LOGGER.warning("commit of batch %d to %s failed: %s", batch_id, self._folder.uri, error)
                failure = error
            except DeltaProtocolError as error:
                raise SinkError(
                    f"{self._folder.uri} has features that bronze.writer: files does not support ({error}): "
                    "use bronze.writer: spark"
                ) from error
        raise SinkError(f"batch {batch_id} could not be committed to {self._folder.uri}: {failure}") from failure

    def _sync(self) -> None:
        if self._synced is not None:
            # A commit does not move the open table to its version.
            self._synced.after_commit(self._latest().version())

    def _known(self) -> DeltaTable:
        if self._table is None:
            self._table = self._folder.table()
        return self._table

    def _latest(self) -> DeltaTable:
        table = self._known()
        table.update_incremental()
        return table


def _add_action(file: AddedFile) -> AddAction:
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values={PARTITION_COLUMN: file.day},
        modification_time=file.modified_ms,
        data_change=True,
        stats=file.statistics,
    )
