"""Saved selectors: the table `selectors`, and what a name in it stands for when an action is ordered.

An action gets a copy of the criteria, so its row says everything that the engine needs, and a selector that is saved
again changes no action that exists. The newest row of a name counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake

from actions.engine import Action, Selector
from actions.engine.selection import describe
from actions.engine.validity import refusal
from actions.rows import selector_of
from broker_edge.errors import NotFoundError, RefusedError, SettingsError
from sinks.probe import require_safe_commits, require_writable
from sinks.rows import Row, arrow_of, now_us, rows_of
from sinks.sql_text import literal
from sinks.store import StoreAccess
from sinks.table_query import bounded
from sinks.tables import SELECTORS, create_by_path, uri_of

CRITERIA = tuple(field.name for field in fields(Selector) if field.name != "saved")
"""The columns of `actions` that select."""
_NAME_MAX = 256


@dataclass(frozen=True, slots=True)
class SavedSelector:
    name: str
    selector: Selector
    saved_by: str
    saved_us: int

    @property
    def sentence(self) -> str:
        """The criteria in words."""
        return describe(_action(self.selector))

    def row(self) -> Row:
        """The criteria as columns of `actions`."""
        return _columns(self.selector)


class Selectors:
    """The saved selectors of a tenant under `root`. The table is created by the first `save`."""

    def __init__(self, root: Path | str, *, tenant: str, by: str = "", access: StoreAccess | None = None) -> None:
        self._root, self._tenant, self._by = root, tenant, by
        self._access = access or StoreAccess.of({})

    def save(self, name: str, selector: Selector) -> None:
        """Saves these criteria, in place of those that the name stands for now. Raises SettingsError if an action could
        not have them."""
        if not 1 <= len(name) <= _NAME_MAX or not name.isprintable():
            raise SettingsError(f"the name of a selector has 1 to {_NAME_MAX} printable characters")
        wrong = refusal(_action(selector))
        if wrong is not None:
            raise SettingsError(f"the selector was not saved: {wrong}")
        self._append({"name": name, **_columns(selector)})

    def remove(self, name: str) -> None:
        """Actions that were ordered with it keep their criteria. Raises NotFoundError."""
        self.get(name)
        self._append({"name": name, "removed_at": now_us()})

    def get(self, name: str) -> SavedSelector:
        """Raises NotFoundError, which says which names there are."""
        known = {one.name: one for one in self.all()}
        if name not in known:
            names = ", ".join(list(known)[:10]) or "none"
            raise NotFoundError(f"there is no saved selector {name} of tenant {self._tenant}; there are: {names}")
        return known[name]

    def all(self) -> list[SavedSelector]:
        """By name."""
        uri, options = uri_of(self._root, SELECTORS.name), self._access.deltalake()
        if not DeltaTable.is_deltatable(uri, storage_options=options):
            return []
        table, sql = (
            DeltaTable(uri, storage_options=options),
            f"SELECT * FROM selectors WHERE tenant = {literal(self._tenant)}",
        )
        rows = rows_of(bounded({SELECTORS.name: table}, sql, about=f"{SELECTORS.name} under {self._root}"))
        newest = {row["name"]: row for row in sorted(rows, key=lambda row: row["created_at"] or 0)}
        return [
            SavedSelector(name, selector_of(row), row["created_by"] or "", row["created_at"] or 0)
            for name, row in sorted(newest.items())
            if row["removed_at"] is None
        ]

    def _append(self, row: Row) -> None:
        options = self._access.deltalake()
        require_safe_commits(str(self._root), self._access)
        require_writable(uri_of(self._root, SELECTORS.name))
        create_by_path(self._root, storage_options=options, tables=[SELECTORS])
        full = {**row, "tenant": self._tenant, "created_by": self._by, "created_at": now_us()}
        uri = uri_of(self._root, SELECTORS.name)
        write_deltalake(uri, arrow_of([full], SELECTORS), mode="append", storage_options=options)


def merged(given: Mapping[str, Any], saved: SavedSelector) -> Row:
    """The criteria of an order that names a saved selector and adds others. Raises RefusedError if both have the same
    criterion: the engine has one column for it."""
    criteria = {name: value for name, value in saved.row().items() if value is not None}
    twice = [name for name in criteria if given.get(name) is not None]
    if twice:
        raise RefusedError(f"the saved selector {saved.name} has {' and '.join(twice)} already: leave it out")
    return criteria


def _columns(selector: Selector) -> Row:
    row = {name: getattr(selector, name) for name in CRITERIA}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in row.items()}


def _action(selector: Selector) -> Action:
    return Action("selector", "default", "command", "selector", "{}", selector)
