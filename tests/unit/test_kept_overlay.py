"""What a console keeps of the journal shows the same rows as the whole journal does, whatever happens in between."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from support.engine_world import EngineWorld
from support.journal_world import JOURNAL, engine, large_world, tell

from actions import kept_overlay
from actions.history import History
from actions.kept_overlay import KeptTables
from broker_edge.fields import FieldTable
from sinks import tables
from sinks.rows import arrow_of
from sinks.store import StoreAccess

TABLES = (kept_overlay._TARGETS, tables.ACTION_STATE, tables.DEVICE_STATE, tables.ACTIONS)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineWorld:
    return large_world(tmp_path / "tables", monkeypatch)


def kept(world: EngineWorld) -> History:
    return History(world.root, StoreAccess.of({}), KeptTables(world.root, lambda: None))


def rows(history: History, table: FieldTable) -> list[dict[str, Any]]:
    columns = ", ".join(f'"{name}"' for name in table.names)
    return sorted(history.query(table.name, f"SELECT {columns} FROM {table.name}"), key=str)


def require_same(world: EngineWorld, history: History) -> None:
    whole = History(world.root, StoreAccess.of({}))
    for table in TABLES:
        assert rows(history, table) == rows(whole, table), table.name


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


def test_a_question_under_way_keeps_its_rows_while_the_overlay_goes(world: EngineWorld) -> None:
    job = engine(world)
    job.turn()
    tell(world, job, "d01", "SUCCEEDED")
    asked = KeptTables(world.root, lambda: None)
    before = asked.fresh("action_targets")
    job._store.settle(now=True)
    asked.fresh("action_targets")
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


def test_rows_that_were_read_before_a_bad_one_are_read_again(world: EngineWorld) -> None:
    history, job = kept(world), engine(world)
    job.turn()
    tell(world, job, "d01", "SUCCEEDED")
    path = tables.uri_of(world.root, JOURNAL)
    bad = {"number": 10_000, "table_name": "action_targets", "action_id": "a1", "device_id": "d02", "row": "no JSON"}
    write_deltalake(path, arrow_of([bad], tables.ACTION_JOURNAL), mode="append")
    with pytest.raises(ValueError):
        rows(history, kept_overlay._TARGETS)
    DeltaTable(path).delete("number = 10000")
    require_same(world, history)


def test_tables_of_an_older_version_have_no_journal(world: EngineWorld) -> None:
    job = engine(world)
    job.turn()
    job._store.settle(now=True)
    shutil.rmtree(world.root / JOURNAL)
    assert len(rows(kept(world), kept_overlay._TARGETS)) == 20
