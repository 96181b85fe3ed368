"""Old events move to the archive: none is lost or doubled, whatever comes between, and nothing else notices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from support.engine_world import SECOND, EngineWorld

from actions import archive as archive_
from actions.event_log import EventLog
from actions.fleet_desk import FleetDesk
from actions.job import Pace
from actions.progress import device_of
from actions.store import DeltalakeStore
from actions.table_writer import TableWriter
from broker_edge.errors import EngineFencedError, TableStoreError

DAY = 24 * 3600 * SECOND
LIVE, OLD = "action_events", "action_events_archive"


class KilledError(Exception):
    pass


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    """`a1` has ended, `a2` is open, `nobody` never existed; all of their events are old."""
    world = EngineWorld(tmp_path)
    world.devices("d1", "d2")
    FleetDesk(world.root, by="ann").ask("pause", "a1", reason="wait")
    for action_id in ("a1", "a2"):
        world.action(action_id)
    job = world.job()
    job.turn()
    FleetDesk(world.root, by="ann").ask("resume", "a1")
    job.turn()
    for device_id in ("d1", "d2"):
        for state in ("ACCEPTED", "SUCCEEDED"):
            world.status(device_id, state)
        world.status(device_id, "ACCEPTED", action_id="a2")
        world.status(device_id, "ACCEPTED", action_id="nobody")
        world.online(device_id, "1.0")
    job.turn()
    job.close()
    assert (world.states("a1"), world.states("a2")) == ({"SUCCEEDED"}, {"ACCEPTED"})
    world.now_us += 100 * DAY
    return world


def engine(world: EngineWorld) -> DeltalakeStore:
    store = DeltalakeStore(world.root)
    store.claim()
    return store


def archive_all(world: EngineWorld, store: DeltalakeStore | None = None) -> int:
    """The number of parts."""
    store, parts = store or engine(world), 0
    while store.archive(world.now_us - 90 * DAY):
        parts += 1
        assert parts < 100
    return parts


def events(world: EngineWorld, *names: str) -> Counter[str]:
    return Counter(row["event_id"] for name in names for row in world.rows(name))


def actions(world: EngineWorld, name: str) -> set[str | None]:
    return {row["action_id"] for row in world.rows(name)}


def test_events_of_ended_actions_move_and_others_stay(world: EngineWorld) -> None:
    before = world.rows(LIVE)
    archive_all(world)
    assert actions(world, LIVE) == {"a2"}
    assert actions(world, OLD) == {"a1", "nobody", None}
    key = lambda row: row["event_id"]  # noqa: E731
    assert sorted(world.rows(LIVE) + world.rows(OLD), key=key) == sorted(before, key=key), "every column is kept"


def test_events_stay_until_their_time_has_passed(world: EngineWorld) -> None:
    world.now_us -= 20 * DAY
    before = world.rows(LIVE)
    fresh = {row["event_id"] for row in before if row["source"] == "status"}
    archive_all(world)
    assert fresh <= set(events(world, LIVE)), "they are 80 days old"


def test_a_large_action_moves_in_parts(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        world.now_us += number
        world.status("d1", "SUCCEEDED")
    before, many = events(world, LIVE), 6
    world.now_us += 100 * DAY
    monkeypatch.setattr(archive_, "PART_ROWS", 2)
    assert archive_all(world) > many // 2
    assert (events(world, LIVE, OLD), actions(world, LIVE)) == (before, {"a2"})


STEPS = ("append", "sync", "delete")


def killed_at(step: str, when: str, patch: pytest.MonkeyPatch) -> None:
    real_of = archive_.ArchiveWriter.__init__

    def of(tables: Any, writer: TableWriter) -> None:
        real_of(tables, writer)
        real: Callable[..., None] = getattr(tables, step)

        def killed(*arguments: Any) -> None:
            if when == "after":
                real(*arguments)
            raise KilledError(step)

        setattr(tables, step, killed)

    patch.setattr(archive_.ArchiveWriter, "__init__", of)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_step_loses_and_doubles_no_event(
    world: EngineWorld, step: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = events(world, LIVE)
    for _ in range(3):
        with monkeypatch.context() as patch:
            killed_at(step, when, patch)
            with pytest.raises(KilledError):
                archive_all(world)
        assert set(events(world, LIVE, OLD)) == set(before), "each event is in one of the tables"
        assert max(events(world, OLD).values(), default=1) == 1
    archive_all(world)
    assert events(world, LIVE, OLD) == before
    assert actions(world, LIVE) == {"a2"}


def test_control_without_the_look_into_the_archive_a_kill_doubles_events(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the second copy does repeat the first one."""
    with monkeypatch.context() as patch:
        killed_at("sync", "before", patch)
        with pytest.raises(KilledError):
            archive_all(world)
    looks = []

    def not_in(rows: pa.Table, archived: pa.Table) -> pa.Table:
        looks.append(1)
        return rows if len(looks) % 2 else rows.slice(0, 0)

    monkeypatch.setattr(archive_, "not_in", not_in)
    archive_all(world)
    assert max(events(world, OLD).values()) == 2


def test_nothing_is_deleted_that_the_archive_lacks(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    before = events(world, LIVE)
    monkeypatch.setattr(TableWriter, "append", lambda *_: None)
    with pytest.raises(TableStoreError, match="nothing was deleted"):
        archive_all(world)
    assert events(world, LIVE) == before


def between(patch: pytest.MonkeyPatch, change: Callable[[], None]) -> None:
    """Makes a change once, between the copy and the delete."""
    real, left = TableWriter.delete, [change]

    def delete(writer: TableWriter, table: DeltaTable, name: str, where: str) -> None:
        if left:
            left.pop()()
        real(writer, table, name, where)

    patch.setattr(TableWriter, "delete", delete)


def test_statuses_that_arrive_meanwhile_stay_and_stop_no_move(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    between(monkeypatch, lambda: world.status("d1", "FAILED", event_id="late"))
    archive_all(world)
    assert "deleted with the next try" not in caplog.text
    assert [row["event_id"] for row in world.rows(LIVE) if row["action_id"] == "a1"] == ["late"]


def test_an_old_event_that_arrives_between_copy_and_delete_is_not_lost(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as from a job whose clock is behind. The delete would match it, but only touches what was copied."""
    old_us = world.now_us - 95 * DAY
    between(monkeypatch, lambda: world.status("d1", "FAILED", event_id="old", recorded_at=old_us))
    before = events(world, LIVE)
    store = engine(world)
    store._archive._due.append("a1")
    store.archive(world.now_us - 90 * DAY)
    assert events(world, LIVE, OLD)["old"] == 1
    archive_all(world, store)
    assert events(world, LIVE, OLD) == before + Counter(["old"])


def test_a_superseded_engine_deletes_nothing_after_its_copy(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims: list[DeltalakeStore] = []
    between(monkeypatch, lambda: claims.append(engine(world)))
    before = events(world, LIVE)
    with pytest.raises(EngineFencedError):
        archive_all(world)
    assert claims
    assert events(world, LIVE) == before
    archive_all(world, claims[0])
    assert events(world, LIVE, OLD) == before


def test_the_engine_goes_on_after_a_move_and_a_late_report_revives_nothing(world: EngineWorld) -> None:
    job = world.job(Pace(keep_s=90 * 24 * 3600.0))
    job.turn()
    for _ in range(5):
        job._archive_from = 0.0
        job._archive()
    assert actions(world, LIVE) == {"a2"}
    ended = [row for row in world.rows("action_state") if row["action_id"] == "a1"]
    world.status("d1", "FAILED")
    world.status("d1", "SUCCEEDED", action_id="a2")
    job.turn()
    job.close()
    assert world.states("a1") == {"SUCCEEDED"}
    assert [row for row in world.rows("action_state") if row["action_id"] == "a1"] == ended
    of_d1 = [
        row["state"] for row in world.rows("action_targets") if (row["action_id"], row["device_id"]) == ("a2", "d1")
    ]
    assert of_d1 == ["SUCCEEDED"]
    assert "FAILED" in {row["state"] for row in world.rows(LIVE) if row["action_id"] == "a1"}, "the report is kept"


def test_without_a_time_nothing_moves(world: EngineWorld) -> None:
    before = events(world, LIVE)
    job = world.job()
    job._archive()
    job.close()
    assert events(world, LIVE) == before


def test_the_audit_and_the_places_of_the_status_job_are_the_same_after_a_move(world: EngineWorld) -> None:
    def seen() -> tuple[object, object, object]:
        desk = FleetDesk(world.root)
        return desk.audit("a1"), device_of(desk, "a1", "d1"), EventLog(world.root).places()

    before = seen()
    assert len(FleetDesk(world.root).audit("a1")) == 6, "the action, two requests, their answers, and the end"
    archive_all(world)
    assert seen() == before


def test_a_move_waits_for_a_refused_delete_and_goes_on(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = [1, 2, 3]
    real = TableWriter.delete

    def delete(*arguments: Any) -> None:
        if refusals:
            refusals.pop()
            raise CommitFailedError("another commit")
        real(*arguments)

    monkeypatch.setattr(TableWriter, "delete", delete)
    before = events(world, LIVE)
    archive_all(world)
    assert (events(world, LIVE, OLD), actions(world, LIVE)) == (before, {"a2"})
