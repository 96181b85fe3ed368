"""Gathers changed rows of large actions and fleets, so that a tick does not rewrite a table for a few of them.

A MERGE rewrites each file that has a changed row: for an action with 100,000 targets megabytes, each second. Changed
rows of such an action, and those of `device_state` if there are many devices, are therefore appended to
`action_journal`, and merged into their tables from time to time. The journal is what a restart reads: a row in it is as
durable as one in its table. docs/adr/0022 has the rules and the measured bytes.

Rows have ascending numbers. A merge leaves the number up to which it has merged as a mark in the table, in the same
commit. So a row counts only if its number is above the mark, whichever of the two tables a reader opens later, and a
kill between the merge and the emptying of the journal does no harm.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable

from actions.engine import ActionPhase, ActionState, Decision, DeviceState, Target
from actions.rows import device_states_table, states_table, targets_table
from actions.table_writer import NO_MARKS, TableWriter, mark_of
from broker_edge.errors import TableStoreError
from sinks.rows import arrow_of, rows_of
from sinks.table_query import queried
from sinks.tables import ACTION_JOURNAL, ACTION_STATE, ACTION_TARGETS, DEVICE_STATE

LARGE: Final = 2_000
"""Targets of an action, or devices, above which changes are gathered."""
_PART: Final = 4
"""The journal is merged if one in 4 targets of its actions has changed,"""
_ROWS_MAX: Final = 200_000
"""or if it has this many rows,"""
_ROWS_PER_S, _WAIT_MAX_S = 100, 1_800.0
"""or after a time: 1,000 s if the tables have 100,000 rows to rewrite."""
_MARK: Final = "journal"
_TABLES: Final = (DEVICE_STATE, ACTION_TARGETS, ACTION_STATE)
"""In the order in which they are merged: targets before states, as in every commit."""


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows for the journal."""

    facts: Sequence[DeviceState] = ()
    targets: Sequence[Target] = ()
    states: Sequence[ActionState] = ()

    def __bool__(self) -> bool:
        return bool(self.facts or self.targets or self.states)

    def names(self) -> list[str]:
        """The tables with rows, in the order of `_TABLES`."""
        there = zip(_TABLES, (self.facts, self.targets, self.states), strict=True)
        return [table.name for table, rows in there if rows]

    def table(self, name: str) -> pa.Table:
        """The rows for this table."""
        if name == DEVICE_STATE.name:
            return device_states_table(self.facts)
        return targets_table(self.targets) if name == ACTION_TARGETS.name else states_table(self.states)

    def tables(self) -> list[tuple[str, pa.Table]]:
        return [(name, self.table(name)) for name in self.names()]


class _Gathered:
    """The newest rows that the journal has and the tables have not."""

    def __init__(self) -> None:
        self.facts: dict[str, DeviceState] = {}
        self.targets: dict[tuple[str, str], Target] = {}
        self.states: dict[str, ActionState] = {}
        self.since_s = 0.0
        self.rows = 0
        """The number of rows in the journal, also older ones."""

    def take(self, new: Changes) -> None:
        self.facts |= {row.device_id: row for row in new.facts}
        self.targets |= {(row.action_id, row.device_id): row for row in new.targets}
        self.states |= {row.action_id: row for row in new.states}
        self.rows += len(new.facts) + len(new.targets) + len(new.states)

    def changes(self) -> Changes:
        return Changes(tuple(self.facts.values()), tuple(self.targets.values()), tuple(self.states.values()))

    @property
    def action_ids(self) -> set[str]:
        return {action_id for action_id, _ in self.targets} | self.states.keys()


class Journal:
    """The changes between two merges. `steady_s` is a clock that nobody can set."""

    def __init__(self, writer: TableWriter, *, steady_s: Callable[[], float] = time.monotonic) -> None:
        self._writer, self._steady_s = writer, steady_s
        self._number = 0
        self._gathered, self._later = _Gathered(), Changes()
        self._sizes: dict[str, int] = {}
        """By action: its number of targets, if it is large."""
        self._devices = 0
        """The number of rows of `device_state`."""
        self._seen: dict[str, tuple[ActionPhase, int]] = {}
        """Phase and wave that `action_state` has, of large actions."""

    def recover(self) -> None:
        """Merges what an earlier engine has left. Raises TableStoreError if the journal cannot be read."""
        found = {table.name: self._writer.current(table.name) for table in (*_TABLES, ACTION_JOURNAL)}
        try:
            left, last = unmerged(found), _last_number(found[ACTION_JOURNAL.name])
        except (MemoryError, ImportError):
            raise
        except Exception as error:  # A missing or unreachable file has no class of its own.
            message = f"the table {ACTION_JOURNAL.name} cannot be read, and it has changes that no other table has"
            raise TableStoreError(f"{message}: {error}") from error
        self._gathered, self._later, self._sizes, self._seen = _Gathered(), Changes(), {}, {}
        self._number = max(last, *(mark_of(found[table.name], _MARK) for table in _TABLES))
        for table in _TABLES:
            if rows := left[table.name]:
                self._writer.merge(table.name, arrow_of(rows, table), {_MARK: self._number})
                self._writer.sync()
        self.count_devices()
        self._empty()

    def know(self, states: Iterable[ActionState]) -> None:
        """Notes how large these actions are, as `action_state` says."""
        for row in states:
            if row.targets > LARGE:
                self._sizes[row.action_id] = row.targets
                self._seen.setdefault(row.action_id, (row.phase, row.wave))

    def count_devices(self) -> None:
        """Notes how large `device_state` is."""
        self._devices = self._writer.current(DEVICE_STATE.name).count()

    def split(self, decision: Decision) -> tuple[Decision, Changes]:
        """The decision without the rows that are gathered, and those."""
        facts = decision.device_updates if self._devices > LARGE else ()
        targets = [row for row in decision.target_updates if row.action_id in self._sizes]
        states = [row for row in decision.state_updates if row.action_id in self._sizes]
        gathered = Changes(facts, targets, states)
        if not gathered:
            return decision, gathered
        rest = dataclasses.replace(
            decision,
            device_updates=() if facts else decision.device_updates,
            target_updates=tuple(row for row in decision.target_updates if row.action_id not in self._sizes),
            state_updates=tuple(row for row in decision.state_updates if row.action_id not in self._sizes),
        )
        return rest, gathered

    def holds(self, action_ids: Iterable[str]) -> bool:
        """Whether the tables lack changes of one of these actions."""
        return not self._gathered.action_ids.isdisjoint(action_ids)

    def holds_others(self, action_ids: Collection[str]) -> bool:
        """Whether the tables lack changes of an action that is not among these."""
        return not self._gathered.action_ids.issubset(action_ids)

    def add_later(self, new: Changes) -> None:
        """Makes changes durable with the next ones, or with `flush`: a restart would decide them again."""
        self._begin()
        self._gathered.take(new)
        old = self._later
        self._later = Changes((*old.facts, *new.facts), (*old.targets, *new.targets), (*old.states, *new.states))

    @property
    def has_more(self) -> bool:
        """Whether there are changes for `flush`."""
        return bool(self._later)

    def flush(self) -> None:
        if self._later:
            self.add(Changes())

    def add(self, new: Changes, marks: Mapping[str, int] = NO_MARKS) -> None:
        """Makes these changes durable, and merges if there are many. `marks` are those of the commit."""
        self._begin()
        self._gathered.take(new)
        later, self._later = self._later, Changes()
        is_much = len(self._gathered.targets) * _PART >= self._large() > 0 or self._gathered.rows >= _ROWS_MAX
        states = (*later.states, *new.states)
        is_seen = all(self._seen.get(row.action_id) == (row.phase, row.wave) for row in states)
        if is_much or not is_seen:
            # What people wait for is in the tables at once: a gate, an abort, the end.
            self._merge(marks)
            return
        changes = Changes((*later.facts, *new.facts), (*later.targets, *new.targets), states)
        rows = [row for name, table in changes.tables() for row in _rows(name, table)]
        for row in rows:
            self._number += 1
            row["number"] = self._number
        self._writer.append(ACTION_JOURNAL.name, arrow_of(rows, ACTION_JOURNAL), marks)

    def is_due(self) -> bool:
        """Whether changes have waited long enough. The more a merge rewrites, the longer they wait."""
        if not self._gathered.rows:
            return False
        rewritten = self._large() + (self._devices if self._gathered.facts else 0)
        return self._steady_s() - self._gathered.since_s >= min(rewritten / _ROWS_PER_S, _WAIT_MAX_S)

    def merge(self) -> None:
        """Brings the tables up to date."""
        if self._gathered.rows:
            self._merge(NO_MARKS)

    def _begin(self) -> None:
        if not self._gathered.rows:
            self._gathered.since_s = self._steady_s()

    def _large(self) -> int:
        return sum(self._sizes[action_id] for action_id in self._gathered.action_ids)

    def _merge(self, marks: Mapping[str, int]) -> None:
        """The marks of what was read are in the last commit."""
        gathered, self._later = self._gathered, Changes()
        changes = gathered.changes()
        names = changes.names()
        with ThreadPoolExecutor(max_workers=1) as beside:
            under_way: Future[None] | None = None
            for name in names:
                rows = changes.table(name)
                if under_way is not None:
                    under_way.result()
                given = marks if name == names[-1] else NO_MARKS
                # A merge does not hold the lock of the interpreter: meanwhile the rows of the next table are made.
                under_way = beside.submit(self._merge_one, name, rows, {_MARK: self._number, **given})
            if under_way is not None:
                under_way.result()
        self.count_devices()
        self._seen |= {row.action_id: (row.phase, row.wave) for row in gathered.states.values()}
        self._gathered = _Gathered()
        self._empty()

    def _merge_one(self, name: str, rows: pa.Table, marks: Mapping[str, int]) -> None:
        self._writer.merge(name, rows, marks)
        self._writer.sync()

    def _empty(self) -> None:
        if self._writer.current(ACTION_JOURNAL.name).file_uris():
            self._writer.clear(ACTION_JOURNAL.name)


def journal_mark(table: DeltaTable) -> int:
    """The number of the journal's last row that this version of the table has."""
    return mark_of(table, _MARK)


def unmerged(tables: Mapping[str, DeltaTable]) -> dict[str, list[dict[str, Any]]]:
    """By table: the newest rows of the journal that this version of the table lacks. `tables` has the journal, which
    was opened before the others."""
    found: dict[str, dict[tuple[str, str], dict[str, Any]]] = {table.name: {} for table in _TABLES}
    journal = tables[ACTION_JOURNAL.name]
    if journal.file_uris():
        marks = {table.name: mark_of(tables[table.name], _MARK) for table in _TABLES if table.name in tables}
        sql = f"SELECT * FROM {ACTION_JOURNAL.name} ORDER BY number"
        for row in rows_of(queried({ACTION_JOURNAL.name: journal}, sql)):
            if row["number"] > marks.get(row["table_name"], row["number"]):
                key = (row["action_id"] or "", row["device_id"] or "")
                found[row["table_name"]][key] = json.loads(row["row"])
    return {name: list(rows.values()) for name, rows in found.items()}


def _rows(name: str, rows: pa.Table) -> list[dict[str, Any]]:
    return [
        {
            "table_name": name,
            "tenant": row["tenant"],
            "action_id": row.get("action_id"),
            "device_id": row.get("device_id"),
            "row": json.dumps({column: value for column, value in row.items() if value is not None}),
        }
        for row in rows_of(rows)
    ]


def _last_number(journal: DeltaTable) -> int:
    if not journal.file_uris():
        return 0
    sql = f"SELECT max(number) AS number FROM {ACTION_JOURNAL.name}"
    return int(queried({ACTION_JOURNAL.name: journal}, sql).column("number")[0].as_py() or 0)
