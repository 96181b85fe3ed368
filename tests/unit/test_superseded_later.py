"""A device that joins an older dynamic update when it has the newer one already does not get the older image."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine import Engine, action_of, devices_of
from support.engine_world import EngineWorld

from actions.engine import Artifact, Device, Limits, Ota, Rollout, Selector, TargetState, Timeouts
from actions.fleet_desk import FleetDesk
from actions.job import ActionJob
from actions.store import DeltalakeStore
from sinks import tables

FIRMWARE = {"name": "fw", "sha256": "ab" * 32, "size_bytes": 3, "tenant": "default"}


def engine(world: EngineWorld) -> ActionJob:
    store, limits = DeltalakeStore(world.root), Limits(allow_unsigned=True)
    return ActionJob(store, world.log, limits=limits, clock_us=lambda: world.now_us)


def updated(root: Path) -> tuple[EngineWorld, ActionJob]:
    """d1 is in the older update, d1 and d2 have the newer one."""
    world = EngineWorld(root)
    world.insert(tables.DEVICES, {"device_id": "d1", "labels": {"in": "yes"}}, {"device_id": "d2"})
    world.insert(tables.ARTIFACTS, {**FIRMWARE, "version": "2"}, {**FIRMWARE, "version": "3"})
    ota = {"type": "ota", "artifact_name": "fw", "name": None, "percentage": None}
    world.action("old", **ota, artifact_version="2", labels={"in": "yes"}, membership="dynamic")
    job = engine(world)
    job.turn()
    assert world.log.keys == ["old/d1/1"]
    world.passes(1)
    world.action("new", **ota, artifact_version="3", device_ids=["d1", "d2"], supersede=True)
    job.turn()
    world.status("d1", "CANCELLED", action_id="old")
    for _ in range(3):
        world.passes(1)
        job.turn()
    for device_id in ("d1", "d2"):
        world.status(device_id, "SUCCEEDED", action_id="new")
        world.online(device_id, "3")
    job.turn()
    assert (world.states("old"), world.states("new")) == ({"CANCELLED"}, {"SUCCEEDED"})
    return world, job


def joins(world: EngineWorld) -> None:
    world.table("devices").update(updates={"labels": "map(make_array('in'), make_array('yes'))"})


@pytest.mark.parametrize("how", ["at once", "after it is forgotten", "after a restart"])
def test_a_device_that_has_the_newer_update_is_skipped(tmp_path: Path, how: str) -> None:
    world, job = updated(tmp_path)
    if how != "at once":
        world.passes(700)
        job.turn()
    if how == "after a restart":
        job.close()
        job = engine(world)
    joins(world)
    job.turn()
    job.turn()
    assert "old/d2/1" not in world.log.keys
    (row,) = [row for row in FleetDesk(world.root).targets("old") if row["device_id"] == "d2"]
    assert (row["state"], row["message"]) == ("SKIPPED", "superseded by new")


def test_a_device_without_the_newer_update_gets_the_older_one(tmp_path: Path) -> None:
    world, job = updated(tmp_path)
    world.insert(tables.DEVICES, {"device_id": "d3", "labels": {"in": "yes"}})
    job.turn()
    assert "old/d3/1" in world.log.keys


def test_updates_are_forgotten_once_no_older_one_gets_devices(tmp_path: Path) -> None:
    world, job = updated(tmp_path)
    assert "new" in DeltalakeStore(world.root).running()
    FleetDesk(world.root).cancel("old")
    job.turn()
    world.passes(700)
    job.turn()
    assert job.state.actions == {}
    assert DeltalakeStore(world.root).running() == frozenset()


def test_a_device_that_the_newer_update_is_on_its_way_to_is_skipped(tmp_path: Path) -> None:
    world, job = updated(tmp_path)
    world.insert(tables.DEVICES, {"device_id": "d3"})
    ota = {"type": "ota", "artifact_name": "fw", "name": None, "percentage": None}
    world.action("newer", **ota, artifact_version="3", device_ids=["d3"], supersede=True)
    job.turn()
    assert world.states("newer") == {"QUEUED"}
    joins(world)
    for _ in range(3):
        world.passes(1)
        job.turn()
    assert "old/d3/1" not in world.log.keys


def timed_out() -> Engine:
    """The newer update has timed out on d1, which now joins the older one. That waits for its window."""
    images = [Artifact("fw", version, "default", "ab" * 32, 3) for version in ("2", "3")]
    engine = Engine(devices=devices_of("d1", "d2"), artifacts={one.key: one for one in images}, broker_up=True)
    engine.limits = Limits(allow_unsigned=True)
    window = Rollout(membership="dynamic", not_before_us=engine.now_us + 5_000 * 1_000_000)
    labelled = Selector(labels={"in": "yes"})
    engine.actions.append(action_of("old", type="ota", ota=Ota("fw", "2"), selector=labelled, rollout=window))
    engine.tick()
    newer = {"type": "ota", "ota": Ota("fw", "3", supersede=True), "selector": Selector(device_ids=("d1",))}
    engine.actions.append(action_of("new", **newer, timeouts=Timeouts(in_progress_s=100, step_s=100)))
    engine.tick()
    engine.tick(engine.report("IN_PROGRESS", 1, action_id="new"))
    engine.tick(after_s=200)
    assert engine.target(action_id="new").state is TargetState.TIMED_OUT
    engine.devices = {**engine.devices, "d1": Device("d1", "default", labels={"in": "yes"})}
    return engine


def test_a_newer_update_that_came_late_keeps_the_older_one_away() -> None:
    engine = timed_out()
    engine.tick(engine.report("SUCCEEDED", 2, action_id="new", version="3"))
    for _ in range(3):
        engine.tick(after_s=3_000)
    old = engine.target(action_id="old")
    assert (old.state, old.message) == (TargetState.CANCELLED, "superseded by new")
    assert engine.published == ["new/d1/1"]


def test_a_retry_by_a_user_sends_the_older_update_after_all() -> None:
    engine = timed_out()
    engine.tick(engine.report("SUCCEEDED", 2, action_id="new", version="3"))
    engine.tick(after_s=9_000)
    engine.ask("retry", action_id="old", device_id="d1")
    engine.tick()
    assert engine.published == ["new/d1/1", "old/d1/2"]
