"""What the engine's job leaves out: ticks that would find nothing, and writes of `device_state` that can wait."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from broker_edge import Place, Row
from pipelines import actions as actions_module
from pipelines import tables
from pipelines.action_rows import arrow_of, rows_of
from pipelines.action_store import DeltalakeStore
from pipelines.actions import ActionJob, Pace

SECOND = 1_000_000
START_US = 1_800_000_000 * SECOND


class PretendedLog:
    def __init__(self) -> None:
        self.keys: list[str | None] = []

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        self.keys += [row.idempotency_key for row in rows]
        return [Place(1, len(self.keys) + number, False) for number in range(len(rows))]


class World:
    def __init__(self, root: Path) -> None:
        self.root, self.now_us, self.log = root, START_US, PretendedLog()
        tables.create_by_path(root)
        self.insert(tables.DEVICES, *({"device_id": f"d{number}"} for number in range(3)))
        self.insert(tables.ACTIONS, {"action_id": "a1", "name": "echo", "percentage": 100.0, "timeout_queued_s": 50})
        self._offset = 0

    def insert(self, table: tables.Table, *rows: dict[str, Any]) -> None:
        write_deltalake(tables.uri_of(self.root, table.name), arrow_of(rows, table), mode="append")

    def job(self, pace: Pace | None = None) -> ActionJob:
        return ActionJob(DeltalakeStore(self.root), self.log, pace=pace, clock_us=lambda: self.now_us)

    def online(self, device_id: str, version: str) -> None:
        self._offset += 1
        place = {"log_id": "log", "partition": 5, "offset": self._offset, "epoch": 1, "event_id": f"e{self._offset}"}
        said = {"source": "status", "device_id": device_id, "state": "ONLINE", "version": version}
        self.insert(tables.ACTION_EVENTS, {**place, **said, "at": self.now_us, "recorded_at": self.now_us})

    def versions(self) -> dict[str, str]:
        table = DeltaTable(tables.uri_of(self.root, "device_state")).to_pyarrow_table()
        return {row["device_id"]: row["version"] for row in rows_of(table)}

    def states(self) -> set[str]:
        table = DeltaTable(tables.uri_of(self.root, "action_targets")).to_pyarrow_table()
        return {row["state"] for row in rows_of(table)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "tables")


def test_tick_without_news_is_left_out_until_a_timeout_is_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = []
    tick = actions_module.tick
    monkeypatch.setattr(actions_module, "tick", lambda *a, **k: ticks.append(world.now_us) or tick(*a, **k))
    job = world.job()
    job.turn()  # It sends,
    job.turn()  # and finds nothing more to do.
    del ticks[:]
    for _ in range(49):
        world.now_us += SECOND
        job.turn()
    assert ticks == []
    world.now_us += SECOND
    job.turn()
    assert ticks == [START_US + 50 * SECOND]
    assert world.states() == {"TIMED_OUT"}


def test_news_end_the_rest_and_so_does_a_clock_that_goes_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.job()
    job.turn()
    job.turn()
    ticks = []
    tick = actions_module.tick
    monkeypatch.setattr(actions_module, "tick", lambda *a, **k: ticks.append(world.now_us) or tick(*a, **k))
    world.online("d1", "1.0")
    job.turn()
    assert len(ticks) == 1
    job.turn()
    job.turn()
    world.now_us -= 3600 * SECOND
    job.turn()
    assert ticks[-1] == world.now_us
    world.now_us += 3650 * SECOND
    job.turn()
    assert world.states() == {"TIMED_OUT"}


def test_device_state_is_written_now_and_then_and_at_the_end(world: World) -> None:
    job = world.job(Pace(device_state_s=3600))
    for number in range(3):
        world.online(f"d{number}", "1.0")
        job.turn()
    assert world.versions() == {"d0": "1.0"}
    job.close()
    assert world.versions() == {"d0": "1.0", "d1": "1.0", "d2": "1.0"}
    before = DeltaTable(tables.uri_of(world.root, "device_state")).version()
    job.close()
    assert DeltaTable(tables.uri_of(world.root, "device_state")).version() == before


def test_device_state_that_waits_is_written_without_further_news(world: World) -> None:
    job = world.job(Pace(device_state_s=0.05))
    world.online("d1", "1.0")
    job.turn()
    world.online("d1", "2.0")
    job.turn()
    deadline = time.monotonic() + 30
    while world.versions() != {"d1": "2.0"}:
        assert time.monotonic() < deadline
        job.turn()


def test_what_a_kill_keeps_from_device_state_is_read_again(world: World) -> None:
    job = world.job(Pace(device_state_s=3600))
    job.turn()
    for version in ("1.0", "2.0"):
        world.online("d1", version)
        job.turn()
    # Targets move meanwhile, which records what has been settled.
    world.now_us += 60 * SECOND
    job.turn()
    assert world.states() == {"TIMED_OUT"}
    assert world.versions() == {"d1": "1.0"}
    world.job().turn()  # It was killed; this is the next one.
    assert world.versions() == {"d1": "2.0"}
