"""An engine with an action whose changes the journal gathers."""

from __future__ import annotations

from pathlib import Path

import pytest

from actions import journal
from actions.job import ActionJob, Pace
from actions.store import DeltalakeStore
from support.engine_world import SECOND, EngineWorld

DEVICES = 20
JOURNAL = "action_journal"


class KilledError(Exception):
    pass


def large_world(root: Path, patch: pytest.MonkeyPatch) -> EngineWorld:
    """An action whose 20 targets are enough for the journal."""
    patch.setattr(journal, "LARGE", DEVICES - 1)
    world = EngineWorld(root)
    world.devices(*(f"d{number:02}" for number in range(DEVICES)))
    world.action()
    return world


def engine(world: EngineWorld) -> ActionJob:
    store = DeltalakeStore(world.root, steady_s=lambda: world.now_us / SECOND)
    return ActionJob(store, world.log, pace=Pace(device_state_s=3600), clock_us=lambda: world.now_us)


def tell(world: EngineWorld, job: ActionJob, device_id: str, state: str) -> None:
    """The status job writes a report, and the engine takes a turn."""
    world.passes(0.01)
    world.status(device_id, state)
    job.turn()
