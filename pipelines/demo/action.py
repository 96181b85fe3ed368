"""The operator's part in the demo: describes the devices, inserts a row into `actions`, watches the outcome.

Tables by path, written and read without a JVM, as any user of `deltalake` can do.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from broker_edge.device.fleet import labels_of
from sinks.tables import DEVICES, create_by_path, uri_of

SELECTED = 20
"""This many devices carry the label that the demo's action selects."""
SUCCEEDED = "SUCCEEDED"

_CANARY = ("ring", "canary")
_RUNNING = "RUNNING"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of the actions of this run: `open` of them have not ended, `states` counts their targets."""

    actions: int = 0
    open: int = 0
    targets: int = 0
    states: Mapping[str, int] = field(default_factory=dict)

    @property
    def succeeded(self) -> int:
        return self.states.get(SUCCEEDED, 0)

    @property
    def all_succeeded(self) -> bool:
        return self.open == 0 and self.succeeded == self.targets


class Operator:
    """Works on the tables under `tables`; `Outcome` ignores actions that existed before."""

    def __init__(self, tables: Path) -> None:
        self._tables = tables
        create_by_path(tables)
        self._watched = tuple(DeltaTable(self._uri(name)) for name in ("actions", "action_state", "action_targets"))
        self._before = frozenset(_column(self._watched[0], "action_id"))
        self._versions: tuple[int, ...] = ()
        self._outcome = Outcome()

    def describe_devices(self, device_ids: Sequence[str], *, logs: Mapping[str, str] | None = None) -> None:
        """Adds a row to `devices` for each device without one: site and model, and `ring: canary` for 20 of them.

        `logs` names the broker of each device, if there are several; the canaries are then spread over the brokers.
        """
        there = DeltaTable(self._uri("devices"))
        if logs or any(_column(there, "log")):
            self._describe_at(device_ids, logs or {})
            return
        known = set(_column(there, "device_id"))
        rows = [
            {
                "device_id": id_,
                "labels": list(_labels(index).items()),
                "created_by": "demo",
                "created_at": datetime.now(UTC),
            }
            for index, id_ in enumerate(device_ids)
            if id_ not in known
        ]
        if rows:
            write_deltalake(self._uri("devices"), pa.Table.from_pylist(rows, DEVICES.arrow_schema()), mode="append")

    def _describe_at(self, device_ids: Sequence[str], logs: Mapping[str, str]) -> None:
        """Every second canary is at the second broker, and so on. Rows of earlier runs get the brokers of this one."""
        of_broker: dict[str | None, list[str]] = {}
        for id_ in device_ids:
            of_broker.setdefault(logs.get(id_), []).append(id_)
        turns = zip_longest(*of_broker.values())
        ranked = [id_ for turn in turns for id_ in turn if id_ is not None]
        made = {"created_by": "demo", "created_at": datetime.now(UTC)}
        rows = [
            {"device_id": id_, "labels": list(_labels(index).items()), "log": logs.get(id_), **made}
            for index, id_ in enumerate(ranked)
        ]
        source = pa.Table.from_pylist(rows, DEVICES.arrow_schema())
        table = DeltaTable(self._uri("devices"))
        merge = table.merge(source, "t.device_id = s.device_id", source_alias="s", target_alias="t")
        # A kept folder may know the devices from a run with another number of brokers.
        merge = merge.when_matched_update({"log": "s.log", "labels": "s.labels"})
        merge.when_not_matched_insert_all().execute()

    @property
    def actions_path(self) -> str:
        return self._uri("actions")

    def insert_action(self) -> str:
        """Tells the canaries to measure twice as often. Returns the id of the action."""
        action_id = f"faster-{time.time_ns() // 1_000_000}"
        row = {
            "action_id": [action_id],
            "name": ["set-interval"],
            "params": [json.dumps({"seconds": 0.5})],
            "labels": pa.array([[_CANARY]], pa.map_(pa.string(), pa.string())),
            "created_by": ["demo"],
            "created_at": pa.array([datetime.now(UTC)], pa.timestamp("us", "UTC")),
        }
        write_deltalake(self._uri("actions"), pa.table(row), mode="append", schema_mode="merge")
        return action_id

    def outcome(self) -> Outcome:
        """The outcome according to the tables. Cheap while they have not changed."""
        # Read targets last: the engine commits them before the state that says that an action has ended.
        for table in self._watched:
            table.update_incremental()
        versions = tuple(table.version() for table in self._watched)
        if versions != self._versions:
            self._outcome = self._read(*self._watched)
            self._versions = versions
        return self._outcome

    def _read(self, actions: DeltaTable, states: DeltaTable, targets: DeltaTable) -> Outcome:
        asked = {id_ for id_ in _column(actions, "action_id") if id_ not in self._before}
        phases = dict(zip(_column(states, "action_id"), _column(states, "phase"), strict=True))
        rows = zip(_column(targets, "action_id"), _column(targets, "state"), strict=True)
        counts = Counter(state for id_, state in rows if id_ in asked)
        # An action that the engine has not seen yet has no phase, and counts as open like a running one.
        open_ = sum(1 for id_ in asked if phases.get(id_, _RUNNING) == _RUNNING)
        return Outcome(actions=len(asked), open=open_, targets=counts.total(), states=dict(counts))

    def _uri(self, name: str) -> str:
        return uri_of(self._tables, name)


def _column(table: DeltaTable, name: str) -> list[str]:
    found: list[str] = table.to_pyarrow_table(columns=[name])[name].to_pylist()
    return found


def _labels(index: int) -> dict[str, str]:
    ring = {_CANARY[0]: _CANARY[1]} if index < SELECTED else {}
    return {**labels_of(index), **ring}
