"""The inventory: what people say about their devices, in the table `devices`. Import, changes, retirement, look-ups.

A change is one MERGE. It is planned on one version of the table and committed on the same one: if somebody else commits
in between, it is planned again. Needs no JVM. The engine only reads the table; a retired device counts as gone for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from actions.engine.model import TERMINAL
from actions.inventory_csv import Wanted
from actions.inventory_values import (
    REMOVE_MAX_PERCENT,
    Change,
    Rows,
    Selection,
    Summary,
    is_used,
    listed,
    matching,
    refuse_mass_removal,
    shown,
)
from actions.journal_overlay import FreshTable
from broker_edge.errors import NotFoundError, SettingsError, SetupError, TableStoreError
from sinks.conflicts import committed
from sinks.probe import require_writable
from sinks.rows import Row, arrow_of, now_us, rows_of
from sinks.sql_text import literal
from sinks.table_query import bounded
from sinks.tables import DEFAULT_TENANT, DEVICES, update_by_path, uri_of
from sinks.torn_commits import repair_tables

_EMPTY: Mapping[str, Any] = dict.fromkeys(DEVICES.names)


class Inventory:
    """The table `devices` under `root`. Raises SetupError if it does not exist."""

    def __init__(
        self,
        root: Path | str,
        *,
        by: str = "",
        tenant: str = DEFAULT_TENANT,
        storage_options: Mapping[str, str] | None = None,
        clock_us: Callable[[], int] = now_us,
    ) -> None:
        self._root, self._by, self._tenant = root, by, tenant
        self._options = dict(storage_options) if storage_options else None
        self._clock_us = clock_us
        repair_tables(str(root))
        self._open(DEVICES.name)

    def import_devices(
        self,
        wanted: Sequence[Wanted],
        *,
        remove_missing: bool = False,
        remove_max_percent: float = REMOVE_MAX_PERCENT,
        dry_run: bool = False,
    ) -> Summary:
        """Inserts and changes devices so that they are as `wanted` says. With `remove_missing` the others are retired.

        Raises RefusedError if that would retire more than `remove_max_percent` of the devices in use, SettingsError if
        an id is in the table twice or belongs to another tenant. Nothing is written then.
        """

        def plan(rows: Rows) -> tuple[Summary, Rows]:
            summary, changes = Summary(), Rows()
            for device in wanted:
                old = rows.get(device.device_id)
                if old is not None and not self._is_mine(old):
                    raise SettingsError(
                        f"device {device.device_id} belongs to tenant {old['tenant']}: nothing was changed"
                    )
                new = self._applied(old, device) | {"retired_at": None}
                self._noted(summary, old, new)
                if new != old:
                    changes[device.device_id] = self._stamped(old, new)
            named = {device.device_id for device in wanted}
            used = [id_ for id_, row in self._mine(rows).items() if is_used(row)]
            summary.missing.extend(id_ for id_ in used if id_ not in named)
            if remove_missing:
                refuse_mass_removal(summary.missing, len(used), remove_max_percent, "are not in the file and")
                for id_ in summary.missing:
                    changes[id_] = self._stamped(rows[id_], rows[id_] | {"retired_at": self._clock_us()})
                summary.retired.extend(summary.missing)
            return summary, changes

        return self._change(plan, dry_run=dry_run)

    def set(self, selection: Selection, change: Change, *, dry_run: bool = False) -> Summary:
        """Changes the selected devices. Raises NotFoundError if there are none."""

        def plan(rows: Rows) -> tuple[Summary, Rows]:
            summary, changes = Summary(), Rows()
            for old in self._selected(self._mine(rows), selection):
                new = self._applied(old, change.wanted)
                groups = [one for one in new["groups"] or [] if one not in change.remove_groups]
                groups = list(dict.fromkeys([*groups, *change.add_groups]))
                if groups != (new["groups"] or []):
                    new["groups"] = groups
                (summary.unchanged if new == old else summary.changed).append(old["device_id"])
                if new != old:
                    changes[old["device_id"]] = self._stamped(old, new)
            return summary, changes

        return self._change(plan, dry_run=dry_run)

    def retire(
        self,
        selection: Selection,
        *,
        undo: bool = False,
        remove_max_percent: float = REMOVE_MAX_PERCENT,
        dry_run: bool = False,
    ) -> Summary:
        """Takes the selected devices out of use, or back into it with `undo`. Limits the share as `import_devices`
        does, unless the devices are named by id."""

        def plan(rows: Rows) -> tuple[Summary, Rows]:
            summary, changes = Summary(), Rows()
            mine = self._mine(rows)
            for old in self._selected(mine, replace(selection, retired=True)):
                if undo == is_used(old):
                    summary.unchanged.append(old["device_id"])
                    continue
                (summary.returned if undo else summary.retired).append(old["device_id"])
                changes[old["device_id"]] = self._stamped(old, old | {"retired_at": None if undo else self._clock_us()})
            if not undo and not selection.ids:
                used = sum(is_used(row) for row in mine.values())
                refuse_mass_removal(summary.retired, used, remove_max_percent, "are selected and")
            return summary, changes

        return self._change(plan, dry_run=dry_run)

    def devices(self, selection: Selection) -> list[dict[str, Any]]:
        """The rows of the selected devices with what `device_state` says about them, by id. An id that is in
        the table twice has two rows. Empty if nothing is selected."""
        facts = self._facts()
        rows = [row for row in self._rows(self._open(DEVICES.name)) if self._is_mine(row)]
        seen = {id_: row["last_seen_at"] or 0 for id_, row in facts.items()}
        shown = ("last_seen_at", "version", "product", "hardware", "log_id")
        return [
            row | {name: facts.get(row["device_id"], {}).get(name) for name in shown}
            for row in matching(rows, selection, seen, self._clock_us())
        ]

    def device(self, device_id: str) -> dict[str, Any]:
        """One device: its `rows`, its `state` (the row of `device_state`), its `log` and where that is said
        (`log_from`), and its open `targets`. Raises NotFoundError if no table has it."""
        where = f"WHERE device_id = {literal(device_id)}"
        rows = [row for row in self._rows(self._open(DEVICES.name)) if row["device_id"] == device_id]
        rows = [row for row in rows if self._is_mine(row)]
        states = [
            row for row in self._query("device_state", f"SELECT * FROM device_state {where}") if self._is_mine(row)
        ]
        if not rows and not states:
            raise NotFoundError(f"there is no device {device_id} under {self._root}")
        final = ", ".join(literal(state.value) for state in TERMINAL)
        open_ = f"SELECT * FROM action_targets {where} AND state NOT IN ({final})"
        targets = [row for row in self._query("action_targets", open_) if self._is_mine(row)]
        state = states[0] if states else None
        said = next((row["log"] for row in rows if row["log"]), None)
        heard = state["log_id"] if state else None
        return {
            "device_id": device_id,
            "rows": rows,
            "state": state,
            "log": said or heard,
            "log_from": "devices" if said else "device_state" if heard else None,
            "targets": sorted(targets, key=lambda row: (row["created_at"] or 0, row["action_id"] or "")),
        }

    # -- planning ------------------------------------------------------------------------------------------------------

    def _applied(self, old: Row | None, wanted: Wanted) -> dict[str, Any]:
        """The row as it should be. An empty value stays as it is written, null or empty."""
        new = dict(old or {**_EMPTY, "device_id": wanted.device_id, "tenant": self._tenant})
        labels = {**(new["labels"] or {}), **wanted.labels}
        labels = {name: value for name, value in labels.items() if value or name not in wanted.labels}
        if labels != (new["labels"] or {}):
            new["labels"] = labels
        for name, value in (("time_zone", wanted.time_zone), ("log", wanted.log)):
            if value is not None and value != (new[name] or ""):
                new[name] = value or None
        if wanted.groups is not None and list(wanted.groups) != (new["groups"] or []):
            new["groups"] = list(wanted.groups)
        return new

    def _noted(self, summary: Summary, old: Row | None, new: Row) -> None:
        if old is None:
            summary.added.append(new["device_id"])
        elif not is_used(old):
            summary.returned.append(new["device_id"])
        else:
            (summary.unchanged if new == old else summary.changed).append(new["device_id"])

    def _stamped(self, old: Row | None, new: dict[str, Any]) -> dict[str, Any]:
        who = "created" if old is None else "updated"
        return new | {f"{who}_by": self._by or None, f"{who}_at": self._clock_us()}

    def _selected(self, rows: Rows, selection: Selection) -> list[dict[str, Any]]:
        unknown = [id_ for id_ in selection.ids if id_ not in rows]
        if unknown:
            raise NotFoundError(f"there is no device {listed(unknown)} under {self._root}: nothing was changed")
        found = matching(rows.values(), selection, self._seen(selection), self._clock_us())
        if not found:
            raise NotFoundError(f"no device under {self._root} is selected: nothing was changed")
        return found

    # -- the tables ----------------------------------------------------------------------------------------------------

    def _change(self, plan: Callable[[Rows], tuple[Summary, Rows]], *, dry_run: bool) -> Summary:
        def attempt() -> Summary:
            table = self._open(DEVICES.name)
            summary, changes = plan(self._by_id(table))
            if dry_run or not changes:
                return summary
            require_writable(uri_of(self._root, DEVICES.name))
            update_by_path(table, DEVICES)
            self._merge(table, changes.values())
            return replace(summary, version=table.version())

        try:
            return committed(attempt, "a change of the devices")
        except CommitFailedError as error:
            raise TableStoreError(f"others keep changing the table devices under {self._root}: try again") from error

    def _merge(self, table: DeltaTable, rows: Iterable[Row]) -> None:
        # No retry inside deltalake: a device that somebody else inserts meanwhile must not be inserted again.
        merge = table.merge(
            arrow_of(rows, DEVICES),
            predicate="t.device_id = s.device_id",
            source_alias="s",
            target_alias="t",
            commit_properties=CommitProperties(max_commit_retries=0),
        )
        # Not all columns: the table may have others, which belong to somebody else.
        columns = {f"`{name}`": f"s.`{name}`" for name in DEVICES.names}
        merge.when_matched_update(columns).when_not_matched_insert(columns).execute()

    def _by_id(self, table: DeltaTable) -> Rows:
        """The rows of all tenants by id. Raises SettingsError if an id is there twice."""
        found = Rows()
        for row in self._rows(table):
            first = found.setdefault(row["device_id"], row)
            if first is not row:
                raise SettingsError(
                    f"device {row['device_id']} is in the table devices twice, as {shown(first)} and as "
                    f"{shown(row)}: delete one of the rows; nothing was changed"
                )
        return found

    def _rows(self, table: DeltaTable) -> list[dict[str, Any]]:
        found = rows_of(bounded({DEVICES.name: table}, "SELECT * FROM devices", about=self._about(DEVICES.name)))
        rows = [{name: row.get(name) for name in DEVICES.names} for row in found if row["device_id"]]
        return sorted(rows, key=lambda row: str(row["device_id"]))

    def _seen(self, selection: Selection) -> dict[str, int]:
        """When each device was last seen, Unix µs; read only if the selection depends on it."""
        return {id_: row["last_seen_at"] or 0 for id_, row in self._facts().items()} if selection.is_timed else {}

    def _facts(self) -> Rows:
        return {row["device_id"]: row for row in self._query("device_state", "SELECT * FROM device_state")}

    def _mine(self, rows: Rows) -> Rows:
        return {id_: row for id_, row in rows.items() if self._is_mine(row)}

    def _is_mine(self, row: Row) -> bool:
        return bool((row["tenant"] or DEFAULT_TENANT) == self._tenant)

    def _query(self, name: str, sql: str) -> list[dict[str, Any]]:
        self._open(name)
        read = partial(bounded, about=self._about(name))
        return list(rows_of(FreshTable(self._root, name, self._options).select(sql, read)))

    def _about(self, name: str) -> str:
        return f"{name} under {self._root}"

    def _open(self, name: str) -> DeltaTable:
        try:
            return DeltaTable(uri_of(self._root, name), storage_options=self._options)
        except DeltaError as error:
            message = (
                f"there is no table {name} under {self._root}: give the folder of the tables with --root or --config, "
                "or make them with `headwater devices import FILE.csv --create`"
            )
            raise SetupError(message) from error
