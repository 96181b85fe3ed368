"""Maintenance and the jobs that write the tables of actions, forced to conflict between reading and writing a table:
both succeed, and the rows are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.flight_server import FlightServer

from actions import event_log
from actions.event_log import EventLog
from actions.fleet_desk import FleetDesk, Order
from actions.job import ActionJob
from actions.status_rows import parse
from actions.store import DeltalakeStore
from broker_edge.errors import EngineFencedError, TableStoreError
from pipelines import maintenance
from pipelines.maintenance import tend
from pipelines.settings import MaintenanceSettings
from sinks import conflicts
from sinks.devices import DevicePublisher
from sinks.rows import now_us, rows_of
from sinks.table import Table
from sinks.tables import uri_of

POLICY = MaintenanceSettings()
ACTIONS = ("a1", "a2", "a3")


class World:
    """An engine that has sent three actions to one device, so that its tables have several files each."""

    def __init__(self, folder: Path, server: FlightServer) -> None:
        self.root = str(folder / "tables")
        self.desk = FleetDesk(self.root, by="ann", create=True)
        self.desk.describe_devices({"d1": {"site": "roof"}})
        self.publisher = DevicePublisher(server.location)
        self.job = ActionJob(DeltalakeStore(self.root), self.publisher)
        self.log = EventLog(self.root)
        self._batch = 0
        for action_id in ACTIONS:
            self.desk.order(Order(name="echo", device_ids=["d1"]), action_id=action_id)
            self.job.turn()

    def status(self, action_id: str) -> None:
        """Does what the status job does with a record of the device."""
        self._batch += 1
        value = b'{"action_id": "%s", "attempt": 1, "state": "SUCCEEDED", "boot": "b", "seq": %d}'
        place = {"log_id": "log", "partition": 5, "offset": self._batch, "epoch": 1, "timestamp": now_us()}
        body = value % (action_id.encode(), self._batch)
        record = {"topic": "devices/d1/status", "key": b"d1", "value": body, **place}
        parsed = parse([record], tenant="default", recorded_us=now_us())
        self.log.append(parsed.events, parsed.quarantine, query_id="status", batch_id=self._batch)

    def tend(self, name: str) -> maintenance.Tended:
        return tend(Table.at(uri_of(self.root, name)), POLICY)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return list(rows_of(DeltaTable(uri_of(self.root, name)).to_pyarrow_table()))

    def states(self) -> dict[str, str]:
        return {row["action_id"]: row["state"] for row in self.rows("action_targets")}


@pytest.fixture
def world(tmp_path: Path, flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(maintenance, "SMALL_FILES_MIN", 2)
    made = World(tmp_path, flight_server)
    yield made
    made.publisher.close()


def after_reading(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Calls `meanwhile` once, after maintenance has read a table and before it compacts it."""
    left = [meanwhile]

    class Read(DeltaTable):
        @property
        def optimize(self) -> Any:
            optimizer = super().optimize
            if left:
                left.pop()()
            return optimizer

    monkeypatch.setattr("sinks.table.DeltaTable", Read)


@pytest.mark.parametrize("name", ["action_targets", "action_state"])
def test_the_engine_goes_on_over_tables_that_were_compacted_behind_its_back(world: World, name: str) -> None:
    world.status("a1")
    tended = world.tend(name)
    assert (tended.problem, tended.compacted) == (None, len(ACTIONS))
    world.job.turn()
    assert world.states() == {"a1": "SUCCEEDED", "a2": "QUEUED", "a3": "QUEUED"}
    phases = {row["action_id"]: row["phase"] for row in world.rows("action_state")}
    assert phases == {"a1": "ENDED", "a2": "RUNNING", "a3": "RUNNING"}


def test_compaction_goes_on_when_the_engine_merges_under_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.status("a2")
    after_reading(monkeypatch, world.job.turn)
    tended = world.tend("action_targets")
    assert tended.problem is None
    assert tended.compacted > 1
    assert world.states() == {"a1": "QUEUED", "a2": "SUCCEEDED", "a3": "QUEUED"}
    assert len(DeltaTable(uri_of(world.root, "action_targets")).file_uris()) == 1


def test_statuses_arrive_while_maintenance_compacts_and_sets_properties(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.status("a1")
    # The first run on a table sets its properties, which makes every concurrent write fail.
    real, left = event_log.write_deltalake, [lambda: world.tend("action_events")]

    def write(*arguments: Any, **options: Any) -> None:
        if left:
            assert left.pop()().problem is None
        real(*arguments, **options)

    monkeypatch.setattr(event_log, "write_deltalake", write)
    world.status("a2")
    after_reading(monkeypatch, lambda: world.status("a3"))
    assert world.tend("action_events").problem is None
    said = [row["action_id"] for row in world.rows("action_events") if row["source"] == "status"]
    assert sorted(said) == list(ACTIONS)
    world.job.turn()
    assert set(world.states().values()) == {"SUCCEEDED"}


def test_control_without_another_try_the_engine_and_compaction_would_fail(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the commits do conflict."""
    monkeypatch.setattr(conflicts, "COMMIT_ATTEMPTS", 1)
    world.status("a1")
    after_reading(monkeypatch, world.job.turn)
    assert "Commit failed" in (world.tend("action_targets").problem or "")
    world.status("a2")
    world.tend("action_state")
    with pytest.raises(TableStoreError, match="another program writes to the engine's tables"):
        world.job.turn()


def test_an_engine_that_was_replaced_does_not_try_again(world: World) -> None:
    world.status("a1")
    world.tend("action_state")
    DeltalakeStore(world.root).claim()
    with pytest.raises(EngineFencedError):
        world.job.turn()
    assert world.states()["a1"] == "QUEUED"
