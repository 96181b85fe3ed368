"""The engine on real Delta tables and a Flight service, without a JVM: what it commits and publishes, also after a
kill."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from support.flight_server import FlightServer

from actions.engine import ActionPhase, Decision
from actions.job import ActionJob
from actions.rows import action_of
from actions.store import DeltalakeStore
from broker_edge import Client, ConnectError, Place, RefusedError, Row
from broker_edge.errors import SetupError, TableStoreError
from pipelines.actions import main
from sinks import tables
from sinks.devices import DevicePublisher
from sinks.rows import arrow_of, rows_of

SECOND = 1_000_000
START_US = 1_800_000_000 * SECOND


class World:
    """Tables in a folder, a Flight service, and a clock that the test moves."""

    def __init__(self, root: Path, server: FlightServer) -> None:
        self.root = root
        self.server = server
        self.now_us = START_US
        self.publisher = DevicePublisher(server.location)
        tables.create_by_path(root)
        self._offset = 0

    def insert(self, table: tables.FieldTable, *rows: Mapping[str, Any]) -> None:
        write_deltalake(tables.uri_of(self.root, table.name), arrow_of(rows, table), mode="append")

    def devices(self, count: int) -> list[str]:
        ids = [f"d{number}" for number in range(1, count + 1)]
        self.insert(tables.DEVICES, *({"device_id": id_, "labels": {"site": "roof"}} for id_ in ids))
        return ids

    def action(self, action_id: str = "a1", **fields: Any) -> None:
        row = {"action_id": action_id, "name": "echo", "labels": {"site": "roof"}, "created_at": START_US, **fields}
        self.insert(tables.ACTIONS, row)

    def status(self, device_id: str, state: str, *, action_id: str = "a1", **fields: Any) -> None:
        self._offset += 1
        row = {
            "event_id": f"log/5/{self._offset}",
            "source": "status",
            "action_id": action_id,
            "device_id": device_id,
            "attempt": 1,
            "state": state,
            "boot": "b1",
            "seq": self._offset,
            "log_id": "log",
            "partition": 5,
            "offset": self._offset,
            "epoch": 1,
            "at": self.now_us,
            "recorded_at": self.now_us,
        }
        self.insert(tables.ACTION_EVENTS, {**row, **fields})

    def job(self, publisher: Any = None) -> ActionJob:
        return ActionJob(DeltalakeStore(self.root), publisher or self.publisher, clock_us=lambda: self.now_us)

    def rows(self, table: tables.FieldTable) -> list[dict[str, Any]]:
        return list(rows_of(DeltaTable(tables.uri_of(self.root, table.name)).to_pyarrow_table()))

    def states(self) -> dict[str, str]:
        return {row["device_id"]: row["state"] for row in self.rows(tables.ACTION_TARGETS)}

    def action_state(self, action_id: str = "a1") -> dict[str, Any]:
        (row,) = [row for row in self.rows(tables.ACTION_STATE) if row["action_id"] == action_id]
        return row

    def commands(self) -> list[dict[str, Any]]:
        """The records for devices in the log, in order."""
        with Client(self.server.location) as client:
            offsets = client.offsets(filters="devices/+/actions")
            found = []
            for number, bounds in offsets.partitions.items():
                table = client.fetch(
                    number, bounds.log_start, bounds.high_watermark, filters="devices/+/actions"
                ).to_table()
                found += [json.loads(value) for value in table.column("value").to_pylist()]
        return found


@pytest.fixture
def world(tmp_path: Path, flight_server: FlightServer) -> World:
    return World(tmp_path / "tables", flight_server)


class Killed(BaseException):
    """Simulates kill -9: no code under test catches it."""


def test_inserted_row_reaches_its_devices_and_ends_in_the_tables(world: World) -> None:
    ids = world.devices(20)
    job = world.job()
    world.action()
    job.turn()
    assert world.states() == dict.fromkeys(ids, "QUEUED")
    assert sorted(command["device_id"] for command in world.commands()) == sorted(ids)
    assert all(row["offset"] is not None for row in world.rows(tables.ACTION_TARGETS))
    assert world.action_state()["counts"] == {"QUEUED": 20}
    for id_ in ids:
        world.status(id_, "SUCCEEDED", result='{"text":"hi"}')
    job.turn()
    assert world.states() == dict.fromkeys(ids, "SUCCEEDED")
    state = world.action_state()
    assert (state["phase"], state["open"], state["counts"]) == ("ENDED", 0, {"SUCCEEDED": 20})
    assert state["message"] == "of 20 devices 20 succeeded"


def test_turn_without_news_commits_nothing(world: World) -> None:
    world.devices(2)
    world.action()
    job = world.job()
    job.turn()

    def versions() -> list[int]:
        return [DeltaTable(tables.uri_of(world.root, name)).version() for name in tables.TABLES]

    before = versions()
    for _ in range(3):
        world.now_us += SECOND
        job.turn()
    assert versions() == before


@pytest.mark.parametrize("step", ["append", "action_targets", "action_state", "publish", "places"])
def test_kill_at_any_step_sends_each_command_once(world: World, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The repeated tick writes the rest and publishes under the same keys; the log has each record once."""
    ids = world.devices(3)
    world.action()
    world.action("wrong", percentage=250.0)
    victim = world.job(_Dies(world.publisher, before=step == "publish", after=step == "places"))
    assert isinstance(victim._store, DeltalakeStore)
    writer = victim._store._writer
    merge = writer.merge

    def die(name: str, *rest: Any) -> None:
        raise Killed(name)

    def die_for(name: str, *rest: Any) -> None:
        if name == step:
            raise Killed(name)
        merge(name, *rest)

    if step == "append":
        monkeypatch.setattr(writer, "append", die)
    elif step.startswith("action_"):
        monkeypatch.setattr(writer, "merge", die_for)
    with pytest.raises(Killed):
        victim.turn()
    job = world.job()
    job.turn()
    job.turn()
    assert world.states() == dict.fromkeys(ids, "QUEUED")
    assert sorted(command["device_id"] for command in world.commands()) == ids
    events = [row["event_id"] for row in world.rows(tables.ACTION_EVENTS)]
    assert events == ["engine/wrong/REFUSED"]
    assert world.action_state("wrong")["phase"] == "REFUSED"


class _Dies:
    """A publisher that dies before or after publishing."""

    def __init__(self, inner: DevicePublisher, *, before: bool, after: bool) -> None:
        self._inner, self._before, self._after = inner, before, after

    name = None

    def log_id(self) -> str:
        return "log"

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        if self._before:
            raise Killed("before the publish")
        places = self._inner.publish(rows)
        if self._after:
            raise Killed("after the publish")
        return places


def test_control_without_idempotency_keys_a_kill_doubles_commands(world: World) -> None:
    """Negative control of the test above: it can fail."""
    world.devices(1)
    world.action()
    client = Client(world.server.location)

    class Keyless:
        name = None

        def log_id(self) -> str:
            return "log"

        def publish(self, rows: Sequence[Row]) -> list[Place]:
            client.produce([Row(topic=row.topic, value=row.value) for row in rows])
            raise Killed("after the publish")

    for _ in range(2):
        with pytest.raises(Killed):
            world.job(Keyless()).turn()
    assert len(world.commands()) == 2
    client.close()


def test_restart_in_the_middle_goes_on_where_the_tables_are(world: World) -> None:
    world.devices(2)
    world.action()
    world.job().turn()
    world.status("d1", "IN_PROGRESS", progress=40)
    world.job().turn()
    world.status("d1", "SUCCEEDED")
    world.status("d2", "FAILED", message="no power")
    job = world.job()
    job.turn()
    assert world.states() == {"d1": "SUCCEEDED", "d2": "FAILED"}
    assert job.state.actions["a1"].phase is ActionPhase.ENDED
    assert len(world.commands()) == 2
    assert world.job().turn() == Decision()


def test_ended_action_is_not_started_again_by_a_second_row(world: World) -> None:
    world.devices(1)
    world.action()
    world.job().turn()
    world.status("d1", "SUCCEEDED")
    world.job().turn()
    world.action(name="reboot")
    world.job().turn()
    assert len(world.commands()) == 1
    (event,) = [row for row in world.rows(tables.ACTION_EVENTS) if row["source"] == "engine"]
    assert "was committed earlier and is used" in event["message"]


def test_first_committed_row_wins_across_a_restart(world: World) -> None:
    world.devices(1)
    world.action(name="echo")
    world.action(name="reboot")
    world.job().turn()
    world.job().turn()
    assert [command["name"] for command in world.commands()] == ["echo"]


def test_cancel_request_stops_what_runs_and_is_answered(world: World) -> None:
    world.devices(2)
    world.action()
    job = world.job()
    job.turn()
    world.status("d1", "SUCCEEDED")
    request = {"request_id": "r1", "action_id": "a1", "kind": "cancel", "by": "ann", "at": START_US}
    world.insert(tables.ACTION_REQUESTS, request)
    job.turn()
    assert world.states() == {"d1": "SUCCEEDED", "d2": "CANCELLING"}
    assert [command["type"] for command in world.commands()].count("cancel") == 1
    (answer,) = [row for row in world.rows(tables.ACTION_EVENTS) if row["request_id"] == "r1"]
    assert answer["message"] == "cancel: 0 ended at once, 1 asked to stop, 1 already ended"
    world.status("d2", "CANCELLED")
    job = world.job()
    job.turn()
    assert world.action_state()["counts"] == {"CANCELLED": 1, "SUCCEEDED": 1}
    assert world.action_state()["requests_done"] == ["r1"]


def test_cancel_before_the_engine_ran_sends_nothing(world: World) -> None:
    world.devices(2)
    world.action()
    world.insert(tables.ACTION_REQUESTS, {"request_id": "r1", "action_id": "a1", "kind": "cancel"})
    world.job().turn()
    assert world.states() == {"d1": "CANCELLED", "d2": "CANCELLED"}
    assert world.commands() == []


def test_timeout_needs_no_data(world: World) -> None:
    world.devices(1)
    world.action(timeout_queued_s=30)
    job = world.job()
    job.turn()
    world.now_us += 31 * SECOND
    job.turn()
    assert world.states() == {"d1": "TIMED_OUT"}
    world.status("d1", "SUCCEEDED")
    world.job().turn()
    (row,) = world.rows(tables.ACTION_TARGETS)
    assert (row["state"], row["late"]) == ("SUCCEEDED", True)
    engine_said = [row["event_id"] for row in world.rows(tables.ACTION_EVENTS) if row["source"] == "engine"]
    assert sorted(engine_said) == ["engine/a1/d1/1/LATE_SUCCESS", "engine/a1/d1/1/TIMED_OUT"]


def test_action_that_selects_nobody_ends_with_a_sentence(world: World) -> None:
    world.devices(1)
    world.action(labels={"site": "moon"})
    world.job().turn()
    state = world.action_state()
    assert (state["phase"], state["targets"]) == ("ENDED", 0)
    assert state["message"] == (
        "selects nobody: no device of tenant default matches labels site=moon; nothing was sent"
    )


def test_unmatched_report_survives_restarts_and_is_quarantined_once(world: World) -> None:
    world.devices(1)
    world.action()
    world.status("d1", "SUCCEEDED", action_id="elsewhere")
    world.status("d1", "SUCCEEDED")
    job = world.job()
    job.turn()
    job.turn()  # Reports from before the command was sent are applied afterwards.
    assert world.states() == {"d1": "SUCCEEDED"}
    assert world.rows(tables.QUARANTINE) == []
    world.now_us += 601 * SECOND
    world.job().turn()
    world.job().turn()
    (row,) = world.rows(tables.QUARANTINE)
    assert "no target matched within 600 s: action elsewhere" in row["reason"]


def test_broker_that_is_away_delays_commands_and_loses_none(world: World) -> None:
    world.devices(2)
    world.action()

    class Away:
        name = None

        def log_id(self) -> str:
            return "log"

        def publish(self, rows: Sequence[Row]) -> list[Place]:
            raise ConnectError("nobody answers at grpc://127.0.0.1:1")

    job = world.job(Away())
    job.turn()
    assert world.states() == {"d1": "PENDING", "d2": "PENDING"}
    world.job().turn()
    assert world.states() == {"d1": "QUEUED", "d2": "QUEUED"}


def test_missing_table_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"there is no table actions under .*create_by_path"):
        DeltalakeStore(tmp_path / "nowhere")


def test_tables_are_made_once(tmp_path: Path) -> None:
    tables.create_by_path(tmp_path)
    write_deltalake(tables.uri_of(tmp_path, "devices"), arrow_of([{"device_id": "d1"}], tables.DEVICES), mode="append")
    tables.create_by_path(tmp_path)
    assert DeltaTable(tables.uri_of(tmp_path, "devices")).version() == 1


def test_engine_that_was_replaced_stops_at_its_next_commit(world: World) -> None:
    ids = world.devices(3)
    old = world.job()
    new = world.job()
    world.action()
    new.turn()
    world.status("d1", "SUCCEEDED")
    with pytest.raises(TableStoreError, match="a newer engine has taken over"):
        old.turn()
    assert world.states() == dict.fromkeys(ids, "QUEUED")
    new.turn()
    assert world.states()["d1"] == "SUCCEEDED"
    assert sorted(command["device_id"] for command in world.commands()) == ids


def test_publisher_refuses_what_is_not_for_a_device(world: World) -> None:
    with pytest.raises(RefusedError, match="no idempotency key"):
        world.publisher.publish([Row(topic="devices/d1/actions", value=b"{}")])
    with pytest.raises(RefusedError, match="not a topic devices/<id>/actions"):
        world.publisher.publish([Row(topic="devices/d1/telemetry", value=b"{}", idempotency_key="k")])
    assert world.commands() == []


def test_job_is_a_process_that_stops_on_a_signal(world: World) -> None:
    world.devices(2)
    world.action()
    command = [sys.executable, "-m", "pipelines.actions", "--root", str(world.root), "--server", world.server.location]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while world.states() != {"d1": "QUEUED", "d2": "QUEUED"}:
            assert time.monotonic() < deadline, process.poll()
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("--root", "nowhere"), 1, "error: there is no table actions under nowhere"),
        (("--config", "nowhere.yaml"), 5, "error: cannot read the settings nowhere.yaml"),
    ],
)
def test_job_that_cannot_start_says_why_in_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, said: str
) -> None:
    assert main(arguments) == code
    assert said in capsys.readouterr().err


def test_action_id_with_quotes_is_an_id_like_any_other(world: World) -> None:
    """Ids are used in SQL as literals, and must not end them."""
    world.devices(1)
    name = "it's '' OR '1'='1"
    world.action(name)
    world.action("other")
    world.job().turn()
    world.status("d1", "SUCCEEDED", action_id=name)
    world.job().turn()
    ended = {row["action_id"]: row["phase"] for row in world.rows(tables.ACTION_STATE)}
    assert ended == {name: "ENDED", "other": "RUNNING"}


def test_tables_of_an_older_version_get_the_columns_that_they_lack(world: World) -> None:
    """Their rows stay: an action that an older engine started continues."""
    newer = {"wave", "mode", "sent_at", "begun_at", "retry_at", "forced", "leaving", "claimed"}
    shutil.rmtree(tables.uri_of(world.root, "action_targets"))
    older = pa.schema([field for field in tables.ACTION_TARGETS.arrow_schema() if field.name not in newer])
    started = {"action_id": "a1", "tenant": "default", "device_id": "d1", "attempt": 1, "state": "QUEUED", "offset": 7}
    times = dict.fromkeys(("created_at", "since_at", "updated_at"), START_US)
    row = pa.Table.from_pylist([{**started, **times}], schema=older)
    write_deltalake(tables.uri_of(world.root, "action_targets"), row)
    world.devices(1)
    world.action()
    world.insert(tables.ACTION_STATE, {"action_id": "a1", "tenant": "default", "phase": "RUNNING", **_old_state()})
    job = world.job()
    world.status("d1", "SUCCEEDED")
    job.turn()
    (target,) = world.rows(tables.ACTION_TARGETS)
    assert (target["state"], target["offset"], target["wave"]) == ("SUCCEEDED", 7, 0)
    assert world.action_state()["phase"] == "ENDED"


def _old_state() -> dict[str, Any]:
    row = {"action_id": "a1", "name": "echo", "labels": {"site": "roof"}, "created_at": START_US}
    digest = action_of(row, commit_version=0)
    counts = {"targets": 1, "open": 1, "counts": {"QUEUED": 1}, "message": "", "digest": digest.digest}
    return {**counts, "started_at": START_US, "updated_at": START_US}
