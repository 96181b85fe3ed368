"""An action with many devices is shown in groups, and as CSV that no spreadsheet runs."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from support.engine_world import EngineWorld, PretendedLog

from actions.engine import ActionPhase, ActionState
from actions.fleet_desk import FleetDesk, Order
from actions.job import ActionJob
from actions.progress import GROUPS_MAX, groups, waits
from actions.rows import states_table
from actions.store import DeltalakeStore
from headwater_cli import main
from sinks.rows import arrow_of, now_us
from sinks.tables import ACTION_EVENTS, ACTION_STATE, ACTION_TARGETS, uri_of


def filled(root: Path, targets: list[dict[str, Any]]) -> FleetDesk:
    desk = FleetDesk(root, create=True)
    state = ActionState(
        action_id="a1",
        tenant="default",
        phase=ActionPhase.RUNNING,
        digest="d",
        targets=len(targets),
        open=1,
        counts={},
        message="under way",
        started_us=1,
        ended_us=None,
        updated_us=1,
        wave=0,
        waves=1,
    )
    write_deltalake(uri_of(root, ACTION_STATE.name), states_table([state]), mode="append")
    rows = [{"action_id": "a1", "attempt": 1, "state": "PENDING", **row} for row in targets]
    rows.append({"action_id": "a2", "attempt": 1, "state": "FAILED", "device_id": "other"})
    write_deltalake(uri_of(root, ACTION_TARGETS.name), arrow_of(rows, ACTION_TARGETS), mode="append")
    return desk


def many(count: int) -> list[dict[str, Any]]:
    failed = [{"device_id": f"f{n}", "state": "FAILED", "message": "no space"} for n in range(2)]
    return [{"device_id": f"d{n:06}", "message": "waits"} for n in range(count)] + failed


def test_it_is_told_for_what_the_pending_devices_wait(tmp_path: Path) -> None:
    """The rows of targets that wait for a wave, a window, a time or the rate have no message."""
    world = EngineWorld(tmp_path)
    world.devices(*(f"d{number}" for number in range(10)))
    desk = FleetDesk(tmp_path, by="ann")
    window = f"{datetime.now(UTC) + timedelta(days=2):%a} 10:00-11:00"
    orders: dict[str, dict[str, Any]] = {
        "rate": {"rate_per_minute": 1, "max_in_flight": 1, "waves": [{"percentage": 50}, {"percentage": 100}]},
        "window": {"maintenance_window": window},
        "time": {"not_before_us": 4_102_444_800_000_000},
        "sent": {},
    }
    for action_id, fields in orders.items():
        desk.order(Order("echo", percentage=100.0, **fields), action_id=action_id)
    job = ActionJob(DeltalakeStore(tmp_path), (PretendedLog(),))
    job.turn()
    said = {id_: waits(desk, row) for id_ in orders if (row := desk.action(id_)) is not None}
    assert said == {
        "rate": ["5 for a later wave", "for the rate of 1 a minute", "for others, as at most 1 work at once"],
        "window": [f"for the window {window}, which is closed now in UTC"],
        "time": ["until 2100-01-01T00:00:00+00:00"],
        "sent": [],
    }
    job.close()


def test_many_devices_are_shown_in_groups_with_examples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = filled(tmp_path, many(100))
    assert groups(desk, "a1") == [
        {"state": "PENDING", "message": "waits", "devices": 100, "examples": ["d000000", "d000001", "d000002"]},
        {"state": "FAILED", "message": "no space", "devices": 2, "examples": ["f0", "f1"]},
    ]
    assert main(["actions", "show", "a1", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        "state\tdevices\tmessage\tfor example\n"
        "PENDING\t100\twaits\td000000, d000001, d000002, …\nFAILED\t2\tno space\tf0, f1\n"
    )
    assert main(["actions", "show", "a1", "--root", str(tmp_path), "--devices"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 103


def test_few_devices_are_shown_one_by_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path, many(1))
    assert main(["actions", "show", "a1", "--root", str(tmp_path)]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()[1:]] == ["d000000", "f0", "f1"]


def test_more_groups_than_the_limit_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = filled(tmp_path, [{"device_id": f"d{n:03}", "message": f"own {n}"} for n in range(GROUPS_MAX + 5)])
    assert len(groups(desk, "a1")) == GROUPS_MAX
    assert main(["actions", "show", "a1", "--root", str(tmp_path)]) == 0
    assert "5 more devices are in smaller groups" in capsys.readouterr().err


def test_one_device_is_shown_with_its_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path, many(3))
    event = {"event_id": "e", "source": "status", "device_id": "f0", "at": now_us(), "recorded_at": now_us()}
    rows = [
        event | {"action_id": "a1", "state": "FAILED", "message": "no space"},
        event | {"event_id": "x", "action_id": "a2", "state": "SUCCEEDED"},
    ]
    write_deltalake(uri_of(tmp_path, ACTION_EVENTS.name), arrow_of(rows, ACTION_EVENTS), mode="append")
    assert main(["actions", "show", "a1", "--root", str(tmp_path), "--device", "f0", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["target"]["state"], [one["message"] for one in found["events"]]) == ("FAILED", ["no space"])
    assert main(["actions", "show", "a1", "--root", str(tmp_path), "--device", "f0"]) == 0
    assert "state\tFAILED\n" in capsys.readouterr().out
    assert main(["actions", "show", "a1", "--root", str(tmp_path), "--device", "nobody"]) == 4
    assert "device nobody is not a target of action a1" in capsys.readouterr().err


def test_csv_has_every_device_and_no_formula(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = ["=HYPERLINK(1)", "+1", "-1", "@a", " =1", "a,b", "two\nlines", 'a "b"', "\uff1d1"]
    filled(tmp_path, [{"device_id": f"d{n}", "message": text, "wave": 0} for n, text in enumerate(texts)])
    assert main(["actions", "show", "a1", "--root", str(tmp_path), "--csv"]) == 0
    out = capsys.readouterr().out
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [row["message"] for row in rows][:6] == ["'=HYPERLINK(1)", "'+1", "'-1", "'@a", "' =1", "a,b"]
    assert [row["message"] for row in rows][6:] == ["two\\nlines", 'a "b"', "'\uff1d1"]
    assert len(out.splitlines()) == 1 + len(texts)
    assert {row["wave"] for row in rows} == {"1"}  # As `plan` counts them.


def test_modes_of_show_exclude_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(tmp_path, many(1))
    assert main(["actions", "show", "a1", "--root", str(tmp_path), "--csv", "--json"]) == 2
    assert "give one of --devices, --device and --csv" in capsys.readouterr().err
