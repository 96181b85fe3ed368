"""How the engine writes rows of new actions, and how soon it sees a changed table: quickly, and never a row twice."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake.exceptions import CommitFailedError
from support.engine_world import EngineWorld, PretendedLog

from actions import store as store_
from actions import table_writer
from actions.job import ActionJob, Pace
from actions.store import DeltalakeStore
from actions.table_writer import TableWriter
from broker_edge import Place, Row
from broker_edge.errors import EngineFencedError, TableStoreError
from sinks import tables
from sinks.rows import arrow_of, rows_of

WAIT_S = 30.0
KEPT = ("action_targets", "action_state")


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    world = EngineWorld(tmp_path)
    world.devices("d1", "d2")
    return world


def operations(world: EngineWorld, name: str) -> list[str]:
    """What the commits of the table did, the newest last; without those that wrote no rows."""
    done = [one["operation"] for one in reversed(world.table(name).history())]
    return [one for one in done if one in ("WRITE", "MERGE")]


def require_once(world: EngineWorld) -> None:
    """Each target and each action has one row."""
    for name, key in zip(KEPT, (("action_id", "device_id"), ("action_id",)), strict=True):
        counts = Counter(tuple(row[column] for column in key) for row in world.rows(name))
        assert counts, name
        assert max(counts.values()) == 1, (name, counts)


def test_rows_of_a_new_action_are_appended_and_then_merged(world: EngineWorld) -> None:
    world.action()
    job = world.job()
    job.turn()
    assert world.states() == {"QUEUED"}
    assert [operations(world, name)[-2:] for name in KEPT] == [["WRITE", "MERGE"]] * 2
    world.status("d1", "SUCCEEDED")
    world.action("a2")
    job.turn()
    assert operations(world, "action_targets")[-3:] == ["WRITE", "MERGE", "MERGE"], "new rows, a1, and the places of a2"
    require_once(world)
    job.close()


def test_a_kill_between_the_two_commits_of_a_new_action_doubles_no_row(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(rows: Any) -> Any:
        raise TableStoreError("killed")

    world.action()
    with monkeypatch.context() as patch:
        patch.setattr(store_, "states_table", killed)
        with pytest.raises(TableStoreError):
            world.job().turn()
    assert (len(world.rows("action_targets")), world.rows("action_state")) == (2, [])
    job = world.job()
    job.turn()
    job.close()
    require_once(world)
    assert (world.states(), len(world.log.keys)) == ({"QUEUED"}, 2)


def test_a_commit_that_a_store_confirms_too_late_doubles_no_row(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, late = table_writer.write_deltalake, []

    def write(table: Any, rows: Any, **options: Any) -> None:
        real(table, rows, **options)
        late.append(table.table_uri)
        raise CommitFailedError("another commit has this version")

    monkeypatch.setattr(table_writer, "write_deltalake", write)
    world.action()
    job = world.job()
    job.turn()
    job.close()
    assert len(late) == 2, "the targets and the state of the new action"
    require_once(world)
    assert world.states() == {"QUEUED"}


def test_an_engine_that_was_replaced_between_check_and_append_writes_nothing(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.action()
    job, real, claims = world.job(), TableWriter.refuse_if_fenced, [True]

    def check(writer: TableWriter) -> None:
        real(writer)
        if claims.pop() if claims else False:
            DeltalakeStore(world.root).claim()

    monkeypatch.setattr(TableWriter, "refuse_if_fenced", check)
    with pytest.raises(EngineFencedError):
        job.turn()
    assert (world.rows("action_targets"), world.log.keys) == ([], [])


def test_of_several_rows_of_a_device_the_first_one_counts_and_the_log_says_so_once(
    world: EngineWorld, caplog: pytest.LogCaptureFixture
) -> None:
    store = DeltalakeStore(world.root)
    later, first = (
        {"device_id": "d1", "created_at": at, "labels": {"site": site}} for at, site in ((2, "b"), (1, "a"))
    )
    world.insert(tables.DEVICES, later)
    world.insert(tables.DEVICES, first, {"device_id": "d1", "labels": {"site": "never"}})
    world.insert(tables.DEVICES, {"device_id": "d1", "created_at": 0, "retired_at": 1, "labels": {"site": "old"}})
    devices = store.news().devices
    assert devices is not None
    assert devices["d1"].labels == {"site": "a"}
    world.devices("d3")
    assert set(store.news().devices or ()) == {"d1", "d2", "d3"}
    said = "1 ids are in several rows of the table devices: d1; the row that was created first counts"
    assert [record.getMessage() for record in caplog.records] == [said]


def test_the_engine_knows_who_was_retired_and_removes_all_of_them(world: EngineWorld) -> None:
    job = prepared(world)
    table = world.table("devices")
    table.update({"retired_at": "now()"})
    job.turn()
    job.turn()
    assert world.states() == {"REMOVED"}


def test_a_table_of_devices_that_is_rewritten_ends_no_target(world: EngineWorld) -> None:
    job = prepared(world)
    world.table("devices").delete()
    job.turn()
    (row,) = world.rows("action_state")
    assert (row["held"] or "").startswith("their removal is held: 9 of 9 open devices")
    job = world.job()  # Killed and started again while the table is empty.
    job.turn()
    assert world.states() == {"QUEUED"}
    world.devices(*(f"d{number}" for number in range(1, 10)))
    job.turn()
    (row,) = world.rows("action_state")
    assert (row["held"], row["phase"], world.states()) == (None, "RUNNING", {"QUEUED"})
    said = [row for row in world.rows("action_events") if row["state"].startswith("HELD_")]
    assert len(said) == 1


def prepared(world: EngineWorld) -> ActionJob:
    """A job that has sent an action to nine devices."""
    world.devices(*(f"d{number}" for number in range(3, 10)))
    world.action()
    job = world.job()
    job.turn()
    job.turn()
    assert world.states() == {"QUEUED"}
    return job


def test_a_quick_look_sees_a_new_commit_of_a_table_that_people_write(world: EngineWorld) -> None:
    store = DeltalakeStore(world.root)
    assert store.has_changed(), "nothing has been read yet"
    store.news()
    for change in (
        lambda: world.action(),
        lambda: world.devices("d3"),
        lambda: world.status("d1", "ACCEPTED"),
    ):
        assert not store.has_changed()
        change()
        assert store.has_changed()
        store.news()
    elsewhere = DeltalakeStore(f"file://{world.root}")
    assert not elsewhere.has_changed(), "a look at an object store would take long"


def test_the_job_sees_a_new_action_before_the_next_check_of_all_tables(world: EngineWorld) -> None:
    class Told(PretendedLog):
        came = threading.Event()

        def publish(self, rows: Sequence[Row]) -> list[Place]:
            self.came.set()
            return super().publish(rows)

    world.log = told = Told()
    job = world.job(Pace(tick_s=3_600, poll_s=3_600))
    running = threading.Thread(target=job.run, daemon=True)
    running.start()
    world.action()
    assert told.came.wait(WAIT_S)
    job.stop()
    running.join(WAIT_S)
    assert not running.is_alive()


def test_a_command_does_not_wait_for_the_rows_of_devices(world: EngineWorld) -> None:
    class Looking(PretendedLog):
        seen: list[int]

        def publish(self, rows: Sequence[Row]) -> list[Place]:
            self.seen = [len(world.rows("device_state"))]
            return super().publish(rows)

    world.log = looking = Looking()
    job = world.job()
    world.online("d1", "1")
    world.action()
    job.turn()
    assert looking.seen == [0]
    assert world.versions() == {"d1": "1"}, "written by the same turn, after the command"
    job.close()


def test_rows_of_devices_are_written_while_a_broker_is_away(world: EngineWorld) -> None:
    """Its records stay owed, so that every turn has something to publish."""
    world.log.is_away = True
    job = world.job(Pace(device_state_s=0.0))
    world.action()
    for version in ("1", "2"):
        world.online("d1", version)
        job.turn()
        assert world.versions() == {"d1": version}
    job.close()


def test_rows_are_read_in_parts_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.rows._ROWS_AT_ONCE", 3)
    rows = [{"device_id": f"d{n}", "labels": {"n": str(n)}, "created_at": n, "tenant": "t"} for n in range(8)]
    found = list(rows_of(arrow_of(rows, tables.DEVICES)))
    assert [(row["device_id"], row["labels"], row["created_at"]) for row in found] == [
        (row["device_id"], row["labels"], row["created_at"]) for row in rows
    ]


def test_targets_that_are_loaded_share_the_texts_of_their_action(tmp_path: Path) -> None:
    world = EngineWorld(tmp_path / "tables")
    world.devices("d1", "d2")
    world.action()
    job = world.job()
    job.turn()
    first, second = world.job().state.targets["a1"].values()
    assert first.action_id is second.action_id
    assert first.tenant is second.tenant
