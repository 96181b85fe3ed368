"""A device stays with the tenant that had it first, whatever another tenant writes into the table `devices`."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.engine_world import START_US, EngineWorld

from actions.fleet_desk import FleetDesk, Order
from actions.job import Pace
from sinks import tables


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    found = EngineWorld(tmp_path)
    row(found, "north", created_at=START_US)
    return found


def row(world: EngineWorld, tenant: str, device_id: str = "d1", **fields: object) -> None:
    world.insert(tables.DEVICES, {"device_id": device_id, "tenant": tenant, "labels": {"of": tenant}, **fields})


def tenant_in(world: EngineWorld, *, turns: int = 2, device_id: str = "d1") -> str:
    """The tenant as a new engine sees it."""
    job = world.job(Pace(device_state_s=0.0))
    for _ in range(turns):
        job.turn()
    found = job._devices[device_id].tenant
    job.close()
    return found


def kept(world: EngineWorld) -> dict[str, str]:
    return {one["device_id"]: one["tenant"] for one in world.rows("device_state")}


def test_an_earlier_row_of_another_tenant_takes_no_device_of_a_running_engine(
    world: EngineWorld, caplog: pytest.LogCaptureFixture
) -> None:
    job = world.job()
    job.turn()
    row(world, "south", created_at=START_US - 1)
    for _ in range(3):
        job.turn()
        row(world, "north", "other", created_at=START_US)
    assert job._devices["d1"].tenant == "north"
    job.close()
    told = [one for one in caplog.messages if "several tenants" in one]
    assert told == [
        "1 ids have rows of several tenants in the table devices, and the first one keeps them: d1 stays with north; "
        "delete or retire the rows of that tenant to move a device"
    ]
    assert kept(world) == {"d1": "north"}
    caplog.clear()
    assert tenant_in(world) == "north", "also for the next engine"
    assert len([one for one in caplog.messages if "several tenants" in one]) == 1


def test_an_earlier_row_that_came_while_no_engine_ran_takes_no_device_that_has_reported(world: EngineWorld) -> None:
    job = world.job(Pace(device_state_s=0.0))
    world.status("d1", "ONLINE", action_id=None, attempt=None, tenant="north")
    job.turn()
    job.close()
    assert kept(world) == {"d1": "north"}
    row(world, "south", created_at=START_US - 1)
    assert tenant_in(world) == "north"
    (state,) = world.rows("device_state")
    assert state["last_seen_at"] == START_US, "what it has reported stays"


def test_an_earlier_row_that_came_while_no_engine_ran_takes_no_device_that_was_silent(world: EngineWorld) -> None:
    row(world, "south", created_at=START_US - 1)
    assert tenant_in(world) == "north"
    assert kept(world) == {"d1": "north"}


def test_without_history_the_earliest_row_counts_and_then_keeps_the_device(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    row(world, "south", created_at=START_US - 1)

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError("no such file")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "load_cdf", gone)
        assert tenant_in(world) == "south"
    assert "cannot read from the history of devices which tenants had them first" in caplog.text
    row(world, "east", created_at=START_US - 2)
    assert (tenant_in(world), kept(world)) == ("south", {"d1": "south"})


def test_rows_of_several_tenants_in_one_commit_are_told_apart_by_their_time(world: EngineWorld) -> None:
    pair = ({"tenant": "east", "created_at": START_US}, {"tenant": "west", "created_at": START_US - 1})
    world.insert(tables.DEVICES, *({"device_id": "d2", **one} for one in pair))
    assert tenant_in(world, device_id="d2") == "west"
    assert kept(world) == {"d2": "west"}


@pytest.mark.parametrize("how", ["delete", "retire"])
def test_a_device_moves_when_the_rows_of_its_tenant_go(world: EngineWorld, how: str) -> None:
    job = world.job(Pace(device_state_s=0.0))
    world.status("d1", "ONLINE", action_id=None, attempt=None, tenant="north")
    job.turn()
    row(world, "south", created_at=START_US + 1)
    job.turn()
    assert job._devices["d1"].tenant == "north"
    if how == "delete":
        world.table("devices").delete("tenant = 'north'")
    else:
        world.table("devices").update({"retired_at": "now()"}, predicate="tenant = 'north'")
    job.turn()
    assert job._devices["d1"].tenant == "south"
    world.passes(5)
    world.status("d1", "ONLINE", action_id=None, attempt=None, tenant="south")
    job.turn()
    job.close()
    assert kept(world) == {"d1": "south"}


def test_a_tenant_that_gave_a_device_up_does_not_get_it_back_with_its_old_row(world: EngineWorld) -> None:
    """It may have had ids that others were going to use, with reports of its own, and have retired the rows."""
    row(world, "south", "d2", created_at=START_US - 1)
    job = world.job(Pace(device_state_s=0.0))
    world.status("d2", "ONLINE", action_id=None, attempt=None, tenant="south")
    job.turn()
    world.table("devices").update({"retired_at": "now()"}, predicate="tenant = 'south'")
    job.turn()
    row(world, "north", "d2", created_at=START_US)
    job.turn()
    assert job._devices["d2"].tenant == "north"
    world.table("devices").update({"retired_at": "NULL"}, predicate="tenant = 'south'")
    job.turn()
    assert job._devices["d2"].tenant == "north"
    job.close()
    assert kept(world)["d2"] == "north"
    assert tenant_in(world, device_id="d2") == "north", "also for the next engine"


def test_several_rows_of_the_owner_are_told_apart_by_their_time(world: EngineWorld) -> None:
    job = world.job()
    job.turn()
    row(world, "south", created_at=START_US - 5)
    row(world, "north", created_at=START_US - 1, log="a")
    job.turn()
    job.turn()
    assert (job._devices["d1"].tenant, job._devices["d1"].log) == ("north", "a")
    job.close()


def test_a_plan_sees_the_owner_that_the_engine_sees(world: EngineWorld) -> None:
    row(world, "south", created_at=START_US - 1)
    tenant_in(world)
    for tenant, count in (("north", 1), ("south", 0)):
        found = FleetDesk(world.root, tenant=tenant).plan(Order("echo", percentage=100.0))
        assert len(found.devices) == count


def test_without_two_tenants_nobody_asks_who_was_first(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("a question that costs")

    monkeypatch.setattr("actions.table_reader.DeviceRows.kept_tenants", asked)
    monkeypatch.setattr("actions.table_reader.DeviceRows.first_tenants", asked)
    row(world, "north", created_at=START_US + 1)
    row(world, "south", "d2")
    assert tenant_in(world) == "north"
    assert kept(world) == {}
