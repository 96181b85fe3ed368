"""The whole loop with real parts: a row in `actions`, the broker, devices over MQTT, Spark, and the state in Delta."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from support.programs import headwaterd

from actions.job import ActionJob, Pace
from actions.store import DeltalakeStore
from broker_edge.device import FleetSettings, RunningFleet
from broker_edge.device.fleet import device_ids, labels_of
from broker_edge.torture.process import BrokerProcess
from pipelines.status import StatusSettings, start_status
from sinks import tables
from sinks.devices import DevicePublisher
from sinks.rows import arrow_of, rows_of

SERIES = [{"temperature_c": value / 10} for value in range(100)]
WAIT_S = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    headwaterd()
    with BrokerProcess(data_dir=tmp_path / "broker", log_file=tmp_path / "broker.stderr.txt") as process:
        process.start()
        yield process


class Loop:
    """Tables, the status job, the engine and a fleet around one broker."""

    def __init__(self, folder: Path, spark: SparkSession, broker: BrokerProcess) -> None:
        self.root = str(folder / "tables")
        self._spark, self._broker, self._folder = spark, broker, folder
        tables.create_by_path(self.root)
        self.fleet = FleetSettings(count=50, port=broker.mqtt[1], interval_s=5, connect_timeout_s=60)

    @property
    def flight(self) -> str:
        host, port = self._broker.flight
        return f"grpc://{host}:{port}"

    def insert(self, table: tables.FieldTable, *rows: Mapping[str, Any]) -> None:
        write_deltalake(tables.uri_of(self.root, table.name), arrow_of(rows, table), mode="append")

    def rows(self, table: tables.FieldTable) -> list[dict[str, Any]]:
        return list(rows_of(DeltaTable(tables.uri_of(self.root, table.name)).to_pyarrow_table()))

    def register(self) -> list[str]:
        ids = device_ids(self.fleet)
        canaries = [{"ring": "canary"} if index < 20 else {"ring": "rest"} for index in range(len(ids))]
        self.insert(
            tables.DEVICES,
            *({"device_id": id_, "labels": {**labels_of(index), **canaries[index]}} for index, id_ in enumerate(ids)),
        )
        return ids

    def targets(self, action_id: str) -> dict[str, dict[str, Any]]:
        rows = self.rows(tables.ACTION_TARGETS)
        return {row["device_id"]: row for row in rows if row["action_id"] == action_id}

    def state(self, action_id: str) -> dict[str, Any] | None:
        rows = [row for row in self.rows(tables.ACTION_STATE) if row["action_id"] == action_id]
        return rows[0] if rows else None

    def until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            said = [(row["action_id"], row["phase"], row["message"]) for row in self.rows(tables.ACTION_STATE)]
            assert time.monotonic() < deadline, f"waited {WAIT_S} s for {what}: {said}"
            time.sleep(0.1)

    def ended(self, action_id: str) -> bool:
        state = self.state(action_id)
        return state is not None and state["phase"] == "ENDED"

    def answers(self, action_id: str) -> dict[str, str]:
        """The final state that each device has reported itself."""
        events = rows_of(DeltaTable(tables.uri_of(self.root, "action_events")).to_pyarrow_table())
        said = [row for row in events if row["action_id"] == action_id and row["source"] == "status"]
        return {row["device_id"]: row["state"] for row in said if row["state"] in ("SUCCEEDED", "CANCELLED", "FAILED")}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Runs the two jobs until the block ends."""
        checkpoint = str(self._folder / "checkpoint")
        settings = StatusSettings((self.flight,), self.root, checkpoint, trigger="500 milliseconds")
        query = start_status(self._spark, settings)
        publisher = DevicePublisher(self.flight)
        job = ActionJob(DeltalakeStore(self.root), publisher, pace=Pace(tick_s=0.5))
        thread = threading.Thread(target=job.run, name="engine", daemon=True)
        thread.start()
        try:
            yield
            assert query.exception() is None
            assert thread.is_alive()
        finally:
            job.stop()
            thread.join(120)
            query.stop()
            publisher.close()


@pytest.fixture
def loop(tmp_path: Path, spark: SparkSession, broker: BrokerProcess) -> Loop:
    return Loop(tmp_path, spark, broker)


def test_row_in_actions_moves_twenty_of_fifty_devices_and_comes_back(loop: Loop) -> None:
    ids = loop.register()
    with RunningFleet(loop.fleet, SERIES), loop.running():
        loop.insert(
            tables.ACTIONS,
            {"action_id": "a1", "name": "echo", "params": '{"text":"hi"}', "labels": {"ring": "canary"}},
            {"action_id": "nobody", "name": "echo", "labels": {"ring": "moon"}},
            {"action_id": "unknown", "name": "dance", "device_ids": [ids[0]]},
            {"action_id": "endless", "name": "sleep", "params": '{"seconds": 600}', "device_ids": ids[20:23]},
            {"action_id": "away", "name": "echo", "device_ids": ["ghost", ids[24]]},
        )
        loop.until(lambda: loop.ended("a1"), "the 20 devices")
        targets = loop.targets("a1")
        assert set(targets) == set(ids[:20])
        assert {row["state"] for row in targets.values()} == {"SUCCEEDED"}
        assert {row["result"] for row in targets.values()} == {'{"text": "hi"}'}
        assert all(row["offset"] is not None and row["delivered_at"] is not None for row in targets.values())
        loop.until(lambda: loop.ended("nobody") and loop.ended("unknown") and loop.ended("away"), "the others")
        assert (loop.state("nobody") or {})["message"].startswith("selects nobody: no device of tenant default")
        assert loop.targets("unknown")[ids[0]]["state"] == "REJECTED"
        assert {id_: row["state"] for id_, row in loop.targets("away").items()} == {
            "ghost": "SKIPPED",
            ids[24]: "SUCCEEDED",
        }
        loop.until(lambda: (loop.state("endless") or {})["counts"] == {"IN_PROGRESS": 3}, "the long command")
        loop.insert(tables.ACTION_REQUESTS, {"request_id": "r1", "action_id": "endless", "kind": "cancel", "by": "ann"})
        loop.until(lambda: loop.ended("endless"), "the cancel")
        assert (loop.state("endless") or {})["counts"] == {"CANCELLED": 3}
    receipts = [row for row in loop.rows(tables.ACTION_EVENTS) if row["source"] == "receipt"]
    delivered = {(row["action_id"], row["device_id"]) for row in receipts if row["state"] == "DELIVERED"}
    assert delivered >= {("a1", id_) for id_ in ids[:20]}
    assert loop.rows(tables.QUARANTINE) == []


def test_command_for_a_device_that_is_away_times_out_and_is_withdrawn(loop: Loop) -> None:
    ids = loop.register()
    with RunningFleet(loop.fleet, SERIES):
        pass  # From now on the broker keeps their sessions.
    with loop.running():
        row = {"action_id": "late", "name": "echo", "device_ids": ids[:2], "timeout_queued_s": 2}
        loop.insert(tables.ACTIONS, row)
        loop.until(lambda: loop.ended("late"), "the timeout")
        assert {row["state"] for row in loop.targets("late").values()} == {"TIMED_OUT"}
        with RunningFleet(loop.fleet, SERIES):
            loop.until(lambda: loop.answers("late").keys() == set(ids[:2]), "the answers of the devices")
    # The session brings the command and its withdrawal. Only a device that is faster than that carries it out.
    ends = {id_: "TIMED_OUT" if state == "CANCELLED" else state for id_, state in loop.answers("late").items()}
    assert {id_: row["state"] for id_, row in loop.targets("late").items()} == ends
