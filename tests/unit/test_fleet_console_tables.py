"""What the fleet's console reads from the tables: lists in pages, counts, rows of its tenant alone, nothing twice."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from broker_edge.errors import NotFoundError, SetupError
from fleet_console import tables as kept
from fleet_console.devices import Devices
from fleet_console.quality import Quality
from fleet_console.rollouts import Rollouts, kinds_of_use
from fleet_console.settings import TablesSection
from fleet_console.tables import Tables
from sinks import tables
from sinks.rows import arrow_of, now_us

S = 1_000_000
ODD = "a'b\"c\\d\u202e<img src=x onerror=alert(1)>\ud800"[:-1]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tables.create_by_path(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LOOK_LOCAL_S", 0.0)


def insert(root: Path, table: tables.FieldTable, *rows: dict[str, Any]) -> None:
    write_deltalake(tables.uri_of(root, table.name), arrow_of(rows, table), mode="append")


def opened(root: Path, tenant: str = "default") -> Tables:
    return Tables(TablesSection(root=str(root), tenant=tenant))


def action(root: Path, action_id: str, *, created: int = 0, **more: Any) -> None:
    row = {"action_id": action_id, "name": "echo", "created_by": "ann", "created_at": now_us() + created, **more}
    insert(root, tables.ACTIONS, row)


def state(root: Path, action_id: str, phase: str = "RUNNING", **more: Any) -> None:
    row = {"action_id": action_id, "phase": phase, "targets": 2, "open": 1, "wave": 0, "waves": 1, "digest": "d"}
    insert(root, tables.ACTION_STATE, {**row, "started_at": now_us(), "updated_at": now_us(), **more})


def target(root: Path, action_id: str, *rows: dict[str, Any]) -> None:
    given = {"action_id": action_id, "attempt": 1, "updated_at": now_us()}
    insert(root, tables.ACTION_TARGETS, *({**given, **row} for row in rows))


def listed(rollouts: Rollouts, **given: Any) -> dict[str, Any]:
    wanted = {"contains": "", "phase": "", "after": None, "limit": 100, **given}
    return dict(json.loads(rollouts.page(**wanted)))


def test_the_newest_rollouts_come_first_and_pages_have_each_once(root: Path) -> None:
    for number in range(7):
        # Two and two have the same time.
        action(root, f"a{number}", created_at=S * (number // 2 + 1))
    action(root, "a3", created_at=99 * S, name="later")
    rollouts = Rollouts(opened(root))
    found, after = [], None
    while True:
        page = listed(rollouts, limit=2, after=after)
        found += [one["action_id"] for one in page["rollouts"]]
        after = page["next"]
        if after is None:
            break
    assert found == ["a6", "a4", "a5", "a2", "a3", "a0", "a1"], "of two rows with an id the earlier counts"


def test_a_rollout_is_found_by_id_name_and_phase(root: Path) -> None:
    action(root, "night-1", name="Update")
    action(root, ODD, name="other")
    state(root, ODD, "PAUSED")
    rollouts = Rollouts(opened(root))

    def ids(**given: Any) -> list[str]:
        return [one["action_id"] for one in listed(rollouts, **given)["rollouts"]]

    assert ids(contains="UPD") == ["night-1"]
    assert ids(contains=ODD) == ids(phase="PAUSED") == [ODD]
    assert ids(phase="NEW") == ["night-1"]
    assert ids(contains="' OR true --") == []


def test_one_rollout_has_waves_failures_times_and_what_waits(root: Path) -> None:
    action(root, "a", params="{}", percentage=math.nan, device_ids=[f"d{number}" for number in range(250)])
    action(root, "other")
    state(root, "a", counts={"SUCCEEDED": 3}, requests_done=["r1"])
    done = {"state": "SUCCEEDED", "wave": 0, "queued_at": S, "delivered_at": 2 * S, "finished_at": 11 * S}
    failed = {"state": "FAILED", "message": "no space", "queued_at": S, "delivered_at": 4 * S, "finished_at": 5 * S}
    rows = [{**done, "device_id": f"d{number}"} for number in range(3)]
    rows += [{**failed, "device_id": f"f{number}", "wave": 1} for number in range(2)]
    rows += [
        {"device_id": "p", "state": "PENDING", "wave": 1},
        {"device_id": "r", "state": "REJECTED", "message": None},
    ]
    target(root, "a", *rows)
    target(root, "other", {"device_id": "x", "state": "FAILED"})
    asked = {"action_id": "a", "kind": "pause", "by": "ben", "at": now_us(), "reason": "lunch"}
    insert(root, tables.ACTION_REQUESTS, {**asked, "request_id": "r1"}, {**asked, "request_id": "r2", "kind": "resume"})
    said = {"event_id": "e", "source": "engine", "action_id": "a", "state": "DONE", "at": now_us()}
    insert(root, tables.ACTION_EVENTS, {**said, "message": "pause: nothing more is sent", "recorded_at": now_us()})
    found = json.loads(Rollouts(opened(root)).one("a"))
    assert found["waves"] == [
        {"wave": 0, "counts": {"REJECTED": 1, "SUCCEEDED": 3}},
        {"wave": 1, "counts": {"FAILED": 2, "PENDING": 1}},
    ]
    assert found["failures"] == [
        {"state": "FAILED", "reason": "no space", "number": 2, "example": "f0"},
        {"state": "REJECTED", "reason": None, "number": 1, "example": "r"},
    ]
    times = {one["step"]: (one["number"], one["p50_s"]) for one in found["times"]}
    assert times == {"delivered": (5, 1.0), "started": (0, None), "finished": (3, 10.0)}
    assert [one["what"] for one in found["audit"]] == ["create", "pause", "resume", "DONE"]
    assert [(one["request_id"], one["kind"], one["reason"]) for one in found["asked"]] == [("r2", "resume", "lunch")]
    assert found["order"]["percentage"] == "nan"
    assert found["order"]["device_ids"][-1] == "… and 150 more"
    assert found["rollout"]["counts"] == {"SUCCEEDED": 3}


def test_an_action_that_no_engine_has_read_is_shown_as_new(root: Path) -> None:
    action(root, "a")
    found = json.loads(Rollouts(opened(root)).one("a"))
    assert (found["rollout"]["phase"], found["rollout"]["can"], found["waves"]) == ("NEW", [], [])
    with pytest.raises(NotFoundError, match="there is no action b"):
        Rollouts(opened(root)).one("b")


def test_targets_come_by_page_state_wave_and_part_of_the_id(root: Path) -> None:
    action(root, "a")
    rows = [{"device_id": f"d{number:02}", "state": "QUEUED", "wave": number % 2} for number in range(9)]
    target(root, "a", *rows, {"device_id": ODD, "state": "FAILED", "message": "x" * 5_000})
    rollouts = Rollouts(opened(root))

    def page(**given: Any) -> dict[str, Any]:
        wanted = {"state": "", "reason": "", "wave": None, "contains": "", "after": None, "limit": 4, **given}
        return dict(json.loads(rollouts.targets("a", **wanted)))

    first = page(state="QUEUED")
    assert [one["device_id"] for one in first["targets"]] == ["d00", "d01", "d02", "d03"]
    assert page(state="QUEUED", after=first["next"], limit=100)["next"] is None
    assert [one["device_id"] for one in page(wave=1, contains="D0")["targets"]] == ["d01", "d03", "d05", "d07"]
    assert [one["device_id"] for one in page(reason="x" * 1_000)["targets"]] == [ODD]
    assert page(reason="x" * 999)["targets"] == []
    (odd,) = page(contains=ODD)["targets"]
    assert (odd["device_id"], len(odd["message"])) == (ODD, 1_000)


def test_another_tenant_sees_and_finds_nothing(root: Path) -> None:
    action(root, "a")
    state(root, "a")
    target(root, "a", {"device_id": "d", "state": "QUEUED"})
    insert(root, tables.DEVICES, {"device_id": "d", "labels": {"site": "roof"}, "created_at": 1})
    theirs = opened(root, "them")
    assert listed(Rollouts(theirs))["rollouts"] == []
    with pytest.raises(NotFoundError):
        Rollouts(theirs).one("a")
    page = Rollouts(theirs).targets("a", state="", reason="", wave=None, contains="", after=None, limit=10)
    assert json.loads(page)["targets"] == []
    assert json.loads(Devices(theirs).page(contains="", version="", after=None, limit=10))["devices"] == []
    with pytest.raises(NotFoundError):
        Devices(theirs).one("d")


def test_devices_are_found_by_id_label_and_version(root: Path) -> None:
    for number in range(3):
        insert(root, tables.DEVICES, {"device_id": f"d{number}", "labels": {"site": f"Roof{number}"}, "created_at": 1})
        seen = {"device_id": f"d{number}", "version": f"{number // 2}.0", "product": "p", "last_seen_at": S}
        insert(root, tables.DEVICE_STATE, {**seen, "updated_at": S})
    insert(root, tables.DEVICE_STATE, {"device_id": ODD, "version": "0.0", "updated_at": S})
    target(root, "a", {"device_id": "d1", "state": "FAILED", "message": "no space"})
    devices = Devices(opened(root))

    def page(**given: Any) -> dict[str, Any]:
        wanted = {"contains": "", "version": "", "after": None, "limit": 100, **given}
        return dict(json.loads(devices.page(**wanted)))

    def ids(**given: Any) -> list[str]:
        return [one["device_id"] for one in page(**given)["devices"]]

    assert ids(contains="roof1") == ids(contains="D1") == ["d1"]
    assert ids(version="1.0") == ["d2"]
    assert ids(contains=ODD) == [ODD]
    assert ids(is_untold=True) == []
    insert(root, tables.DEVICE_STATE, {"device_id": "e1", "version": "", "updated_at": S})
    insert(root, tables.DEVICES, {"device_id": "e2", "created_at": 1})
    assert ids(is_untold=True) == ["e1", "e2"]
    first = page(limit=2)
    assert (first["next"], "versions" in page(after=first["next"])) == (first["devices"][-1]["device_id"], False)
    assert {(one["product"], one["version"]): one["number"] for one in first["versions"]} == {
        ("p", "0.0"): 2,
        ("p", "1.0"): 1,
        (None, "0.0"): 1,
        (None, ""): 1,
        (None, None): 1,
    }
    found = json.loads(devices.one("d1"))
    assert (found["device"]["labels"], found["device"]["last_seen_us"]) == ({"site": "Roof1"}, S)
    assert [(one["action_id"], one["message"]) for one in found["targets"]] == [("a", "no space")]


def test_quality_sums_a_day_and_says_which_tables_are_missing(root: Path) -> None:
    quality = Quality(opened(root))
    empty = json.loads(quality.answer())
    assert (empty["rules"], empty["quarantine"], empty["gaps"]) == (None, [], None)
    tables.create_by_path(root, tables=tables.BESIDE_SILVER)
    rule = {"source": "batch", "message": "m", "rule": "range", "success": True, "checked": 10, "failed": 0}
    old = {**rule, "success": False, "failed": 9, "at": now_us() - 25 * 3600 * S}
    now = now_us() - 60 * S
    insert(root, tables.DQ_RESULTS, {**rule, "at": now}, {**rule, "success": False, "failed": 2, "at": now}, old)
    bad = {"pipeline": "silver/m", "reason": "no JSON", "log_id": "l", "partition": 1, "quarantined_at": S}
    insert(root, tables.QUARANTINE, {**bad, "offset": 1}, {**bad, "offset": 2})
    gap = {"log_id": "l", "partition": 1, "start": 3, "end": 5, "reason": "damage", "reported_at": S}
    insert(root, tables.INGEST_GAPS, {**gap, "report_log_id": "l", "report_offset": 1, "recorded_at": S})
    found = json.loads(Quality(opened(root)).answer())
    assert [(one["rule"], one["success"], one["checked"], one["failed"]) for one in found["rules"]] == [
        ("range", False, 20, 2)
    ]
    assert [(one["reason"], one["number"], one["newest_us"]) for one in found["quarantine"]] == [("no JSON", 2, S)]
    assert [(one["start"], one["end"], one["reported_us"]) for one in found["gaps"]] == [(3, 5, S)]


def test_an_answer_is_made_again_only_when_a_table_has_changed(root: Path) -> None:
    found = opened(root)
    made = []

    def ask() -> bytes:
        return found.answer("q", ("actions",), lambda: made.append(1) or len(made))

    assert (ask(), ask(), len(made)) == (b"1", b"1", 1)
    insert(root, tables.DEVICES, {"device_id": "d"})
    assert ask() == b"1"
    action(root, "a")
    assert (ask(), ask()) == (b"2", b"2")


def test_old_answers_make_room_for_new_ones(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_KEPT_BYTES", 2_000)
    found = opened(root)
    for number in range(9):
        found.answer(f"q{number}", ("actions",), lambda: "x" * 30)
    assert (len(found._answers), found._bytes <= 2_000) == (3, True)


def test_tables_that_are_made_anew_are_seen(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_WHOLE_LOOK_S", 0.0)
    action(root, "before")
    state(root, "before")
    rollouts = Rollouts(opened(root))
    assert [one["action_id"] for one in listed(rollouts)["rollouts"]] == ["before"]
    shutil.rmtree(root)
    tables.create_by_path(root)
    action(root, "after")
    action(root, "after-2")
    found = [one["action_id"] for one in listed(rollouts)["rollouts"]]
    assert found == ["after-2", "after"]


def test_a_table_that_was_made_anew_with_the_same_version_is_noticed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "_WHOLE_LOOK_S", 0.0)
    devices = Devices(opened(root))

    def ids() -> list[str]:
        page = json.loads(devices.page(contains="", version="", after=None, limit=10))
        return [one["device_id"] for one in page["devices"]]

    insert(root, tables.DEVICES, {"device_id": "old", "created_at": 1})
    assert ids() == ["old"]
    shutil.rmtree(root / "devices")
    tables.create_by_path(root)
    insert(root, tables.DEVICES, {"device_id": "new", "created_at": 1})
    assert ids() == ["new"]


def test_rows_of_strangers_close_no_page(root: Path) -> None:
    far = 9_000_000_000_000_000_000
    action(root, "a", created_at=far)
    action(root, "b")
    insert(root, tables.ACTIONS, {"action_id": "c", "created_at": None})
    for _ in range(3):
        state(root, "b", counts={"X": 2**31 - 1})
    target(root, "b", {"device_id": "d1", "state": "QUEUED"}, {"device_id": "d2", "state": "x", "wave": -5})
    rollouts = Rollouts(opened(root))
    first = listed(rollouts, limit=1)
    assert first["next"] == f"{far}:a"
    rest = listed(rollouts, after=first["next"])
    assert sorted(one["action_id"] for one in rest["rollouts"]) == ["b", "c"]
    assert json.loads(rollouts.one("b"))["waves"][0] == {"wave": -5, "counts": {"x": 1}}


def test_without_tables_the_sentence_says_where_they_were_looked_for(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="there is no table action_state under"):
        listed(Rollouts(opened(tmp_path / "none")))


@pytest.mark.parametrize(
    ("row", "kinds"),
    [
        ({"phase": "NEW"}, []),
        ({"phase": "REFUSED"}, []),
        ({"phase": "RUNNING"}, ["pause", "cancel"]),
        ({"phase": "RUNNING", "type": "ota"}, ["pause", "force", "cancel"]),
        ({"phase": "RUNNING", "held": "3 devices"}, ["pause", "remove", "cancel"]),
        ({"phase": "PAUSED", "counts": {"FAILED": 1}}, ["resume", "retry", "cancel"]),
        ({"phase": "WAITING_APPROVAL"}, ["approve", "pause", "cancel"]),
        ({"phase": "STOPPING", "stopped": "cancelled", "counts": {"CANCELLING": 1, "FAILED": 1}}, ["force"]),
        ({"phase": "ENDED", "counts": {"TIMED_OUT": 1}}, ["retry"]),
        ({"phase": "ENDED", "counts": {"SUCCEEDED": 1}}, []),
    ],
)
def test_a_page_offers_what_the_engine_would_do(row: dict[str, Any], kinds: list[str]) -> None:
    assert kinds_of_use({"type": "command", "counts": None, "stopped": None, "held": None, **row}) == kinds
