"""`plan` foresees what the engine does with an update beside the open updates of other actions, and with its limits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.engine_world import EngineWorld

from actions.engine import Limits
from actions.engine.foresight import Planned
from actions.fleet_desk import FleetDesk, Order
from actions.job import ActionJob
from actions.store import DeltalakeStore
from sinks import tables

ANY = Limits(allow_unsigned=True)


class World(EngineWorld):
    """Two versions of firmware without signature, `1` runs everywhere, and an action `a1` that installs `2`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.devices("d1", "d2")
        known = [{"name": "fw", "version": version, "sha256": "a" * 64, "size_bytes": 10} for version in "23"]
        self.insert(tables.ARTIFACTS, *known)
        self.online("d1", "1")
        self.online("d2", "1")
        self.desk = FleetDesk(root, by="ann")

    def job(self, pace: None = None) -> ActionJob:
        return ActionJob(DeltalakeStore(self.root), (self.log,), limits=ANY, pace=pace, clock_us=lambda: self.now_us)

    def plan(self, limits: Limits | None = ANY, **fields: object) -> dict[str, Planned]:
        found = self.desk.plan(update("3", **fields), action_id="a2", limits=limits)
        assert found.refused is None, found.refused
        return {planned.device_id: planned for planned in found.devices}


def update(version: str, **fields: object) -> Order:
    return Order(name="update", type="ota", artifact_name="fw", artifact_version=version, percentage=100.0, **fields)  # type: ignore[arg-type]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def installing(world: World, **fields: object) -> ActionJob:
    """`a1` is in the log for both devices, and `d2` has begun."""
    world.desk.order(update("2", **fields), action_id="a1")
    job = world.job()
    job.turn()
    world.status("d2", "IN_PROGRESS")
    job.turn()
    assert {row["device_id"]: row["state"] for row in world.desk.targets("a1")} == {"d1": "QUEUED", "d2": "IN_PROGRESS"}
    return job


def engine_of(world: World, job: ActionJob, **fields: object) -> dict[str | None, str]:
    """What the engine does with the planned order: the states of `a1`, and the records."""
    world.desk.order(update("3", **fields), action_id="a2")
    for _ in range(3):
        world.now_us += 1_000_000
        job.turn()
    return {row["device_id"]: row["state"] for row in world.desk.targets("a2")}


def test_plan_says_what_a_command_waits_for(world: World) -> None:
    """Not "at once" for a wave, an approval, a time or a window that is still to come."""

    def said(**fields: object) -> list[tuple[bool, str | None]]:
        order = Order(name="echo", percentage=100.0, **fields)  # type: ignore[arg-type]
        return [(one.waits, one.message) for one in world.desk.plan(order, action_id="a2").devices]

    waves = [{"percentage": 50}, {"percentage": 100}]
    assert said() == [(False, None)] * 2
    assert said(waves=waves) == [(False, None), (True, "after wave 1")]
    assert said(needs_approval=True, waves=waves) == [(True, "for an approval"), (True, "after wave 1")]
    assert said(not_before_us=4_102_444_800_000_000) == [(True, "until 2100-01-01T00:00:00+00:00")] * 2
    now = datetime.now(UTC)
    window = f"{now + timedelta(days=2):%a} 10:00-11:00"
    assert said(maintenance_window=window) == [(True, f"for its window {window}")] * 2
    world.desk.order(Order(name="echo", percentage=100.0), action_id="first")
    world.job().turn()
    assert said(depends_on=["first"]) == [(True, "for first")] * 2


def test_plan_judges_signatures_by_the_settings(world: World) -> None:
    found = world.desk.plan(update("3"))
    assert found.refused is not None
    assert "artifact fw 3 is not signed" in found.refused
    assert world.desk.plan(update("3"), limits=ANY).refused is None
    key = world.desk.plan(update("3"), limits=Limits(allow_unsigned=False, trusted_keys=frozenset({"k1"})))
    assert key.refused is not None


def test_plan_says_which_devices_wait_for_another_update(world: World) -> None:
    job = installing(world)
    found = world.plan()
    said = {id_: (planned.waits, planned.message) for id_, planned in found.items()}
    assert said == {
        "d1": (True, "goes after a1, which is QUEUED there"),
        "d2": (True, "goes after a1, which is IN_PROGRESS there"),
    }
    assert engine_of(world, job) == {"d1": "PENDING", "d2": "PENDING"}


def test_plan_says_from_which_updates_an_urgent_one_takes_its_devices(world: World) -> None:
    job = installing(world)
    found = world.plan(priority=5)
    assert (found["d1"].waits, found["d2"].waits) == (False, True)
    assert found["d1"].message == "takes the device from a1, whose command it has not received"
    assert engine_of(world, job, priority=5) == {"d1": "QUEUED", "d2": "PENDING"}


def test_plan_says_what_a_superseding_update_cancels(world: World) -> None:
    job = installing(world)
    found = world.plan(supersede=True)
    assert (found["d1"].waits, found["d1"].message) == (False, "cancels a1 there first")
    assert (found["d2"].waits, found["d2"].message) == (True, "cancels a1 there, and waits for the answer")
    assert engine_of(world, job, supersede=True) == {"d1": "QUEUED", "d2": "PENDING"}
    assert {row["state"] for row in world.desk.targets("a1")} == {"CANCELLING"}


def test_plan_says_whose_turn_it_is_first(world: World) -> None:
    world.desk.order(update("2", max_in_flight=1), action_id="a1")
    job = world.job()
    job.turn()
    waiting = next(row["device_id"] for row in world.desk.targets("a1") if row["state"] == "PENDING")
    planned = world.plan()[waiting]
    assert (planned.waits, planned.message) == (True, "goes after a1, which waits for its turn there")
    assert world.plan(priority=1)[waiting].message is None
    job.close()


def test_plan_does_not_wait_for_what_has_ended_nor_for_commands(world: World) -> None:
    world.desk.order(Order(name="echo", percentage=100.0), action_id="c1")
    job = installing(world)
    world.desk.cancel("a1")
    job.turn()
    for device_id in ("d1", "d2"):
        world.status(device_id, "CANCELLED")
    job.turn()
    job.turn()
    assert world.desk.action("a1")["phase"] == "ENDED"  # type: ignore[index]
    assert [(planned.waits, planned.message) for planned in world.plan().values()] == [(False, None)] * 2
