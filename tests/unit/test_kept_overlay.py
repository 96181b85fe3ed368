"""What a console keeps of the journal shows the same rows as the whole journal does, whatever happens in between."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.engine_world import EngineWorld
from support.journal_world import JOURNAL, engine, large_world, tell

from actions import kept_overlay
from actions.history import History
from actions.kept_overlay import KeptTables
from sinks.store import StoreAccess

NAMES = ("action_targets", "action_state", "device_state", "actions")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineWorld:
    return large_world(tmp_path / "tables", monkeypatch)


def kept(world: EngineWorld) -> History:
    return History(world.root, StoreAccess.of({}), KeptTables(world.root, lambda: None))


def rows(history: History, name: str) -> list[dict[str, Any]]:
    return sorted(history.query(name, f"SELECT * FROM {name}"), key=str)


def require_same(world: EngineWorld, history: History) -> None:
    whole = History(world.root, StoreAccess.of({}))
    for name in NAMES:
        assert rows(history, name) == rows(whole, name), name


def test_it_shows_what_the_whole_journal_shows_after_every_change(world: EngineWorld) -> None:
    history, job = kept(world), engine(world)
    job.turn()
    require_same(world, history)
    for state in ("ACCEPTED", "IN_PROGRESS", "SUCCEEDED"):
        for number in (1, 2, 3):
            tell(world, job, f"d{number:02}", state)
            require_same(world, history)
    assert world.rows(JOURNAL), "nothing was gathered"
    job._store.settle(now=True)
    assert not world.rows(JOURNAL)
    require_same(world, history)
    tell(world, job, "d04", "SUCCEEDED")
    require_same(world, history)
    # A second engine merges what the first has left, and numbers go on.
    second = engine(world)
    second.turn()
    require_same(world, history)
    tell(world, second, "d05", "FAILED")
    require_same(world, history)


def test_the_small_files_of_an_overlay_become_one(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_overlay, "_FILES_MAX", 2)
    history, job = kept(world), engine(world)
    job.turn()
    for state in ("ACCEPTED", "IN_PROGRESS", "SUCCEEDED"):
        for number in (1, 2):
            tell(world, job, f"d{number:02}", state)
            require_same(world, history)
    overlay = history._kept and history._kept._overlays["action_targets"]
    assert overlay is not None
    assert overlay._files <= 2


def test_a_question_under_way_keeps_its_rows_while_the_overlay_goes(world: EngineWorld) -> None:
    job = engine(world)
    job.turn()
    tell(world, job, "d01", "SUCCEEDED")
    tables = KeptTables(world.root, lambda: None)
    before = tables.fresh("action_targets")
    job._store.settle(now=True)
    tables.fresh("action_targets")
    found = before.select("SELECT state FROM action_targets WHERE device_id = 'd01'").to_pylist()
    assert [row["state"] for row in found] == ["SUCCEEDED"]


def test_tables_that_were_made_anew_are_read_anew_after_forgetting(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, job = kept(world), engine(world)
    job.turn()
    tell(world, job, "d01", "SUCCEEDED")
    require_same(world, history)
    shutil.rmtree(world.root)
    again = large_world(world.root, monkeypatch)
    job = engine(again)
    job.turn()
    tell(again, job, "d02", "SUCCEEDED")
    assert history._kept is not None
    history._kept.forget()
    require_same(again, history)


def test_tables_of_an_older_version_have_no_journal(world: EngineWorld) -> None:
    job = engine(world)
    job.turn()
    job._store.settle(now=True)
    shutil.rmtree(world.root / JOURNAL)
    assert len(rows(kept(world), "action_targets")) == 20
