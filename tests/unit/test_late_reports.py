"""A late report of an action that is over costs one lookup of its target, and means the same as if all were loaded."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.engine_world import EngineWorld

from actions import late as late_
from actions import loading as loading_
from actions.fleet_desk import FleetDesk
from actions.job import ActionJob
from actions.store import DeltalakeStore
from actions.table_reader import TableReader
from actions.table_store import Loaded

MANY = 200
HOUR = 3600.0


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    """`a1` ended for `MANY` devices: `d0` to `d9` timed out, the others succeeded. The engine has forgotten it."""
    return made(tmp_path)


def made(root: Path) -> EngineWorld:
    world = EngineWorld(root)
    world.devices(*(f"d{number}" for number in range(MANY)))
    world.action("a1", timeout_queued_s=60)
    job = world.job()
    job.turn()
    for number in range(10, MANY):
        world.status(f"d{number}", "SUCCEEDED")
    job.turn()
    world.passes(100)
    job.turn()
    job.close()
    assert counts(world) == {"SUCCEEDED": MANY - 10, "TIMED_OUT": 10}
    world.passes(HOUR)
    return world


def counts(world: EngineWorld, action_id: str = "a1") -> dict[str, int]:
    (row,) = [row for row in world.rows("action_state") if row["action_id"] == action_id]
    return dict(row["counts"])


def started(world: EngineWorld) -> ActionJob:
    """An engine that has forgotten what has ended."""
    job = world.job()
    job.turn()
    assert not job.state.actions
    return job


class Counted:
    """The targets that the engine reads, and in how many statements."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows, self.statements = 0, 0
        real = TableReader.values

        def counted(reader: TableReader, name: str, *arguments: Any, **named: Any) -> list[Any]:
            found = real(reader, name, *arguments, **named)
            if name.startswith("action_targets"):
                self.rows, self.statements = self.rows + len(found), self.statements + 1
            return found

        patch.setattr(TableReader, "values", counted)


def whole(patch: pytest.MonkeyPatch) -> None:
    """Late reports load everything, as if no action were over."""
    patch.setattr(DeltalakeStore, "load_late", lambda *_: Loaded((), (), (), frozenset()))


def test_a_late_report_loads_its_own_target_alone(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    job = started(world)
    read = Counted(monkeypatch)
    world.status("d3", "SUCCEEDED")
    world.status("d150", "FAILED")
    job.turn()
    job.close()
    assert (read.rows, read.statements) == (2, 1)
    assert counts(world) == {"SUCCEEDED": MANY - 9, "TIMED_OUT": 9}
    (target,) = [row for row in world.rows("action_targets") if row["device_id"] == "d3"]
    assert (target["state"], target["late"]) == ("SUCCEEDED", True)
    (event,) = [row for row in world.rows("action_events") if row["state"] == "LATE_SUCCESS"]
    assert event["device_id"] == "d3"


def test_control_without_the_lookup_a_late_report_loads_every_target(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(world)
    read = Counted(monkeypatch)
    whole(monkeypatch)
    world.status("d3", "SUCCEEDED")
    job.turn()
    assert read.rows == MANY


def test_control_without_the_counts_of_the_others_the_row_of_the_action_would_be_wrong(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(world)
    with_some = late_.with_some

    def forgetful(*arguments: Any) -> Any:
        state, taken = with_some(*arguments)
        return replace(state, unloaded={}), taken

    monkeypatch.setattr("actions.job.with_some", forgetful)
    world.status("d3", "SUCCEEDED")
    job.turn()
    assert counts(world) == {"SUCCEEDED": 1}


def test_reports_about_a_device_that_is_no_target_are_looked_up_once_and_go_to_quarantine(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(world)
    read = Counted(monkeypatch)
    world.status("stranger", "SUCCEEDED")
    job.turn()
    job.turn()
    assert (read.rows, read.statements, len(job.state.waiting)) == (0, 1, 1)
    world.passes(601)
    job.turn()
    (row,) = world.rows("quarantine")
    assert "no target matched" in row["reason"]
    assert counts(world) == {"SUCCEEDED": MANY - 10, "TIMED_OUT": 10}


def test_a_retry_with_or_after_a_late_report_has_every_target(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(world)
    # The row is as young as that of an action that has just ended, so that the engine keeps what it looked up.
    monkeypatch.setattr("actions.job._KEEP_ENDED_US", 10**15)
    world.status("d3", "SUCCEEDED")
    job.turn()
    assert len(job.state.targets["a1"]) == 1
    FleetDesk(world.root, by="ann").ask("retry", "a1")
    world.status("d4", "SUCCEEDED")
    job.turn()
    assert len(job.state.targets["a1"]) == MANY
    assert not job.state.unloaded
    world.passes(1)
    job.turn()
    assert counts(world) == {"SUCCEEDED": MANY - 8, "QUEUED": 8}
    for number in (0, 1, 2, 5, 6, 7, 8, 9):
        world.status(f"d{number}", "SUCCEEDED", attempt=2)
    job.turn()
    assert counts(world) == {"SUCCEEDED": MANY}


def test_more_late_reports_of_an_action_that_is_partly_known_add_their_targets(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(world)
    monkeypatch.setattr("actions.job._KEEP_ENDED_US", 10**15)
    read = Counted(monkeypatch)
    for number in (3, 4, 3, 150):
        world.status(f"d{number}", "SUCCEEDED")
        job.turn()
    assert read.rows == 3
    assert counts(world) == {"SUCCEEDED": MANY - 8, "TIMED_OUT": 8}


def test_an_action_whose_counts_do_not_fit_its_targets_is_loaded_completely(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a row of an older version."""
    job = started(world)
    world.table("action_state").update(updates={"counts": "NULL"})
    read = Counted(monkeypatch)
    world.status("d3", "SUCCEEDED")
    job.turn()
    assert read.rows == MANY + 1, "after the lookup of one"
    assert counts(world) == {"SUCCEEDED": MANY - 9, "TIMED_OUT": 9}


def test_what_depends_on_an_ended_action_has_all_of_its_targets(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = started(world)
    monkeypatch.setattr("actions.job._KEEP_ENDED_US", 10**15)
    world.status("d3", "SUCCEEDED")
    job.turn()
    world.action("a2", depends_on=["a1"])
    job.turn()
    assert counts(world, "a2") == {"QUEUED": MANY - 9, "SKIPPED": 9}


def test_reports_of_a_large_share_of_the_targets_load_the_action_at_once(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand devices are one statement; a hundred statements take longer than everything."""
    job, store = started(world), DeltalakeStore(world.root)
    assert len(store.load_late({"a1": {f"d{number}" for number in range(30)}}).targets) == 30
    monkeypatch.setattr(loading_, "ASKED_MAX", 10)
    assert store.load_late({"a1": {f"d{number}" for number in range(19)}}).states
    assert not store.load_late({"a1": {f"d{number}" for number in range(20)}}).states
    for number in range(20):
        world.status(f"d{number}", "SUCCEEDED")
    job.turn()
    assert counts(world) == {"SUCCEEDED": MANY}


def test_late_reports_of_many_actions_are_asked_for_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = EngineWorld(tmp_path)
    asked = {f"a{number}": {f"d{one}" for one in range(3)} for number in range(1_500)}
    parts = list(loading_._pairs(asked))
    assert len(parts) == 5
    assert DeltalakeStore(world.root).load_late(asked).targets == ()
    assert all(not list(DeltalakeStore(world.root)._reader.streamed("action_targets", _select(part))) for part in parts)


def _select(where: str) -> str:
    return f"SELECT * FROM action_targets WHERE {where}"


def test_random_late_reports_leave_the_same_tables_as_a_complete_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(10**6)
    ends = []
    for name, is_whole in (("some", False), ("all", True)):
        with monkeypatch.context() as patch:
            if is_whole:
                whole(patch)
            chance, world = random.Random(seed), made(tmp_path / name)
            job = world.job()
            job.turn()
            for _ in range(12):
                for _ in range(chance.randint(1, 4)):
                    receipt = {"source": "receipt", "log_id": chance.choice(["log", "other"]), "command_partition": 1}
                    receipt |= {"command_offset": chance.randint(1, 300), "state": "DELIVERED"}
                    said = receipt if chance.random() < 0.3 else {}
                    state = chance.choice(["SUCCEEDED", "FAILED", "ACCEPTED", "CANCELLED"])
                    device_id = f"d{chance.randint(0, 20)}"
                    world.status(device_id, said.pop("state", state), attempt=chance.choice([1, 1, 2]), **said)
                if chance.random() < 0.2:
                    FleetDesk(world.root, by="ann").ask("retry", "a1", device_id=f"d{chance.randint(0, 9)}")
                world.passes(chance.choice([1, 100, 700]))
                job.turn()
                if chance.random() < 0.3:
                    job.close()
                    job = world.job()
                    job.turn()
            ends.append(_content(world, ("action_targets", "action_state", "quarantine")))
    assert ends[0] == ends[1], f"seed {seed}"


def _content(world: EngineWorld, names: Collection[str]) -> list[Any]:
    hidden = {"quarantined_at", "requests_done"}
    return [
        sorted(sorted((key, str(value)) for key, value in row.items() if key not in hidden) for row in world.rows(name))
        for name in names
    ]
