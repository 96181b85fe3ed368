"""What people insert through the desk, beside tables of older versions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from support.engine_world import EngineWorld

from actions.engine import ActionPhase, ActionState
from actions.fleet_desk import FleetDesk, Order
from actions.rows import states_table
from sinks.rows import now_us
from sinks.tables import ACTION_REQUESTS, ACTION_STATE, uri_of


def waiting(wave: int) -> ActionState:
    return ActionState(
        action_id="a1",
        tenant="default",
        phase=ActionPhase.WAITING_APPROVAL,
        digest="d",
        targets=10,
        open=9,
        counts={},
        message="",
        started_us=1,
        ended_us=None,
        updated_us=1,
        wave=wave,
        waves=3,
    )


def asked(root: Path) -> list[tuple[str, int | None]]:
    rows = pa.table(DeltaTable(uri_of(root, ACTION_REQUESTS.name)).to_pyarrow_table()).to_pylist()
    return sorted((row["request_id"], row["wave"]) for row in rows)


def test_an_approval_names_the_wave_that_waits_now(tmp_path: Path) -> None:
    desk = FleetDesk(tmp_path, by="bob", create=True)
    before = desk.approve("a1")
    write_deltalake(uri_of(tmp_path, ACTION_STATE.name), states_table([waiting(0)]), mode="append")
    found, chosen = desk.approve("a1"), desk.approve("a1", wave=3)
    assert asked(tmp_path) == sorted([(before, None), (found, 2), (chosen, 3)])


def test_an_approval_fits_a_table_without_the_column(tmp_path: Path) -> None:
    desk = FleetDesk(tmp_path, by="bob", create=True)
    uri = uri_of(tmp_path, ACTION_REQUESTS.name)
    old = pa.schema([field for field in ACTION_REQUESTS.arrow_schema() if field.name != "wave"])
    write_deltalake(uri, old.empty_table(), mode="overwrite", schema_mode="overwrite")
    assert "wave" not in DeltaTable(uri).schema().to_arrow().names
    request_id = desk.approve("a1", wave=2)
    assert asked(tmp_path) == [(request_id, 2)]


def test_an_audit_tells_the_end_of_an_action_and_none_before_it(tmp_path: Path) -> None:
    desk = FleetDesk(tmp_path, by="ann", create=True)
    desk.order(Order("echo", device_ids=["d1"]), action_id="a1")
    uri = uri_of(tmp_path, ACTION_STATE.name)
    write_deltalake(uri, states_table([waiting(0)]), mode="append")
    assert [row["what"] for row in desk.audit("a1")] == ["create"]
    ended = replace(waiting(0), phase=ActionPhase.ENDED, ended_us=now_us(), message="of 1 device 1 succeeded")
    write_deltalake(uri, states_table([ended]), mode="overwrite")
    end = desk.audit("a1")[-1]
    assert (end["at"], end["who"], end["what"]) == (ended.ended_us, "engine", "ENDED")
    assert end["text"] == "of 1 device 1 succeeded"


def test_an_audit_tells_the_counts_of_the_end_and_not_those_of_later(tmp_path: Path) -> None:
    world = EngineWorld(tmp_path)
    world.devices("d1", "d2", "d3")
    world.action("a1", retries=0, timeout_queued_s=10)
    job = world.job()
    job.turn()
    world.status("d1", "SUCCEEDED")
    job.turn()
    world.passes(60)
    job.turn()
    desk = FleetDesk(tmp_path)
    (end,) = [row for row in desk.audit("a1") if row["what"] == "ENDED"]
    assert end["text"] == "of 3 devices 1 succeeded, 2 timed out"
    world.passes(5)
    world.status("d2", "SUCCEEDED")
    job.turn()
    job.close()
    found = {row["what"]: row for row in desk.audit("a1") if row["who"] == "engine"}
    assert found["ENDED"] == end
    assert found["LATE_SUCCESS"]["device_id"] == "d2"
    assert (desk.action("a1") or {})["message"] == "of 3 devices 2 succeeded, 1 timed out"


def test_a_plan_tells_everything_that_is_wrong(tmp_path: Path) -> None:
    desk = FleetDesk(tmp_path, by="ann", create=True)
    wrong = Order("", percentage=101.0, mode="soft", retries=-1, depends_on=["nothing"], deadline_us=1)
    refused = desk.plan(wrong).refused or ""
    parts = refused.removeprefix("refused, nothing was sent: ").split("; ")
    assert len(parts) >= 6, parts
    for part in ("name must have", "percentage must be", "mode is only for type 'ota'", "retries", "depends_on names"):
        assert any(one.startswith(part) for one in parts), part
    assert parts[-1] == "deadline 1970-01-01T00:00:00+00:00 has passed"
    assert desk.plan(Order("echo", percentage=100.0)).refused is None
