"""The action engine's job on real tables, with a fake log and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake

from actions.job import ActionJob, Pace
from actions.reading import Reader
from actions.store import DeltalakeStore
from broker_edge import ConnectError, Place, Row
from broker_edge.log_owners import LogEntry
from sinks import tables
from sinks.rows import arrow_of, rows_of

SECOND = 1_000_000
START_US = 1_800_000_000 * SECOND


class PretendedLog:
    """The log of one broker, which may be away."""

    def __init__(self, log_id: str = "log", name: str | None = None) -> None:
        self.id, self.name, self.is_away = log_id, name, False
        self.keys: list[str | None] = []
        self.values: dict[str | None, bytes] = {}

    def log_id(self) -> str:
        if self.is_away:
            raise ConnectError(f"nobody answers for {self.id}")
        return self.id

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        self.log_id()
        self.keys += [row.idempotency_key for row in rows]
        self.values.update((row.idempotency_key, row.value) for row in rows)
        return [Place(1, len(self.keys) + number, False) for number in range(len(rows))]


class EngineWorld:
    def __init__(self, root: Path) -> None:
        self.root, self.now_us, self.log = root, START_US, PretendedLog()
        self.others: list[PretendedLog] = []
        """Further brokers."""
        self.steady_us: int | None = None
        """The clock that nobody can set; None: it shows the same as `now_us`."""
        self.readers: list[Reader] | None = None
        self.entries: list[LogEntry] = []
        """The brokers of the settings."""
        tables.create_by_path(root)
        self._offset = 0

    def insert(self, table: tables.FieldTable, *rows: dict[str, Any]) -> None:
        write_deltalake(tables.uri_of(self.root, table.name), arrow_of(rows, table), mode="append")

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(tables.uri_of(self.root, name))

    def devices(self, *ids: str) -> None:
        self.insert(tables.DEVICES, *({"device_id": id_} for id_ in ids))

    def action(self, action_id: str = "a1", **fields: Any) -> None:
        self.insert(tables.ACTIONS, {"action_id": action_id, "name": "echo", "percentage": 100.0, **fields})

    def job(self, pace: Pace | None = None) -> ActionJob:
        return ActionJob(
            DeltalakeStore(self.root),
            (self.log, *self.others),
            readers=self.readers,
            entries=self.entries,
            pace=pace,
            clock_us=lambda: self.now_us,
            steady_us=lambda: self.now_us if self.steady_us is None else self.steady_us,
        )

    def passes(self, seconds: float) -> None:
        """Time passes, on both clocks."""
        self.now_us += int(seconds * SECOND)
        if self.steady_us is not None:
            self.steady_us += int(seconds * SECOND)

    def online(self, device_id: str, version: str) -> None:
        self.status(device_id, "ONLINE", action_id=None, attempt=None, version=version)

    def status(self, device_id: str, state: str, **fields: Any) -> None:
        self._offset += 1
        place = {"log_id": "log", "partition": 5, "offset": self._offset, "epoch": 1, "event_id": f"e{self._offset}"}
        said = {"source": "status", "device_id": device_id, "state": state, "action_id": "a1", "attempt": 1, **fields}
        self.insert(tables.ACTION_EVENTS, {**place, **said, "at": self.now_us, "recorded_at": self.now_us})

    def versions(self) -> dict[str, str]:
        return {row["device_id"]: row["version"] for row in self.rows("device_state")}

    def states(self, action_id: str = "a1") -> set[str]:
        return {row["state"] for row in self.targets() if row["action_id"] == action_id}

    def targets(self) -> list[dict[str, Any]]:
        """The targets, also the archived ones."""
        rows = (*self.rows("action_targets_archive"), *self.rows("action_targets"))
        return list({(row["action_id"], row["device_id"]): row for row in rows}.values())

    def rows(self, name: str) -> list[dict[str, Any]]:
        return list(rows_of(self.table(name).to_pyarrow_table()))
