"""Reports and requests about an action whose rows are in the archives find them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.archive_world import (
    DAY,
    archive_all,
    copy_of,
    counts,
    old_world,
    owners,
    request,
    stages,
    state,
)
from support.engine_world import EngineWorld

from actions.fleet_desk import FleetDesk
from actions.table_reader import TableReader


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> EngineWorld:
    return old_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(made: EngineWorld, tmp_path: Path) -> EngineWorld:
    return copy_of(made, tmp_path / "tables")


def test_a_late_success_of_an_archived_target_counts_and_reads_one_row(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive_all(world)
    job = world.job()
    job.turn()
    read: list[int] = []
    real = TableReader.values

    def counted(reader: TableReader, *arguments: Any, **named: Any) -> Any:
        found = real(reader, *arguments, **named)
        read.append(len(found))
        return found

    monkeypatch.setattr(TableReader, "values", counted)
    world.status("d1", "SUCCEEDED")
    world.status("d4", "FAILED")
    job.turn()
    job.close()
    assert sum(read) == 2
    assert counts(world) == {"SUCCEEDED": 4, "TIMED_OUT": 1}
    (live,) = [row for row in world.rows("action_targets") if row["action_id"] == "a1"]
    assert (live["device_id"], live["state"], live["late"]) == ("d1", "SUCCEEDED", True)
    assert {row["device_id"]: row["state"] for row in FleetDesk(world.root).targets("a1")}["d1"] == "SUCCEEDED"
    assert state(world)["archived_at"] is not None
    # It goes the same way again, and replaces the row of then.
    archive_all(world)
    assert owners(world, "action_targets") == {"a2"}
    found = {row["device_id"]: row["state"] for row in world.rows("action_targets_archive")}
    assert len(world.rows("action_targets_archive")) == len(found) == 5
    assert found["d1"] == "SUCCEEDED"


def test_a_kill_while_a_changed_target_moves_again_loses_no_change(
    made: EngineWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(world: EngineWorld) -> None:
        archive_all(world)
        job = world.job()
        job.turn()
        world.status("d1", "SUCCEEDED")
        job.turn()
        job.close()
        request(world, "a1-late", action_id="a1", kind="resume", at=world.now_us - 95 * DAY)
        world.table("action_state").update(
            updates={"requests_done": "array_append(requests_done, 'a1-late')", "archived_at": "NULL"},
            predicate="action_id = 'a1'",
        )

    def states(world: EngineWorld) -> dict[str, str]:
        return {row["device_id"]: row["state"] for row in FleetDesk(world.root).targets("a1")}

    wanted = {"d1": "SUCCEEDED", "d2": "TIMED_OUT", "d3": "SUCCEEDED", "d4": "SUCCEEDED", "d5": "SUCCEEDED"}
    reached = []
    for stage, world in stages(made, tmp_path, monkeypatch, changed):
        assert states(world) == wanted, stage
        archive_all(world)
        assert states(world) == wanted, stage
        assert len(world.rows("action_targets_archive")) == 5, stage
        reached.append(stage)
    assert any("put" in stage for stage in reached)


def test_a_retry_opens_an_archived_action_again(world: EngineWorld) -> None:
    archive_all(world)
    job = world.job()
    job.turn()
    request(world, "again", action_id="a1", kind="retry")
    job.turn()
    world.passes(1)
    job.turn()
    job.close()
    assert state(world)["phase"] == "RUNNING"
    assert counts(world) == {"QUEUED": 2, "SUCCEEDED": 3}
    job = world.job()  # After a restart too.
    job.turn()
    assert len(job.state.targets["a1"]) == 5
    for device_id in ("d1", "d2"):
        world.status(device_id, "SUCCEEDED", attempt=2)
    job.turn()
    job.close()
    assert (state(world)["phase"], counts(world)) == ("ENDED", {"SUCCEEDED": 5})
    archive_all(world)
    assert "a1" in owners(world, "action_targets"), "it has ended now"
    world.now_us += 100 * DAY
    archive_all(world)
    rows = [row for row in world.rows("action_targets_archive") if row["action_id"] == "a1"]
    assert {row["device_id"]: row["attempt"] for row in rows} == {"d1": 2, "d2": 2, "d3": 1, "d4": 1, "d5": 1}
    assert len(rows) == 5


def test_requests_about_an_archived_action_are_answered(world: EngineWorld) -> None:
    archive_all(world)
    job = world.job()
    job.turn()
    for kind, device_id in (("cancel", "d1"), ("pause", None), ("cancel", "stranger"), ("retry", "d3")):
        request(world, f"{kind} {device_id}", action_id="a1", kind=kind, device_id=device_id)
    job.turn()
    job.close()
    said = {row["request_id"]: row["message"] for row in world.rows("action_events") if row["request_id"]}
    assert said["cancel d1"] == "cancel: 0 ended at once, 0 asked to stop, 1 already ended"
    assert said["pause None"] == "refused: the action is ENDED"
    assert said["cancel stranger"] == "refused: device stranger is not a target of this action"
    assert said["retry d3"] == "refused: this device did not end in error"


def test_an_action_may_depend_on_an_archived_one(world: EngineWorld) -> None:
    archive_all(world)
    job = world.job()
    world.action("a3", depends_on=["a1"])
    job.turn()
    job.close()
    assert counts(world, "a3") == {"QUEUED": 3, "SKIPPED": 2}
    plan = FleetDesk(world.root)
    assert len(plan.targets("a1")) == 5


def test_an_id_stays_taken_and_a_second_row_is_named(world: EngineWorld) -> None:
    archive_all(world)
    job = world.job()
    job.turn()
    world.action("a1", name="other")
    job.turn()
    job.close()
    (event,) = [row for row in world.rows("action_events") if "committed earlier" in (row["message"] or "")]
    assert event["action_id"] == "a1"
    assert counts(world) == {"SUCCEEDED": 3, "TIMED_OUT": 2}


def test_a_report_that_is_read_again_is_not_quarantined_twice(world: EngineWorld) -> None:
    """Such as when the history of action_events is gone and the whole table is read."""
    (row,) = [row for row in world.rows("quarantine") if row["pipeline"] == "actions"]
    archive_all(world)
    world._offset = row["offset"] - 1
    world.status("d1", "ACCEPTED", action_id="nobody", recorded_at=world.now_us - 99 * DAY, event_id="again")
    job = world.job()
    job.turn()
    job.close()
    assert [row for row in world.rows("quarantine") if row["pipeline"] == "actions"] == []
