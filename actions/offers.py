"""Takes an artifact back: the mark in the table `artifacts`, and the actions that install it. Needs no JVM.

A withdrawn row stays: the engine then knows that somebody took it back, and a version is never offered twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from actions.engine import ActionPhase
from broker_edge.errors import NotFoundError, SetupError
from sinks.conflicts import committed
from sinks.probe import require_safe_commits, require_writable
from sinks.rows import now_us, rows_of
from sinks.sql_text import literal
from sinks.store import StoreAccess
from sinks.table_query import queried
from sinks.tables import ARTIFACTS, DEFAULT_TENANT, update_by_path, uri_of

_OVER = ", ".join(literal(phase.value) for phase in ActionPhase if phase.over)


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The mark of an artifact, and the ids of the actions that install it and are not over, sorted."""

    by: str
    at_us: int
    reason: str
    is_new: bool
    """False: it had been withdrawn before, by `by`."""
    open_actions: tuple[str, ...]


class Offers:
    """The artifacts of one tenant in the tables under `root`, on behalf of the user `by`."""

    def __init__(self, root: str, *, by: str, tenant: str, access: StoreAccess) -> None:
        self._root, self._by, self._tenant, self._access = root, by, tenant, access

    def withdraw(self, name: str, version: str, *, reason: str = "") -> Withdrawn:
        """Marks the row as withdrawn; a second time changes nothing. Raises NotFoundError if there is no such row."""
        require_safe_commits(self._root, self._access)
        require_writable(uri_of(self._root, ARTIFACTS.name))

        def attempt() -> tuple[Mapping[str, Any], bool]:
            table = self._open("artifacts")
            # A table of an older version has no columns for the mark.
            update_by_path(table, ARTIFACTS)
            where = self._of(name, version)
            found = list(rows_of(queried({"artifacts": table}, f"SELECT * FROM artifacts WHERE {where}")))
            if not found:
                what = f"the table artifacts under {self._root} has no artifact {name} {version}"
                raise NotFoundError(f"{what} of tenant {self._tenant}")
            before = next((row for row in found if row["withdrawn_at"] is not None), None)
            if before is not None and all(row["withdrawn_at"] is not None for row in found):
                return before, False
            row = {"withdrawn_at": now_us(), "withdrawn_by": self._by, "reason": reason}
            moment = f"arrow_cast({row['withdrawn_at']}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
            texts = {column: literal(str(row[column])) for column in ("withdrawn_by", "reason")}
            table.update(updates={"withdrawn_at": moment, **texts}, predicate=f"{where} AND withdrawn_at IS NULL")
            return row, True

        row, is_new = committed(attempt, f"the withdrawal of artifact {name} {version}")
        by, said = row["withdrawn_by"] or "", row["reason"] or ""
        return Withdrawn(by, row["withdrawn_at"], said, is_new, self._installing(name, version))

    def _installing(self, name: str, version: str) -> tuple[str, ...]:
        """The actions of this artifact that are not over, also those that no engine has read yet."""
        tables = {one: self._open(one) for one in ("actions", "action_state")}
        wanted = f"a.artifact_name = {literal(name)} AND a.artifact_version = {literal(version)}"
        sql = (
            "SELECT DISTINCT a.action_id FROM actions a LEFT JOIN action_state s ON a.action_id = s.action_id "
            f"WHERE {wanted} AND {self._is_mine('a.')} AND (s.phase IS NULL OR s.phase NOT IN ({_OVER}))"
        )
        return tuple(sorted(row["action_id"] for row in rows_of(queried(tables, sql))))

    def _of(self, name: str, version: str) -> str:
        return f"name = {literal(name)} AND version = {literal(version)} AND {self._is_mine()}"

    def _is_mine(self, of: str = "") -> str:
        return f"coalesce({of}tenant, {literal(DEFAULT_TENANT)}) = {literal(self._tenant)}"

    def _open(self, name: str) -> DeltaTable:
        try:
            return DeltaTable(uri_of(self._root, name), storage_options=self._access.deltalake())
        except DeltaError as error:
            raise SetupError(
                f"there is no table {name} under {self._root}: give the folder of the tables with --root or --config"
            ) from error
