"""How the action engine commits to its Delta tables: by key, with its number, on the newest version.

Each commit contains the number of the engine (`actions.fence`) and the marks of what has been read. A commit that
conflicts with another writer, such as compaction, is repeated on the newest version, unless that writer is a newer
engine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from actions.fence import ENGINE, Fence, number_of, numbered
from broker_edge.errors import TableStoreError
from broker_edge.sync import sync_file_system
from sinks.conflicts import committed
from sinks.few_rows import writer_properties
from sinks.sql_text import literals
from sinks.tables import (
    ACTION_EVENTS_ARCHIVE,
    ACTION_JOURNAL,
    ACTION_REQUESTS_ARCHIVE,
    ACTION_TARGETS_ARCHIVE,
    BROKER_LOGS,
    QUARANTINE_ARCHIVE,
    TABLES,
)

log = logging.getLogger(__name__)

ARCHIVES: Final = (ACTION_EVENTS_ARCHIVE, ACTION_TARGETS_ARCHIVE, ACTION_REQUESTS_ARCHIVE, QUARANTINE_ARCHIVE)
WRITTEN: Final = (
    *("action_targets", ACTION_JOURNAL.name),
    *("action_state", "device_state", "action_events", "quarantine", "action_requests"),
    *(table.name for table in ARCHIVES),
    BROKER_LOGS.name,
)
"""The first one decides which engine is the newest. The journal is claimed before `action_state`, so a start that was
cut short does not look like an engine that has no journal."""
NO_MARKS: Final[Mapping[str, int]] = {}
INPUTS: Final = ("actions", "requests", "reports")
"""Marks: up to which version these tables have been read."""
_MARKED = ("device_state", "action_targets", "action_state", "action_journal")
_APP = "headwater-actions"
_PRUNE_BY_MAX = 100


class TableWriter:
    """`tables` are the open tables by name, which the owner of this object reads too. `synced` is their local folder,
    if they should be complete after a power cut."""

    def __init__(self, root: Path | str, tables: Mapping[str, DeltaTable], *, synced: Path | None) -> None:
        self._root, self._tables, self._synced = root, tables, synced
        self._fence = Fence(root, WRITTEN)
        self._recorded: dict[tuple[str, str], int] = {}
        """By table and mark: its value."""

    def claim(self) -> None:
        self._fence.claim(self.current, self._claimed)
        self._recorded.clear()

    def _claimed(self, name: str, table: DeltaTable, number: int) -> bool:
        """`actions.fence.Claimed`. If an older release, which has no journal, has gone on after an engine was killed,
        the changes in the journal are dropped: they are older than what it wrote. It has read from the marks of the
        other tables on, and these count from now on, in the same commit."""
        if name != ACTION_JOURNAL.name or number_of(self.current("action_state")) <= number_of(table):
            return numbered(name, table, number)
        if not table.file_uris():
            return numbered(name, table, number)
        tables = [self.current(one) for one in _MARKED if one != name]
        marks = {mark: max(mark_of(one, mark) for one in tables) for mark in INPUTS}
        transactions = [Transaction(f"{_APP}:{mark}", version) for mark, version in marks.items()]
        transactions.append(Transaction(ENGINE, number))
        try:
            table.delete(commit_properties=CommitProperties(app_transactions=transactions, max_commit_retries=0))
        except CommitFailedError:
            return False
        log.warning(
            "an older release has written to the tables under %s while %s had changes: it has decided them itself, and "
            "they are dropped",
            *(self._root, name),
        )
        return True

    def mark(self, name: str) -> int:
        """The highest value of a mark in the tables that have marks, as they were last read; -1 if none has it."""
        found = {table: mark_of(self._tables[table], name) for table in _MARKED}
        self._recorded |= {(table, name): value for table, value in found.items()}
        return max(found.values())

    def current(self, name: str) -> DeltaTable:
        """The table at its newest version."""
        table = self._tables[name]
        try:
            table.update_incremental()
        except DeltaError as error:
            raise TableStoreError(f"the table {name} under {self._root} cannot be read: {error}") from error
        return table

    def refuse_if_fenced(self) -> None:
        """Raises EngineFencedError if a newer engine has claimed the tables."""
        self._fence.require(self.current(WRITTEN[0]), WRITTEN[0])

    def sync(self) -> None:
        """Returns when the commits so far are on disk, if they should be complete after a power cut."""
        if self._synced is not None:
            sync_file_system(self._synced)

    def append(self, name: str, rows: pa.Table, marks: Mapping[str, int] = NO_MARKS) -> None:
        properties = CommitProperties(app_transactions=self._transactions(name, marks))

        def write(table: DeltaTable) -> None:
            how = writer_properties(table, rows)
            write_deltalake(table, rows, mode="append", commit_properties=properties, writer_properties=how)

        self._committed(name, write)

    def add(self, name: str, rows: pa.Table, marks: Mapping[str, int] = NO_MARKS) -> None:
        """Appends rows whose keys the table does not have, which takes a fraction of the time of a MERGE.

        Appends to exactly the version that was read, because any other commit may be that of an engine that takes over.
        After a conflict it merges: a store that answers late may have made the commit."""
        transactions = self._transactions(name, marks)
        merge = self._merging(name, rows, transactions)
        is_first = True

        def write(table: DeltaTable) -> None:
            nonlocal is_first
            if is_first:
                is_first = False
                once = CommitProperties(app_transactions=transactions, max_commit_retries=0)
                write_deltalake(table, rows, mode="append", commit_properties=once)
            else:
                merge(table)

        self._committed(name, write)

    def merge(self, name: str, rows: pa.Table, marks: Mapping[str, int] = NO_MARKS) -> None:
        """Replaces the rows with these keys, and inserts those that are missing."""
        self._committed(name, self._merging(name, rows, self._transactions(name, marks)))

    def update(self, name: str, values: Mapping[str, str], where: str) -> None:
        """Sets columns to SQL expressions."""
        properties = CommitProperties(app_transactions=self._transactions(name, {}))

        def write(table: DeltaTable) -> None:
            table.update(updates=dict(values), predicate=where, commit_properties=properties)

        self._committed(name, write)

    def alike(self, name: str, archive: str) -> None:
        """Gives the archive the columns that somebody has added to the table."""
        there = self.current(archive)
        known = {field.name for field in there.schema().fields}
        added = [field for field in self.current(name).schema().fields if field.name not in known]
        if added:
            there.alter.add_columns(added)

    def delete(self, table: DeltaTable, name: str, where: str) -> None:
        """Deletes from this version of the table. Raises CommitFailedError without another try."""
        self._fence.require(table, name)
        table.delete(where, commit_properties=CommitProperties(app_transactions=self._transactions(name, {})))
        self._fence.note_commit(table, name)

    def clear(self, name: str) -> None:
        """Deletes all rows. Only the log of the table is written."""
        properties = CommitProperties(app_transactions=self._transactions(name, {}))
        self._committed(name, lambda table: table.delete(commit_properties=properties))

    def _merging(self, name: str, rows: pa.Table, transactions: list[Transaction]) -> Callable[[DeltaTable], None]:
        key = TABLES[name].key
        properties = CommitProperties(app_transactions=transactions)
        on = " AND ".join(f"t.{column} = s.{column}" for column in key)
        ids = sorted(set(rows.column(key[0]).to_pylist()))
        if len(ids) <= _PRUNE_BY_MAX:
            # With the ids written out, files of other actions are skipped, so old actions do not slow a tick down.
            on += f" AND t.{key[0]} IN {literals(ids)}"

        def write(table: DeltaTable) -> None:
            merge = table.merge(rows, predicate=on, source_alias="s", target_alias="t", commit_properties=properties)
            merge.when_matched_update_all().when_not_matched_insert_all().execute()

        return write

    def _committed(self, name: str, write: Callable[[DeltaTable], object]) -> None:
        """Writes to the last read version of the table. If another commit (such as compaction) came first, retries on
        the newest version, unless that commit was made by another engine."""
        tries = 0

        def again() -> None:
            nonlocal tries
            tries += 1
            if tries > 1:
                self.refuse_if_fenced()
                self.current(name)
            table = self._tables[name]
            self._fence.require(table, name)
            write(table)
            self._fence.note_commit(table, name)

        committed(again, f"a write to {name}")

    def _transactions(self, name: str, marks: Mapping[str, int]) -> list[Transaction]:
        """That of the engine, and marks that have moved. A mark of a table never decreases."""
        moved = {mark: version for mark, version in marks.items() if version > self._recorded.get((name, mark), -1)}
        self._recorded |= {(name, mark): version for mark, version in moved.items()}
        return [self._fence.transaction(), *(Transaction(f"{_APP}:{mark}", version) for mark, version in moved.items())]


def mark_of(table: DeltaTable, name: str) -> int:
    """The value of a mark in this version of a table; -1 if it has none."""
    try:
        version = table.transaction_version(f"{_APP}:{name}")
    except DeltaError:
        return -1
    return -1 if version is None else int(version)
