"""Work that the engine's job saves: ticks that would change nothing, and writes of `device_state` that can wait."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from support.engine_world import SECOND, START_US, EngineWorld

from actions import job as actions_module
from actions.job import Pace


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    world = EngineWorld(tmp_path / "tables")
    world.devices("d0", "d1", "d2")
    world.action(timeout_queued_s=50)
    return world


def test_tick_without_news_is_left_out_until_a_timeout_is_due(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = []
    tick = actions_module.tick
    monkeypatch.setattr(actions_module, "tick", lambda *a, **k: ticks.append(world.now_us) or tick(*a, **k))
    job = world.job()
    job.turn()  # Sends the command.
    job.turn()  # Has nothing more to do.
    del ticks[:]
    for _ in range(49):
        world.now_us += SECOND
        job.turn()
    assert ticks == []
    world.now_us += SECOND
    job.turn()
    assert ticks == [START_US + 50 * SECOND]
    assert world.states() == {"TIMED_OUT"}


def test_news_end_the_rest_and_so_does_a_clock_that_goes_back(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_device_state_is_written_now_and_then_and_at_the_end(world: EngineWorld) -> None:
    job = world.job(Pace(device_state_s=3600))
    for number in range(3):
        world.online(f"d{number}", "1.0")
        job.turn()
    assert world.versions() == {"d0": "1.0"}
    job.close()
    assert world.versions() == {"d0": "1.0", "d1": "1.0", "d2": "1.0"}
    before = world.table("device_state").version()
    job.close()
    assert world.table("device_state").version() == before


def test_device_state_that_waits_is_written_without_further_news(world: EngineWorld) -> None:
    job = world.job(Pace(device_state_s=0.05))
    world.online("d1", "1.0")
    job.turn()
    world.online("d1", "2.0")
    job.turn()
    deadline = time.monotonic() + 30
    while world.versions() != {"d1": "2.0"}:
        assert time.monotonic() < deadline
        job.turn()


def test_what_a_kill_keeps_from_device_state_is_read_again(world: EngineWorld) -> None:
    job = world.job(Pace(device_state_s=3600))
    job.turn()
    for version in ("1.0", "2.0"):
        world.online("d1", version)
        job.turn()
    # Targets change in between, which records the settled versions.
    world.now_us += 60 * SECOND
    job.turn()
    assert world.states() == {"TIMED_OUT"}
    assert world.versions() == {"d1": "1.0"}
    world.job().turn()  # The previous job was killed; this is its successor.
    assert world.versions() == {"d1": "2.0"}
