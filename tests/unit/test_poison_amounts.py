"""Amounts that would end the engine or hold it up: it reads them in parts, and forgets what is made up."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from support.engine import START_US
from support.engine_world import SECOND, EngineWorld

from actions import store as action_store
from actions import table_reader
from actions.engine import ActionPhase, ActionState, Target, TargetState
from actions.rows import action_of as action_of_row
from actions.rows import (
    states_table,
    targets_table,
)
from actions.store import DeltalakeStore
from sinks import tables
from sinks.rows import arrow_of, rows_of

S = TargetState


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    world = EngineWorld(tmp_path / "tables")
    world.devices("d1", "d2", "d3")
    return world


def test_no_statement_names_more_ids_than_the_database_can_bear(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Devices may report on any number of actions: a statement with 30,000 ids crashed the process at every start."""
    statements: list[str] = []
    queried = table_reader.queried

    def noted(found: Mapping[str, DeltaTable], sql: str) -> Any:
        statements.append(sql)
        assert sql.count("','") + sql.count("', '") < 2_000
        return queried(found, sql)

    monkeypatch.setattr(table_reader, "queried", noted)
    there = {f"a{number}" for number in range(2_500)}
    world.insert(tables.ACTIONS, *({"action_id": id_, "name": "n"} for id_ in there))
    loaded = DeltalakeStore(world.root).load(there | {f"none-{number}" for number in range(40_000)})
    assert {action.action_id for action in loaded.definitions} == there
    assert statements


def test_what_was_reported_while_the_engine_was_away_is_read_in_parts(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(action_store, "_REPORTS_MAX", 10, raising=False)
    for number in range(40):
        world.status("d1", "FAILED", action_id=f"none-{number}")
    store = DeltalakeStore(world.root)
    looks = []
    while reports := store.news().reports:
        looks.append([report.action_id for report in reports])
    assert [action_id for look in looks for action_id in look] == [f"none-{number}" for number in range(40)]
    assert max(map(len, looks)) <= 20


def test_what_was_reported_in_time_counts_however_many_parts_come_before_it(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No device times out, and no command is sent again, because of a report that is stored but not read yet."""
    monkeypatch.setattr(action_store, "_REPORTS_MAX", 10)
    world.devices("d1", "d2")
    world.action(device_ids=["d1", "d2"], timeout_queued_s=30)
    world.job().turn()
    for number in range(40):
        world.status("x", "FAILED", action_id=f"none-{number}")
    world.status("d1", "SUCCEEDED")
    world.now_us += 60 * SECOND
    job = world.job()
    for _ in range(8):
        job.turn()
    assert {row["device_id"]: row["state"] for row in world.rows("action_targets")} == {
        "d1": "SUCCEEDED",
        "d2": "TIMED_OUT",
    }
    said = [(row["device_id"], row["state"]) for row in world.rows("action_events") if row["source"] == "engine"]
    assert ("d2", "TIMED_OUT") in said
    assert ("d1", "TIMED_OUT") not in said


def test_time_goes_on_for_an_engine_that_never_has_read_everything(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.devices("d1")
    world.action(device_ids=["d1"], timeout_queued_s=30)
    job = world.job()
    job.turn()
    monkeypatch.setattr(action_store, "_REPORTS_MAX", 2)
    for _ in range(16):
        for number in range(4):
            world.status("x", "FAILED", action_id=f"none-{number}")
        world.now_us += 10 * SECOND
        job.turn()
    assert world.states() == {"TIMED_OUT"}


def test_a_single_run_of_the_engine_reads_every_part(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(action_store, "_REPORTS_MAX", 10)
    world.devices("d1")
    world.action(device_ids=["d1"])
    world.job().run_through()
    for number in range(40):
        world.status("x", "FAILED", action_id=f"none-{number}")
    world.status("d1", "SUCCEEDED")
    world.job().run_through()
    assert world.states() == {"SUCCEEDED"}


def test_ids_that_devices_make_up_are_forgotten(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actions.job._KNOWN_FREE", 10)
    world.action("a1", device_ids=["d1"])
    job = world.job()
    job.turn()
    for turn in range(3):
        for number in range(20):
            world.status("d2", "FAILED", action_id=f"none-{turn}-{number}")
        job.turn()
    assert len(job._known) <= 11
    world.status("d1", "SUCCEEDED")
    job.turn()
    assert {row["state"] for row in world.rows("action_targets")} == {"SUCCEEDED"}


def chain(world: EngineWorld, length: int) -> None:
    """Ended actions, each of which depended on the previous one."""
    rows = [
        {"action_id": f"c{n}", "name": "echo", "device_ids": ["d1"], "depends_on": [f"c{n - 1}"] if n else None}
        for n in range(length)
    ]
    world.insert(tables.ACTIONS, *rows)
    actions = [action_of_row(row, commit_version=1) for row in rows_of(arrow_of(rows, tables.ACTIONS))]
    states = [
        ActionState(
            action_id=action.action_id,
            tenant="default",
            phase=ActionPhase.ENDED,
            digest=action.digest,
            targets=1,
            open=0,
            counts={"SUCCEEDED": 1},
            message="",
            started_us=1,
            ended_us=START_US,
            updated_us=START_US,
        )
        for action in actions
    ]
    targets = [Target(action.action_id, "default", "d1", S.SUCCEEDED, 1, 1, 1) for action in actions]
    for name, found in (("action_state", states_table(states)), ("action_targets", targets_table(targets))):
        marks = [Transaction(f"headwater-actions:{mark}", 1) for mark in ("actions", "requests")]
        properties = CommitProperties(app_transactions=marks)
        write_deltalake(world.root / name, found, mode="append", commit_properties=properties)


def test_an_action_at_the_end_of_a_long_chain_is_sent_without_reading_the_chain(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain(world, 1_200)
    loads: list[int] = []
    load = DeltalakeStore.load

    def counted(self: DeltalakeStore, action_ids: Collection[str]) -> Any:
        loads.append(len(action_ids))
        return load(self, action_ids)

    monkeypatch.setattr(DeltalakeStore, "load", counted)
    world.action("last", device_ids=["d1"], depends_on=["c1199"])
    job = world.job()
    job.turn()
    assert world.log.keys == ["last/d1/1"]
    assert sum(loads) < 10


def test_what_is_opened_again_knows_what_it_depends_on(world: EngineWorld) -> None:
    world.action("first", device_ids=["d1"])
    world.action("second", device_ids=["d1"], depends_on=["first"])
    world.action("third", device_ids=["d1"], depends_on=["second"])
    job = world.job()
    job.turn()
    for action_id, state in (("first", "SUCCEEDED"), ("second", "FAILED")):
        world.status("d1", state, action_id=action_id)
        job.turn()
    job.turn()
    job = world.job()
    ask = {"request_id": "r", "action_id": "second", "kind": "retry", "by": "ann", "at": world.now_us}
    world.insert(tables.ACTION_REQUESTS, ask)
    job.turn()
    job.turn()
    assert world.log.keys == ["first/d1/1", "second/d1/1", "second/d1/2"]
