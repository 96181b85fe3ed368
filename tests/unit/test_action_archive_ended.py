"""Targets, requests and quarantine rows of old actions move to their archives, each once."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake import Field as DeltaField
from support.archive_world import (
    DAY,
    PAIRS,
    Faults,
    KilledError,
    archive_all,
    content,
    copy_of,
    engine,
    old_world,
    owners,
    request,
    stages,
    state,
)
from support.engine_world import EngineWorld

from actions import archive as archive_
from actions import archive_ended as ended_
from actions import journal as journal_
from actions.export import Export
from actions.fleet_desk import FleetDesk
from actions.job import Pace
from actions.store import DeltalakeStore
from actions.table_writer import TableWriter
from broker_edge.errors import EngineFencedError, TableStoreError
from sinks import tables


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> EngineWorld:
    return old_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def world(made: EngineWorld, tmp_path: Path) -> EngineWorld:
    return copy_of(made, tmp_path / "tables")


def test_what_belongs_to_an_old_action_moves_and_the_rest_stays(world: EngineWorld) -> None:
    before = {live: content(world, live) for live, _ in PAIRS}
    archive_all(world)
    assert {live: content(world, live, old) for live, old in PAIRS} == before, "every column is kept"
    assert {live: owners(world, live) for live in ("action_targets", "action_requests")} == {
        "action_targets": {"a2"},
        "action_requests": {"a2"},
    }
    assert {row["pipeline"] for row in world.rows("quarantine")} == {"silver/m", "gaps"}
    assert {row["pipeline"] for row in world.rows("quarantine_archive")} == {"actions", "status"}
    assert (state(world)["archived_at"] is not None, state(world, "a2")["archived_at"]) == (True, None)
    assert {row["action_id"] for row in world.rows("actions")} == {"a1", "a2"}, "an id stays taken"


def test_an_action_that_ended_lately_stays(world: EngineWorld) -> None:
    world.now_us -= 20 * DAY
    archive_all(world)
    assert owners(world, "action_targets") == owners(world, "action_requests") == {"a1", "a2"}


@pytest.mark.parametrize("column", ["copies", "outbox", "state"])
def test_an_action_that_owes_something_stays(world: EngineWorld, column: str) -> None:
    """A withdrawal waits for its broker also after the end of the action."""
    value = {"copies": "make_array('1/old')", "outbox": "'cancel'", "state": "'QUEUED'"}[column]
    world.table("action_targets").update(updates={column: value}, predicate="action_id = 'a1' AND device_id = 'd1'")
    archive_all(world)
    assert [owners(world, live) for live, _ in PAIRS if live != "quarantine"] == [{"a1", "a2"}] * 3
    assert state(world)["archived_at"] is None


def test_an_action_that_the_engine_has_loaded_stays(world: EngineWorld) -> None:
    """Such as one on which an open action depends: its rows may be written again."""
    world.action("a3", depends_on=["a1"])
    job = world.job(Pace(keep_s=90 * 24 * 3600.0))
    for _ in range(10):
        job.turn()
        job._archive_from = 0.0
        job._archive()
    assert "a1" in owners(world, "action_targets") & owners(world, "action_requests")
    job.close()


def test_a_request_that_was_never_handled_stays(world: EngineWorld) -> None:
    old = {"at": world.now_us - 95 * DAY}
    request(world, "open", action_id="a1", kind="retry", **old)
    request(world, "nobody", action_id="unknown", kind="retry", **old)
    # The same id as a handled request of another action.
    request(world, "a2-pause", action_id="a1", kind="retry", **old)
    archive_all(world)
    left = {(row["action_id"], row["request_id"]) for row in world.rows("action_requests")}
    assert left == {("a1", "open"), ("unknown", "nobody"), ("a1", "a2-pause"), ("a2", "a2-pause")}


def test_equal_requests_are_all_kept(world: EngineWorld) -> None:
    (row,) = [row for row in world.rows("action_requests") if row["request_id"] == "a1-pause"]
    world.insert(tables.ACTION_REQUESTS, row, {**row, "reason": "twice"})
    before = content(world, "action_requests")
    archive_all(world)
    world.insert(tables.ACTION_REQUESTS, {**row, "reason": "again"})
    before += Counter([str({**row, "reason": "again"})])
    archive_all(world)
    assert content(world, "action_requests", "action_requests_archive") == before
    assert owners(world, "action_requests") == {"a2"}


def test_a_large_action_moves_in_parts(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(world, "action_targets")
    monkeypatch.setattr(archive_, "PART_ROWS", 2)
    store, sizes = engine(world), []
    while store.archive(world.now_us - 90 * DAY):
        sizes.append(len(world.rows("action_targets_archive")))
    assert sorted(set(sizes)) == [0, 2, 4, 5]
    assert content(world, "action_targets", "action_targets_archive") == before


def test_many_small_actions_move_in_few_commits(tmp_path: Path) -> None:
    world = EngineWorld(tmp_path)
    old = world.now_us - 200 * DAY
    states, targets = [], []
    for number in range(60):
        id_ = f"a{number}"
        states.append({"action_id": id_, "tenant": "default", "phase": "ENDED", "ended_at": old, "targets": 1})
        targets.append({"action_id": id_, "device_id": "d1", "attempt": 1, "state": "SUCCEEDED", "updated_at": old})
    world.insert(tables.ACTION_STATE, *states)
    world.insert(tables.ACTION_TARGETS, *targets)
    store = engine(world)
    before = world.table("action_targets").version()
    archive_all(world, store)
    assert (len(world.rows("action_targets")), len(world.rows("action_targets_archive"))) == (0, 60)
    assert world.table("action_targets").version() == before + 1


def loaded(world: EngineWorld) -> tuple[Any, ...]:
    """What the engine knows of `a1`, whole and for one late report."""
    store = DeltalakeStore(world.root)
    whole, late = store.load({"a1"}), store.load_late({"a1": {"d1", "d4", "stranger"}})
    known = {target.device_id: target for target in whole.targets}
    some = {target.device_id: target for target in late.targets}
    assert len(known) == len(whole.targets), "each once"
    assert some == {id_: known[id_] for id_ in ("d1", "d4")}
    return known, whole.said, [row.counts for row in whole.states]


def seen(world: EngineWorld) -> tuple[Any, ...]:
    """What people see of `a1`, and what an export of both actions has."""
    desk = FleetDesk(world.root)
    rows = [(kind, {**row, "archived_at": None}) for kind, row in Export(desk.history, ["a1", "a2"])]
    return (
        Counter(map(str, rows)),
        desk.targets("a1"),
        desk.waves("a1"),
        desk.audit("a1"),
        desk.events("action_id = 'a1'"),
    )


def test_a_kill_at_any_step_loses_and_doubles_nothing_and_changes_no_answer(
    made: EngineWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {live: content(made, live) for live, _ in PAIRS}
    answers = (loaded(made), seen(made))
    for stage, world in stages(made, tmp_path, monkeypatch, lambda _: None):
        assert (loaded(world), seen(world)) == answers, stage
        for live, old in PAIRS:
            assert set(content(world, live, old)) == set(before[live]), stage
            assert max(content(world, old).values(), default=1) == 1, stage
        archive_all(world)
        assert {live: content(world, live, old) for live, old in PAIRS} == before, stage
        assert owners(world, "action_targets") == owners(world, "action_requests") == {"a2"}, stage
        assert (loaded(world), seen(world)) == answers, stage


def test_control_without_the_look_into_the_archive_a_kill_doubles_rows(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: what was copied before the kill is copied again."""
    with monkeypatch.context() as patch:
        # A part of the events first: copy, sync, delete; then the mark, the copy, and the sync of the targets.
        faults = Faults(patch, 100, "before")
        archive_all(copy_of(world, world.root.parent / "other"))
        at = faults.calls.index("update") + 3
    with monkeypatch.context() as patch:
        Faults(patch, at, "before")
        with pytest.raises(KilledError, match="sync"):
            archive_all(world)
    looks: list[int] = []
    real = ended_._same_targets

    def blind(rows: pa.Table, archived: pa.Table) -> pa.Table:
        """Nothing before the copy; the comparison behind it sees everything."""
        looks.append(1)
        return real(rows, archived) if len(looks) > 1 else archived.slice(0, 0)

    monkeypatch.setattr(ended_, "_same_targets", blind)
    store = engine(world)
    store._archives._at = 1
    store.archive(world.now_us - 90 * DAY)
    assert max(content(world, "action_targets_archive").values()) == 2


def test_nothing_is_deleted_that_the_archive_lacks(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    before = content(world, "action_targets")
    store = engine(world)
    store._archives._at = 1
    tables = store._archives._movers[1]._tables  # type: ignore[attr-defined]
    tables.put = tables.append = lambda *_: None
    with pytest.raises(TableStoreError, match=r"action_targets_archive lacks 5 rows.*nothing was deleted"):
        store.archive(world.now_us - 90 * DAY)
    assert content(world, "action_targets") == before


def between(patch: pytest.MonkeyPatch, table: str, change: Callable[[], object]) -> None:
    """Makes a change once, between the copy and the delete."""
    real, left = TableWriter.delete, [change]

    def delete(writer: TableWriter, live: DeltaTable, name: str, where: str) -> None:
        if left and name == table:
            left.pop()()
        real(writer, live, name, where)

    patch.setattr(TableWriter, "delete", delete)


def test_a_request_that_arrives_during_a_move_is_not_lost(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one with the id of a request that is just being moved."""
    before = content(world, "action_requests")
    fields = {"action_id": "a1", "kind": "resume", "at": world.now_us - 95 * DAY, "reason": "once more"}
    between(monkeypatch, "action_requests", lambda: request(world, "a1-pause", **fields))
    archive_all(world)
    after = content(world, "action_requests", "action_requests_archive")
    assert len(list(after.elements())) == len(list(before.elements())) + 1
    assert max(after.values()) == 1


def test_deletes_are_no_news_and_requests_after_them_are_read(world: EngineWorld) -> None:
    store = engine(world)
    store.news()
    archive_all(world, store)
    assert not store.news().requests
    request(world, "new", action_id="a2", kind="resume")
    assert [one.request_id for one in store.news().requests] == ["new"]


@pytest.mark.parametrize("table", ["action_targets", "action_requests", "quarantine"])
def test_a_superseded_engine_deletes_nothing(world: EngineWorld, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    claims: list[DeltalakeStore] = []
    between(monkeypatch, table, lambda: claims.append(engine(world)))
    before = content(world, table)
    with pytest.raises(EngineFencedError):
        archive_all(world)
    assert content(world, table) == before
    archive_all(world, claims[0])
    assert content(world, table, f"{table}_archive") == before


def test_a_move_merges_the_journal_only_for_actions_that_may_move(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_, "LARGE", 2)
    archive_all(world)
    job = world.job()
    job.turn()
    world.action("a3")
    job.turn()
    for device_id in ("d1", "d2"):
        # The first change after the beginning is merged at once.
        world.status(device_id, "IN_PROGRESS", action_id="a3", progress=10)
        job.turn()
    store, before_us = job._store, world.now_us - 90 * DAY
    assert isinstance(store, DeltalakeStore)
    assert store._journal.holds({"a3"}), "a change of a large action is gathered"
    assert not store.archive(before_us, {"a3"})
    assert store._journal.holds({"a3"})
    assert not store.archive(before_us)
    assert not store._journal.holds({"a3"})
    # The same of an action whose targets are in the archive.
    for device_id in ("d1", "d2"):
        world.status(device_id, "SUCCEEDED")
        job.turn()
    archive_all(world, store)
    assert owners(world, "action_targets") == {"a2", "a3"}
    assert [row["state"] for row in world.rows("action_targets_archive")] == ["SUCCEEDED"] * 5
    job.close()


def test_tables_of_the_previous_release_get_archives_and_the_column(tmp_path: Path) -> None:
    world = EngineWorld(tmp_path)
    new = ("action_targets_archive", "action_requests_archive", "quarantine_archive", "action_state")
    for name in new:
        shutil.rmtree(tmp_path / name)
    state_ = tables.ACTION_STATE
    fields = tuple(field for field in state_.fields if field.name != "archived_at")
    before = replace(state_, fields=fields)
    tables.create_by_path(tmp_path, tables=(before,))
    world.insert(before, {"action_id": "a0", "phase": "ENDED", "ended_at": world.now_us, "targets": 1, "open": 0})
    target = {"action_id": "a0", "device_id": "d1", "attempt": 1, "state": "SUCCEEDED"}
    world.insert(tables.ACTION_TARGETS, target)
    world.now_us += 100 * DAY
    archive_all(world)
    assert owners(world, "action_targets_archive") == {"a0"}
    assert state(world, "a0")["archived_at"] is not None


def test_a_column_that_somebody_added_is_kept(world: EngineWorld) -> None:
    for name in ("action_targets", "action_events"):
        world.table(name).alter.add_columns([DeltaField("note", "string", nullable=True)])
        world.table(name).update(updates={"note": "'mine'"}, predicate="action_id = 'a1'")
    archive_all(world)
    for name in ("action_targets_archive", "action_events_archive"):
        assert {row["note"] for row in world.rows(name) if row["action_id"] == "a1"} == {"mine"}
