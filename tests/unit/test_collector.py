"""Python's collector is paused while a turn makes its values, and only then."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.engine_world import EngineWorld

from actions import collector
from actions.collector import freeze_if_many, paused_collector


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    yield
    gc.enable()
    gc.unfreeze()


def test_nothing_is_collected_while_it_is_paused_also_after_an_error() -> None:
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            pass
        assert not gc.isenabled(), "a pause within a pause does not end it"
    assert gc.isenabled()
    with pytest.raises(ZeroDivisionError), paused_collector():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_a_collector_that_somebody_has_turned_off_stays_off() -> None:
    gc.disable()
    with paused_collector():
        pass
    assert not gc.isenabled()


def test_only_many_values_are_taken_out_of_later_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collector, "_FROZEN_MIN", 3)
    freeze_if_many(2)
    assert gc.get_freeze_count() == 0
    freeze_if_many(3)
    assert gc.get_freeze_count() > 0


def test_a_turn_of_the_job_pauses_it_and_starts_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = EngineWorld(tmp_path / "tables")
    world.devices("d1")
    world.action()
    job, seen = world.job(), list[bool]()
    from actions import job as module

    tick = module.tick
    monkeypatch.setattr(module, "tick", lambda *given, **named: (seen.append(gc.isenabled()), tick(*given, **named))[1])
    job.turn()
    assert seen == [False]
    assert gc.isenabled()
    job.close()
