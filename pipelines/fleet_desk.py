"""What people do with the tables of actions: describe devices, insert actions and requests, look what became of them.

The same can be done with SQL or any Delta writer; nothing here is known to the engine. Needs no JVM.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError

from pipelines.action_rows import Row, action_of, arrow_of, now_us, rows_of
from pipelines.engine.validity import refusal
from pipelines.errors import SettingsError, SetupError
from pipelines.tables import ACTION_REQUESTS, ACTIONS, DEFAULT_TENANT, DEVICES, Table, create_by_path, uri_of


@dataclass(frozen=True, slots=True)
class Order:
    """An action as a person asks for it; what is None is not written. Timeouts in seconds, `deadline_us` in Unix µs."""

    name: str
    params: Mapping[str, Any] | None = None
    device_ids: Sequence[str] | None = None
    labels: Mapping[str, str] | None = None
    percentage: float | None = None
    timeout_queued_s: int | None = None
    timeout_delivered_s: int | None = None
    timeout_in_progress_s: int | None = None
    deadline_us: int | None = None


class FleetDesk:
    """The tables under `root`. Raises SetupError when they are not there and `create` was not asked for."""

    def __init__(self, root: Path | str, *, by: str = "", tenant: str = DEFAULT_TENANT, create: bool = False) -> None:
        self._root, self._by, self._tenant = root, by, tenant
        if create:
            create_by_path(root)

    def describe_devices(self, devices: Mapping[str, Mapping[str, str]]) -> int:
        """A row in `devices` for each id that has none yet, with its labels. Returns how many were added."""
        known = {row["device_id"] for row in self._query("devices", "SELECT device_id FROM devices")}
        rows = [
            {"device_id": id_, "tenant": self._tenant, "labels": labels}
            for id_, labels in devices.items()
            if id_ not in known
        ]
        if rows:
            self._append(DEVICES, rows)
        return len(rows)

    def order(self, order: Order, *, action_id: str | None = None) -> str:
        """Insert an action and return its id. Raises SettingsError for what the engine would refuse."""
        created_us = now_us()
        row: dict[str, Any] = {
            "action_id": action_id or f"{order.name}-{uuid.uuid4().hex[:12]}",
            "tenant": self._tenant,
            "type": "command",
            "name": order.name,
            "params": json.dumps(order.params or {}),
            "device_ids": None if order.device_ids is None else list(order.device_ids),
            "labels": order.labels,
            "percentage": order.percentage,
            "timeout_queued_s": order.timeout_queued_s,
            "timeout_delivered_s": order.timeout_delivered_s,
            "timeout_in_progress_s": order.timeout_in_progress_s,
            "deadline": order.deadline_us,
            "created_by": self._by,
            "created_at": created_us,
        }
        wrong = refusal(action_of(row, commit_version=0))
        if wrong is not None:
            raise SettingsError(f"the action was not inserted: {wrong}")
        self._append(ACTIONS, [row])
        return str(row["action_id"])

    def cancel(self, action_id: str, *, device_id: str | None = None, reason: str = "") -> str:
        """Ask for a cancel of all targets, or of one. Returns the id of the request."""
        request_id = uuid.uuid4().hex
        row = {
            "request_id": request_id,
            "tenant": self._tenant,
            "action_id": action_id,
            "device_id": device_id,
            "kind": "cancel",
            "by": self._by,
            "at": now_us(),
            "reason": reason,
        }
        self._append(ACTION_REQUESTS, [row])
        return request_id

    def actions(self, *, limit: int = 50) -> list[dict[str, Any]]:
        """The newest rows of `action_state`, newest first."""
        return self._query("action_state", f"SELECT * FROM action_state ORDER BY started_at DESC LIMIT {int(limit)}")

    def action(self, action_id: str) -> dict[str, Any] | None:
        """The row of `action_state`, or None while no engine has seen the action."""
        return next(iter(self._query("action_state", _where("action_state", action_id))), None)

    def targets(self, action_id: str) -> list[dict[str, Any]]:
        """The rows of `action_targets`, by device id."""
        return self._query("action_targets", f"{_where('action_targets', action_id)} ORDER BY device_id")

    def _append(self, table: Table, rows: Iterable[Row]) -> None:
        uri = uri_of(self._root, table.name)
        if not DeltaTable.is_deltatable(uri):
            raise self._missing(table.name)
        write_deltalake(uri, arrow_of(rows, table), mode="append")

    def _query(self, name: str, sql: str) -> list[dict[str, Any]]:
        try:
            table = DeltaTable(uri_of(self._root, name))
        except DeltaError as error:
            raise self._missing(name) from error
        return list(rows_of(pa.table(QueryBuilder().register(name, table).execute(sql).read_all())))

    def _missing(self, name: str) -> SetupError:
        return SetupError(f"there is no table {name} under {self._root}; name the folder of the tables with --root")


def _where(table: str, action_id: str) -> str:
    text = action_id.replace("'", "''")
    return f"SELECT * FROM {table} WHERE action_id = '{text}'"
