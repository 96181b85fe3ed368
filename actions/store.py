"""How the action engine reads and writes its Delta tables: `TableStore` without a JVM.

The store handles tables, versions and commits, and makes no decisions. State is written by key with MERGE. The read
versions are recorded with it as Delta transactions (one id per input table), so a restart reads again exactly what was
not settled. Reading a record twice is harmless: the engine drops repeats by their log position.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from actions.archive import Archive, ArchiveWriter, EventArchive
from actions.archive_ended import QuarantineArchive, RequestArchive, TargetArchive
from actions.columns import device_states_in, reports_in
from actions.device_table import ReadDevices
from actions.engine import (
    Action,
    ActionState,
    Artifacts,
    Decision,
    Device,
    DeviceState,
    Quarantined,
    Target,
)
from actions.journal import Journal
from actions.loading import Loading, is_much
from actions.rows import (
    action_of,
    artifact_of,
    device_states_table,
    events_table,
    quarantine_table,
    request_of,
    states_table,
    targets_table,
)
from actions.table_reader import DeviceRows, TableReader
from actions.table_store import NOTHING, Loaded, News, Versions
from actions.table_writer import ARCHIVES, INPUTS, NO_MARKS, WRITTEN, TableWriter
from broker_edge.errors import SetupError, TableStoreError
from sinks.rows import arrow_of, now_us
from sinks.sql_text import near
from sinks.tables import (
    ACTION_JOURNAL,
    BROKER_LOGS,
    DEVICE_STATE,
    QUARANTINE_ARCHIVE,
    SELECTORS,
    TABLES,
    create_by_path,
    update_by_path,
    uri_of,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_REPORTS_MAX = 100_000
"""Approximate number of rows of `action_events` per read: while the engine was down, devices may have reported more
than fits into memory. The next read continues."""
_LOOK_EVERY_S = 10.0
"""How often an engine that writes nothing looks for another one where a look is a request."""
_LATER = (*ARCHIVES, ACTION_JOURNAL, BROKER_LOGS)
_OPTIONAL = (*(table.name for table in _LATER), SELECTORS.name)
"""Tables that older versions did not have."""


class DeltalakeStore:
    """Delta tables under `root` by path, through deltalake: takes milliseconds where a MERGE in Spark takes seconds.

    Raises SetupError if a table is missing, TableStoreError if a newer engine has claimed the tables.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        storage_options: Mapping[str, str] | None = None,
        synced: Path | None = None,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`synced` is the local folder of the tables, if they should be complete after a power cut. `steady_s` is a
        clock that nobody can set; it tells when changes of large actions are merged."""
        self._root, self._synced = root, synced
        self._folder = None if "://" in str(root) else Path(root)
        self._options = dict(storage_options) if storage_options else None
        self._tables = {name: self._open(name) for name in TABLES if name not in _OPTIONAL}
        # Tables of an older version have no archives, no journal and no owners of logs.
        create_by_path(root, storage_options=self._options, tables=_LATER)
        self._tables |= {table.name: self._open(table.name) for table in _LATER}
        for name in WRITTEN:
            update_by_path(self._tables[name], TABLES[name])
        self._writer = TableWriter(root, self._tables, synced=synced)
        self._read = self._durable = self._marks()
        """Marks do not go beyond `_durable`, up to which the input tables are on disk for certain."""
        self._writer.sync()
        self._steady_s, self._look_from, self._has_claimed = steady_s, 0.0, False
        self._artifacts_version = -1
        self._devices = ReadDevices()
        self._reader = TableReader(root, self._writer.current, self._devices.same_id)
        self._journal = Journal(self._writer, steady_s=steady_s)
        self._loading = Loading(self._reader.streamed, self._reader.targets)
        tables = ArchiveWriter(self._writer)
        self._archive = EventArchive(tables)
        of_ended = (TargetArchive(tables), RequestArchive(tables), QuarantineArchive(tables))
        self._archives = Archive((self._archive, *of_ended))

    def claim(self) -> None:
        self._writer.claim()
        self._has_claimed = True
        # An earlier engine may have committed until now.
        self._read = self._durable = self._marks()
        self._writer.sync()
        with self._told("written"):
            self._journal.recover()

    def _marks(self) -> Versions:
        return Versions(**{name: self._writer.mark(name) for name in INPUTS})

    def running(self) -> frozenset[str]:
        tables = {name: self._current(name) for name in ("action_state", "action_targets")}
        newest = "SELECT action_id, max(updated_at) AS updated_at FROM action_targets GROUP BY action_id"
        sql = f"SELECT s.action_id FROM action_state s LEFT JOIN ({newest}) t ON s.action_id = t.action_id"
        rows = self._reader.select(tables, f"{sql} WHERE s.ended_at IS NULL OR t.updated_at > s.updated_at")
        copied = self._reader.query(
            "action_targets", "SELECT DISTINCT action_id FROM action_targets WHERE copies IS NOT NULL"
        )
        return frozenset(row["action_id"] for row in (*rows, *copied)) | self._superseding()

    def _superseding(self) -> frozenset[str]:
        """Updates that have taken devices from an update which may still get new ones."""
        tables = {name: self._current(name) for name in ("action_state", "actions")}
        begun = "FROM action_state s JOIN actions a ON a.action_id = s.action_id WHERE a.type = 'ota'"
        first = f"SELECT min(s.started_at) {begun} AND a.membership = 'dynamic' AND s.ended_at IS NULL"
        sql = f"SELECT s.action_id {begun} AND a.supersede AND s.phase = 'ENDED' AND s.started_at >= ({first})"
        return frozenset(row["action_id"] for row in self._reader.select(tables, sql))

    def load(self, action_ids: Collection[str]) -> Loaded:
        self._settle_for(action_ids)
        found, loading = self._loading.there(frozenset(action_ids)), self._loading
        definitions, states = loading.definitions(found), loading.states(found)
        self._journal.know(states)
        return Loaded(
            definitions=self._as_inserted(definitions, states),
            states=states,
            targets=loading.targets(states, found),
            said=loading.said(states, found),
        )

    def load_late(self, asked: Mapping[str, Collection[str]]) -> Loaded:
        self._settle_for(asked)
        loading = self._loading
        found = loading.states(loading.there(frozenset(asked)))
        states = tuple(row for row in found if row.phase.over and not is_much(len(asked[row.action_id]), row.targets))
        of_over = {row.action_id: asked[row.action_id] for row in states}
        return Loaded(
            definitions=tuple(loading.definitions(of_over)),
            states=states,
            targets=loading.some_targets(states, of_over),
            said=loading.some_said(of_over),
        )

    def _settle_for(self, action_ids: Collection[str]) -> None:
        """The tables must have all of an action that is loaded."""
        if self._journal.holds(action_ids):
            self.settle(now=True)

    def _as_inserted(self, found: list[Action], started: Iterable[ActionState]) -> tuple[Action, ...]:
        """The actions, with the rows from which open actions started if somebody has updated or deleted them since."""
        known = {(action.action_id, action.digest) for action in found}
        lost = {row.action_id for row in started if not row.phase.over and (row.action_id, row.digest) not in known}
        if lost:
            rows, _ = self._reader.changes("actions", -1)
            found += [action_of(row, commit_version=0) for row in rows if row["action_id"] in lost]
        return tuple(found)

    def facts(self) -> Mapping[str, DeviceState]:
        # Before everything that is loaded, so that ids of devices are there once.
        self._devices.read(self._current("devices"), DeviceRows(self._reader))
        self._keep_tenants()
        found = self._reader.values("device_state", device_states_in, where="log_id IS NOT NULL")
        return {fact.device_id: fact for fact in found}

    def owners(self) -> Mapping[str, str]:
        rows = self._reader.query(BROKER_LOGS.name, f"SELECT log_id, broker FROM {BROKER_LOGS.name}")
        return {row["log_id"]: row["broker"] for row in rows}

    def keep_owners(self, owners: Mapping[str, str]) -> None:
        at = now_us()
        rows = [{"log_id": log_id, "broker": key, "since": at} for log_id, key in sorted(owners.items())]
        with self._told("written"):
            self._writer.merge(BROKER_LOGS.name, arrow_of(rows, BROKER_LOGS))
        self._writer.sync()

    def news(self) -> News:
        self._look_for_another()
        read = self._read
        if self._synced is not None and read != self._durable:
            # Now, and not in `commit`, because a command does not wait for it here.
            self._writer.sync()
            self._durable = read
        actions, actions_read = self._reader.changes("actions", read.actions)
        for row in actions:
            if not row["action_id"]:
                log.warning("ignoring a row of the table actions without action_id: %s", row["name"])
        requests, requests_read = self._reader.changes("action_requests", read.requests)
        events, events_read = self._reader.feeds("action_events", read.reports, rows_max=_REPORTS_MAX)
        self._read = Versions(actions_read, requests_read, events_read)
        return News(
            actions=tuple(action_of(row, commit_version=row["_commit_version"]) for row in actions if row["action_id"]),
            requests={
                request_of(row, committed_us=row["_commit_timestamp"]): row["_commit_version"]
                for row in requests
                if row["request_id"]
            },
            reports=reports_in(events, self._devices.same_id),
            devices=self._changed_devices(),
            artifacts=self._changed_artifacts(),
            read=self._read,
            newest_reports=max(events_read, self._tables["action_events"].version()),
        )

    def _look_for_another(self) -> None:
        """Raises EngineFencedError if a newer engine has claimed the tables, which one that writes nothing would not
        notice. In a local folder a look costs next to nothing."""
        first = WRITTEN[0]
        if not self._has_claimed:
            return
        if self._folder is not None:
            if not self._is_behind(self._folder, first, self._tables[first].version()):
                return
        elif (now_s := self._steady_s()) < self._look_from:
            return
        else:
            self._look_from = now_s + _LOOK_EVERY_S
        self._writer.refuse_if_fenced()

    def has_changed(self) -> bool:
        read = {"actions": self._read.actions, "action_requests": self._read.requests}
        read |= {"action_events": self._read.reports}
        read |= {"devices": self._devices.version, "artifacts": self._artifacts_version}
        return self._folder is not None and any(self._is_behind(self._folder, *one) for one in read.items())

    def _is_behind(self, root: Path, name: str, read: int) -> bool:
        """Whether the table has a commit after the one that was read."""
        known = self._tables[name].version()
        return known > read or (root / name / "_delta_log" / f"{known + 1:020}.json").exists()

    def commit(
        self, decision: Decision, settled: Versions, *, new: frozenset[str] = NOTHING, is_repeatable: bool = False
    ) -> None:
        self._writer.refuse_if_fenced()
        if self._synced is not None:
            # If a power cut took a version back, another one would get its number.
            settled = Versions(*map(min, astuple(settled), astuple(self._durable)))
        with self._told("written"):
            fresh = self._not_quarantined(decision.quarantine) if decision.quarantine else ()
            if decision.events:
                self._writer.append("action_events", events_table(decision.events, recorded_us=now_us()))
            if fresh:
                self._writer.append("quarantine", quarantine_table(fresh, quarantined_us=now_us()))
            if decision.events or fresh:
                # What the rows below settle is not decided, and so not said, a second time.
                self._writer.sync()
            self._commit_rows(decision, settled, new, is_repeatable=is_repeatable)

    def _commit_rows(self, decision: Decision, settled: Versions, new: frozenset[str], *, is_repeatable: bool) -> None:
        """Writes devices, then targets, then states. A mark of what was read is in the last commit that depends on
        it."""
        by_targets = {"reports": settled.reports}
        by_states = {"actions": settled.actions, "requests": settled.requests}
        direct, gathered = self._journal.split(decision)
        if direct.device_updates:
            self._writer.merge("device_state", device_states_table(direct.device_updates))
            self._journal.count_devices()
            if direct.target_updates or direct.state_updates or gathered:
                # Nothing reads these reports again once a later commit has its mark.
                self._writer.sync()
        if direct.target_updates:
            marks = NO_MARKS if gathered else by_targets
            self._put("action_targets", targets_table, direct.target_updates, marks, new)
        if direct.state_updates:
            if direct.target_updates:
                # After a power cut, as after a kill, no row of an action may be newer than its targets.
                self._writer.sync()
            self._put("action_state", states_table, direct.state_updates, NO_MARKS if gathered else by_states, new)
        self._journal.know(decision.state_updates)
        if gathered and is_repeatable:
            self._journal.add_later(gathered)
        elif gathered:
            if direct.target_updates or direct.state_updates:
                self._writer.sync()
            self._journal.add(gathered, {**by_targets, **by_states})

    def settle(self, *, now: bool = False) -> None:
        is_due = now or self._journal.is_due()
        if not is_due and not self._journal.has_more:
            return
        self._writer.refuse_if_fenced()
        with self._told("written"):
            self._journal.merge() if is_due else self._journal.flush()

    def archive(self, before_us: int, loaded: Collection[str] = NOTHING) -> bool:
        self._writer.refuse_if_fenced()
        if self._journal.holds_others(loaded):
            # What moves must be complete. A rollout that is under way is loaded, and need not be merged for each part.
            self.settle(now=True)
        with self._told("archived"):
            return self._archives.move(before_us, loaded)

    @contextlib.contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Says whose fault it is if a table cannot be written."""
        try:
            yield
        except CommitFailedError as error:
            message = f"another program writes to the engine's tables under {self._root}: {error}"
            raise TableStoreError(message) from error
        except DeltaError as error:
            raise TableStoreError(f"a table under {self._root} cannot be {what}: {error}") from error

    # -- reading -----------------------------------------------------------------------------------------------------

    def _open(self, name: str) -> DeltaTable:
        try:
            return DeltaTable(uri_of(self._root, name), storage_options=self._options)
        except DeltaError as error:
            make = f"sinks.tables.create_by_path({str(self._root)!r})"
            raise SetupError(f"there is no table {name} under {self._root}: make the tables with {make}") from error

    def _current(self, name: str) -> DeltaTable:
        return self._writer.current(name)

    def _changed_devices(self) -> Mapping[str, Device] | None:
        found = self._devices.changed(self._current("devices"), DeviceRows(self._reader))
        self._keep_tenants()
        return found

    def _keep_tenants(self) -> None:
        """Stores which tenant a contested device stays with."""
        if self._has_claimed and (kept := self._devices.unkept):
            at = now_us()
            rows = [{"device_id": id_, "tenant": tenant, "updated_at": at} for id_, tenant in sorted(kept.items())]
            with self._told("written"):
                self._writer.merge(DEVICE_STATE.name, arrow_of(rows, DEVICE_STATE))
            kept.clear()

    def _changed_artifacts(self) -> Artifacts | None:
        table = self._current("artifacts")
        if table.version() == self._artifacts_version:
            return None
        self._artifacts_version = table.version()
        found = [
            artifact_of(row) for row in self._reader.query("artifacts", "SELECT * FROM artifacts ORDER BY created_at")
        ]
        return {artifact.key: artifact for artifact in reversed(found)}  # Of two rows with one name the first counts.

    def _not_quarantined(self, entries: Iterable[Quarantined]) -> list[Quarantined]:
        """The entries that are not in the table yet: a tick that is repeated after a crash decides them again."""
        found = list(entries)
        where = near((entry.report.place for entry in found), pipeline="actions")
        tables = ("quarantine", QUARANTINE_ARCHIVE.name)
        asked = ((name, f'SELECT log_id, "partition", "offset" FROM {name} WHERE {where}') for name in tables)
        known = {(row["log_id"], row["partition"], row["offset"]) for one in asked for row in self._reader.query(*one)}
        return [entry for entry in found if entry.report.place not in known]

    # -- writing -----------------------------------------------------------------------------------------------------

    def _put(
        self,
        name: str,
        table_of: Callable[[Sequence[Any]], pa.Table],
        rows: Sequence[Target] | Sequence[ActionState],
        marks: Mapping[str, int],
        new: frozenset[str],
    ) -> None:
        """Writes rows by key. Those of new actions are appended, which takes a fraction of the time of a MERGE."""
        added = [row for row in rows if row.action_id in new]
        others = [row for row in rows if row.action_id not in new]
        if added:
            self._writer.add(name, table_of(added), NO_MARKS if others else marks)
        if others:
            self._writer.merge(name, table_of(others), marks)
