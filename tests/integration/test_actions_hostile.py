"""What users and other programs may do to the tables of a running engine: each case has one correct result, and other
actions are not affected."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine_world import SECOND, EngineWorld

from broker_edge.errors import EngineFencedError
from sinks import tables


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    world = EngineWorld(tmp_path / "tables")
    world.devices("d1", "d2")
    return world


def test_row_that_is_updated_or_deleted_later_goes_on_as_it_was_inserted(world: EngineWorld) -> None:
    """Users should only insert. Updates and deletes change nothing about a running action, in this run of the engine or
    the next."""
    for action_id in ("updated", "deleted", "a1"):
        world.action(action_id, timeout_queued_s=50, max_in_flight=1)
    job = world.job()
    job.turn()
    world.table("actions").update(predicate="action_id = 'updated'", updates={"name": "'reboot'"})
    world.table("actions").delete("action_id = 'deleted'")
    job.turn()
    job = world.job()
    for action_id in ("updated", "deleted", "a1"):
        world.status("d1", "SUCCEEDED", action_id=action_id)
    job.turn()
    assert sorted(world.log.keys) == sorted(
        f"{id_}/{d}/1" for id_ in ("updated", "deleted", "a1") for d in ("d1", "d2")
    )
    assert b'"name":"echo"' in world.log.values["updated/d2/1"]
    world.now_us += 60 * SECOND
    job.turn()
    assert {row["action_id"]: row["phase"] for row in world.rows("action_state")} == dict.fromkeys(
        ("updated", "deleted", "a1"), "ENDED"
    )


def test_tables_that_are_compacted_and_vacuumed_under_the_engine_lose_nothing(world: EngineWorld) -> None:
    world.action("a1")
    job = world.job()
    job.turn()
    # New commits are compacted and their own files removed before the engine has seen them.
    world.action("a2")
    world.status("d1", "SUCCEEDED")
    world.status("d2", "FAILED", action_id="a2")
    for name in tables.TABLES:
        table = world.table(name)
        table.optimize.compact()
        table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    job.turn()
    job.turn()
    assert sorted(world.log.keys) == ["a1/d1/1", "a1/d2/1", "a2/d1/1", "a2/d2/1"]
    found = {(row["action_id"], row["device_id"]): row["state"] for row in world.rows("action_targets")}
    assert found["a1", "d1"] == "SUCCEEDED"
    assert found["a2", "d2"] == "FAILED"
    world.job().turn()
    assert len(world.log.keys) == 4


def test_ids_with_quotes_emoji_and_sql_survive_a_restart(world: EngineWorld) -> None:
    ids = ["it's", '"', "\U0001f642", "\\", "%_", "'; DROP TABLE actions; --", "a -- b", "${x}", "a\u2028b"]
    for id_ in ids:
        world.action(f"do {id_}", device_ids=["d1"])
    world.job().turn()
    job = world.job()
    for id_ in ids:
        world.status("d1", "SUCCEEDED", action_id=f"do {id_}")
    job.turn()
    assert len(world.log.keys) == len(ids)
    assert {row["action_id"]: row["phase"] for row in world.rows("action_state")} == {
        f"do {id_}": "ENDED" for id_ in ids
    }


def test_second_row_of_an_id_in_the_same_commit_is_named_and_the_first_stays_after_a_restart(
    world: EngineWorld,
) -> None:
    base = {"action_id": "a1", "percentage": 100.0}
    world.insert(tables.ACTIONS, {**base, "name": "one"}, {**base, "name": "other"})
    world.job().turn()
    world.job().turn()
    (refused,) = [row["message"] for row in world.rows("action_events") if row["state"] == "REFUSED"]
    assert "was committed earlier and is used: choose another id" in refused
    assert len({value.split(b'"name":')[1][:7] for value in world.log.values.values()}) == 1
    assert len(world.log.keys) == 2


def test_row_without_an_id_is_left_alone_and_said_in_the_log(
    world: EngineWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.insert(
        tables.ACTIONS,
        {"name": "nameless", "percentage": 100.0},
        {"action_id": "a1", "name": "echo", "device_ids": ["d1"]},
    )
    world.job().turn()
    assert world.log.keys == ["a1/d1/1"]
    assert "ignoring a row of the table actions without action_id: nameless" in caplog.text


def test_older_of_two_engines_writes_and_publishes_nothing_more(world: EngineWorld) -> None:
    old = world.job()
    old.turn()
    new = world.job()
    world.action("a1")
    with pytest.raises(EngineFencedError, match="a newer engine has taken over"):
        old.turn()
    assert world.log.keys == []
    new.turn()
    assert sorted(world.log.keys) == ["a1/d1/1", "a1/d2/1"]
