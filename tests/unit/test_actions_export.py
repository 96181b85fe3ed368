"""`headwater actions export`: the audit of actions is complete, whatever part of it is in the archives."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support.engine_world import SECOND, EngineWorld

from actions import archive as archive_
from actions.export import KINDS
from actions.fleet_desk import FleetDesk
from actions.store import DeltalakeStore
from headwater_cli import main
from sinks import tables

DAY = 24 * 3600 * SECOND
WROTE = "wrote 1 action, 1 state, 2 requests, 3 targets, 5 events"


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    """`a1` ended for three devices; `a2`, a day later, is open; `a3` waits for an engine."""
    world = EngineWorld(tmp_path / "tables")
    world.devices("d1", "d2", "d3")
    world.action("a1", created_at=world.now_us, created_by="ann")
    job = world.job()
    job.turn()
    for kind in ("pause", "resume"):
        row = {"request_id": kind, "tenant": "default", "action_id": "a1", "kind": kind, "by": "bob"}
        world.insert(tables.ACTION_REQUESTS, {**row, "at": world.now_us, "reason": "=1+1"})
        job.turn()
    for device_id in ("d1", "d2", "d3"):
        world.status(device_id, "SUCCEEDED", result='{"text": "ü"}')
    job.turn()
    world.passes(24 * 3600)
    world.action("a2", created_at=world.now_us)
    job.turn()
    job.close()
    world.action("a3", created_at=world.now_us + DAY)
    assert world.states("a1") == {"SUCCEEDED"}
    return world


def exported(
    world: EngineWorld, capsys: pytest.CaptureFixture[str], *words: str, code: int = 0
) -> tuple[list[dict[str, Any]], str]:
    """The lines on stdout, and what was said."""
    capsys.readouterr()
    assert main(["actions", "export", *words, "--root", str(world.root)]) == code
    out, err = capsys.readouterr()
    return [json.loads(line) for line in out.splitlines()], err.strip()


def without_mark(rows: list[dict[str, Any]]) -> Counter[str]:
    return Counter(str({name: value for name, value in row.items() if name != "archived_at"}) for row in rows)


def test_an_export_has_every_row_before_during_and_after_a_move(
    world: EngineWorld, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, said = exported(world, capsys, "a1")
    assert said == WROTE
    assert Counter(row["row"] for row in rows) == {"action": 1, "state": 1, "request": 2, "target": 3, "event": 5}
    assert {row["by"] for row in rows if row["row"] == "request"} == {"bob"}
    before, world.now_us = without_mark(rows), world.now_us + 100 * DAY
    monkeypatch.setattr(archive_, "PART_ROWS", 1)
    store, parts = DeltalakeStore(world.root), 0
    store.claim()
    while store.archive(world.now_us - 90 * DAY):
        parts += 1
        rows, said = exported(world, capsys, "a1")
        assert (without_mark(rows), said) == (before, WROTE), f"after part {parts}"
    assert parts > 5
    assert not [row for row in world.rows("action_targets") if row["action_id"] == "a1"]


def test_control_without_the_archive_an_export_would_say_what_it_lacks(
    world: EngineWorld, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world.now_us += 100 * DAY
    store = DeltalakeStore(world.root)
    store.claim()
    while store.archive(world.now_us - 90 * DAY):
        pass
    monkeypatch.setattr("actions.history.History._exists", lambda *_: False)
    out = world.root.parent / "audit.jsonl"
    _, said = exported(world, capsys, "a1", "--out", str(out), code=1)
    assert "3 of action a1" in said
    assert list(out.parent.glob("audit*")) == [], "an incomplete file is not kept"


def test_a_period_has_the_actions_that_were_inserted_or_begun_in_it(
    world: EngineWorld, capsys: pytest.CaptureFixture[str]
) -> None:
    def ids(*words: str) -> set[str]:
        rows, _ = exported(world, capsys, *words)
        return {row["action_id"] for row in rows}

    start, middle, end = ("2027-01-15T08:00Z", "2027-01-16T00:00Z", "2027-01-17T00:00Z")
    assert ids("--since", start) == {"a1", "a2", "a3"}
    assert ids("--until", middle) == {"a1"}
    assert ids("--since", middle, "--until", end) == {"a2"}
    assert ids("--since", end) == {"a3"}
    assert ids("--since", "2028-01-01T00:00Z") == set()


def test_csv_has_a_file_for_each_kind_with_every_column(
    world: EngineWorld, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "audit"
    rows, said = exported(world, capsys, "a1", "--csv", str(folder))
    assert (rows, said) == ([], WROTE)
    found = {}
    for kind, table in KINDS.items():
        with (folder / f"{kind}.csv").open(newline="", encoding="utf-8") as file:
            found[kind] = list(csv.DictReader(file))
        assert all(tuple(row) == table.names for row in found[kind])
    assert {kind: len(lines) for kind, lines in found.items()} == {
        "action": 1,
        "state": 1,
        "request": 2,
        "target": 3,
        "event": 5,
    }
    assert found["state"][0]["counts"] == '{"SUCCEEDED": 3}'
    assert found["action"][0]["created_at"] == "2027-01-15T08:00:00.000000+00:00"
    assert {row["reason"] for row in found["request"]} == {"'=1+1"}, "no formula for a spreadsheet"
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"{kind}.csv" for kind in KINDS)
    _, said = exported(world, capsys, "a1", "--csv", str(folder), code=5)
    assert "is not empty" in said


def test_an_export_to_a_file_is_the_one_to_stdout(
    world: EngineWorld, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows, _ = exported(world, capsys, "a1")
    out = tmp_path / "audit.jsonl"
    assert exported(world, capsys, "a1", "--out", str(out)) == ([], WROTE)
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows


def test_what_cannot_be_exported_is_said(
    world: EngineWorld, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _, said = exported(world, capsys, "unknown", code=4)
    assert "there is no action unknown" in said
    for words in ((), ("a1", "--since", "2027-01-01"), ("a1", "--out", "x", "--csv", "y"), ("--since", "yesterday")):
        exported(world, capsys, *words, code=2)
    _, said = exported(world, capsys, "a1", "--out", str(tmp_path / "nowhere" / "x"), code=5)
    assert "cannot write the file" in said


def test_an_archived_action_is_shown_as_before(world: EngineWorld, capsys: pytest.CaptureFixture[str]) -> None:
    def shown() -> list[str]:
        said = []
        for words in (["show", "a1"], ["show", "a1", "--csv"], ["show", "a1", "--device", "d2"], ["audit", "a1"]):
            capsys.readouterr()
            assert main(["actions", *words, "--root", str(world.root)]) == 0
            said += capsys.readouterr().out.splitlines()
        return [*said, str(FleetDesk(world.root).waves("a1"))]

    before, world.now_us = shown(), world.now_us + 100 * DAY
    store = DeltalakeStore(world.root)
    store.claim()
    while store.archive(world.now_us - 90 * DAY):
        pass
    assert not [row for row in world.rows("action_targets") if row["action_id"] == "a1"]
    assert shown() == before
    assert len(before) > 10
