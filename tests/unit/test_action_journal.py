"""Changes of large actions are gathered in a journal: none is lost, none comes back, and people see all of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.engine_world import SECOND, EngineWorld
from support.journal_world import DEVICES, JOURNAL, KilledError, engine, large_world, tell

from actions import journal as journal_
from actions.fleet_desk import FleetDesk
from actions.inventory import Inventory
from actions.job import ActionJob, Pace
from actions.journal_overlay import FreshTable
from actions.progress import groups
from actions.store import DeltalakeStore
from actions.table_writer import TableWriter
from broker_edge.errors import EngineFencedError, TableStoreError
from sinks import tables
from sinks.rows import rows_of


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineWorld:
    return large_world(tmp_path, monkeypatch)


def begun(world: EngineWorld) -> ActionJob:
    """An engine whose tables have all 20 targets as QUEUED, with an empty journal."""
    job = engine(world)
    job.turn()
    job._store.settle(now=True)
    assert (stored(world), world.rows(JOURNAL)) == ({"QUEUED": DEVICES}, [])
    return job


def counted(rows: list[dict[str, Any]]) -> dict[str, int]:
    states = [row["state"] for row in rows]
    return {state: states.count(state) for state in sorted(set(states))}


def stored(world: EngineWorld) -> dict[str, int]:
    """The states in `action_targets` itself."""
    return counted([row for row in world.rows("action_targets") if row["action_id"] == "a1"])


def seen(world: EngineWorld) -> dict[str, int]:
    """The states that `headwater actions show` prints."""
    return counted(FleetDesk(world.root).targets("a1"))


def version(world: EngineWorld, name: str) -> int:
    return world.table(name).version()


def test_a_few_changes_of_a_large_action_do_not_rewrite_its_targets(world: EngineWorld) -> None:
    job = begun(world)
    before = {name: version(world, name) for name in ("action_targets", "action_state")}
    tell(world, job, "d01", "ACCEPTED")
    tell(world, job, "d01", "SUCCEEDED")
    assert {name: version(world, name) for name in before} == before
    assert (stored(world), seen(world)) == ({"QUEUED": DEVICES}, {"QUEUED": DEVICES - 1, "SUCCEEDED": 1})
    assert len(world.rows(JOURNAL)) == 4, "a target and the state of its action, twice"


def test_a_small_action_is_written_at_once(world: EngineWorld) -> None:
    world.action("small", percentage=None, device_ids=["d00", "d01"])
    job = begun(world)
    tell(world, job, "d02", "ACCEPTED")
    world.status("d00", "SUCCEEDED", action_id="small")
    world.status("d02", "SUCCEEDED")
    job.turn()
    assert (world.states("small"), stored(world)) == ({"QUEUED", "SUCCEEDED"}, {"QUEUED": DEVICES})
    assert seen(world) == {"QUEUED": DEVICES - 1, "SUCCEEDED": 1}


def test_people_see_the_newest_state_everywhere(world: EngineWorld) -> None:
    job = begun(world)
    tell(world, job, "d01", "SUCCEEDED")
    desk = FleetDesk(world.root)
    state = desk.action("a1")
    assert state is not None
    assert (state["open"], state["counts"]["SUCCEEDED"]) == (DEVICES - 1, 1)
    assert {row["state"]: row["devices"] for row in groups(desk, "a1")} == {"QUEUED": DEVICES - 1, "SUCCEEDED": 1}
    assert {row["state"]: row["number"] for row in desk.waves("a1")} == {"QUEUED": DEVICES - 1, "SUCCEEDED": 1}
    inventory = Inventory(world.root)
    assert inventory.device("d01")["targets"] == []
    assert [row["state"] for row in inventory.device("d02")["targets"]] == ["QUEUED"]


def test_every_column_passes_through_the_journal(world: EngineWorld) -> None:
    job = begun(world)
    tell(world, job, "d01", "ACCEPTED")
    world.status("d01", "SUCCEEDED", boot="b", seq=7, progress=100, message="größer 'x'", result='{"a": 1}')
    job.turn()
    fresh = FleetDesk(world.root).targets("a1")
    assert fresh[1]["message"] == "größer 'x'"
    state = FleetDesk(world.root).action("a1")
    job._store.settle(now=True)
    assert sorted(world.rows("action_targets"), key=lambda row: row["device_id"]) == fresh
    assert world.rows("action_state") == [state]


def test_a_part_of_all_targets_is_merged_at_once(world: EngineWorld) -> None:
    job = begun(world)
    for device_id in ("d01", "d02", "d03", "d04", "d05"):
        world.status(device_id, "ACCEPTED")
    job.turn()
    assert (stored(world), world.rows(JOURNAL)) == ({"ACCEPTED": 5, "QUEUED": DEVICES - 5}, [])


def test_gathered_changes_count_towards_that_part(world: EngineWorld) -> None:
    job = begun(world)
    for device_id in ("d01", "d02", "d03", "d04"):
        tell(world, job, device_id, "ACCEPTED")
    assert stored(world) == {"QUEUED": DEVICES}
    tell(world, job, "d05", "ACCEPTED")
    assert (stored(world), world.rows(JOURNAL)) == ({"ACCEPTED": 5, "QUEUED": DEVICES - 5}, [])


def test_changes_are_merged_after_a_time_that_grows_with_the_action(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_, "_ROWS_PER_S", 0.1)
    job = begun(world)
    tell(world, job, "d01", "ACCEPTED")
    world.passes(DEVICES / 0.1 - 1)
    job.turn()
    assert stored(world) == {"QUEUED": DEVICES}
    world.passes(1)
    job.turn()
    assert stored(world) == {"ACCEPTED": 1, "QUEUED": DEVICES - 1}


def test_changes_never_wait_longer_than_half_an_hour(world: EngineWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_, "_ROWS_PER_S", 0.001)
    job = begun(world)
    tell(world, job, "d01", "ACCEPTED")
    world.passes(1801)
    job.turn()
    assert stored(world) == {"ACCEPTED": 1, "QUEUED": DEVICES - 1}


def test_a_pause_is_in_the_table_at_once(world: EngineWorld) -> None:
    """Who watches `action_state`, such as the webhook, must not learn of a gate, an abort or an end minutes late."""
    job = begun(world)
    tell(world, job, "d01", "ACCEPTED")
    FleetDesk(world.root).ask("pause", "a1")
    job.turn()
    assert [row["phase"] for row in world.rows("action_state")] == ["PAUSED"]
    assert (stored(world), world.rows(JOURNAL)) == ({"ACCEPTED": 1, "QUEUED": DEVICES - 1}, [])


def test_an_engine_that_closes_leaves_an_empty_journal(world: EngineWorld) -> None:
    """So the release before this one, which has no journal, may go on."""
    job = begun(world)
    tell(world, job, "d01", "ACCEPTED")
    job.close()
    assert (stored(world), world.rows(JOURNAL)) == ({"ACCEPTED": 1, "QUEUED": DEVICES - 1}, [])


STEPS = ("append", "action_targets", "action_state", "clear")


def killed_at(step: str, when: str, patch: pytest.MonkeyPatch) -> None:
    """An engine that is killed before or after a commit of the journal."""
    method = step if step in ("append", "clear") else "merge"
    real: Callable[..., None] = getattr(TableWriter, method)

    def killed(writer: TableWriter, name: str, *rest: Any, **how: Any) -> None:
        if name not in (JOURNAL, step):
            real(writer, name, *rest, **how)
            return
        if when == "after":
            real(writer, name, *rest, **how)
        raise KilledError(step)

    patch.setattr(TableWriter, method, killed)


def some_turns(world: EngineWorld, job: ActionJob) -> None:
    """d01 succeeds in the journal, which is then merged with d02."""
    tell(world, job, "d01", "ACCEPTED")
    tell(world, job, "d01", "SUCCEEDED")
    tell(world, job, "d02", "ACCEPTED")
    job._store.settle(now=True)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
def test_a_kill_at_any_commit_loses_nothing(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    job = begun(world)
    with monkeypatch.context() as patch:
        killed_at(step, when, patch)
        with pytest.raises(KilledError):
            some_turns(world, job)
    next_job = engine(world)
    assert world.rows(JOURNAL) == []
    for device_id in ("d01", "d01", "d02"):
        if seen(world) != {"ACCEPTED": 1, "QUEUED": DEVICES - 2, "SUCCEEDED": 1}:
            # What was not durable is decided again from the same reports.
            tell(world, next_job, device_id, "ACCEPTED" if device_id == "d02" else "SUCCEEDED")
    next_job.close()
    assert stored(world) == {"ACCEPTED": 1, "QUEUED": DEVICES - 2, "SUCCEEDED": 1}
    (row,) = world.rows("action_state")
    assert row["counts"] == {"ACCEPTED": 1, "QUEUED": DEVICES - 2, "SUCCEEDED": 1}


def stale(world: EngineWorld, patch: pytest.MonkeyPatch) -> dict[str, int]:
    """The states after a kill between the merge and the emptying, after which the next engine wrote a newer state and
    another kill came."""
    job = begun(world)
    tell(world, job, "d01", "ACCEPTED")
    with patch.context() as within:
        killed_at("clear", "before", within)
        with pytest.raises(KilledError):
            job._store.settle(now=True)
        # What is left in the journal has been merged; so is this, without the journal.
        with pytest.raises(KilledError):
            engine(world)
    table = world.table("action_targets")
    table.update(updates={"state": "'SUCCEEDED'"}, predicate="device_id = 'd01'")
    engine(world)
    return stored(world)


def test_rows_of_the_journal_that_are_merged_never_come_back(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stale(world, monkeypatch) == {"QUEUED": DEVICES - 1, "SUCCEEDED": 1}


def test_control_without_the_mark_an_old_row_would_replace_a_newer_one(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_, "mark_of", lambda table, name: -1)
    assert stale(world, monkeypatch) == {"ACCEPTED": 1, "QUEUED": DEVICES - 1}


def test_a_reader_that_opens_the_journal_before_a_merge_and_the_table_after_it_sees_no_old_row(
    world: EngineWorld,
) -> None:
    job = begun(world)
    fresh = FreshTable(world.root, "action_targets")
    tell(world, job, "d01", "ACCEPTED")
    fresh._journal = world.table(JOURNAL)
    tell(world, job, "d01", "SUCCEEDED")
    job._store.settle(now=True)
    fresh._table = world.table("action_targets")
    rows = list(rows_of(fresh.select("SELECT * FROM action_targets")))
    assert counted(rows) == {"QUEUED": DEVICES - 1, "SUCCEEDED": 1}


def test_an_engine_that_was_replaced_appends_nothing_and_merges_nothing(world: EngineWorld) -> None:
    job = begun(world)
    tell(world, job, "d01", "ACCEPTED")
    newer = engine(world)
    assert stored(world) == {"ACCEPTED": 1, "QUEUED": DEVICES - 1}, "the newer engine has merged what was left"
    world.status("d02", "ACCEPTED")
    with pytest.raises(EngineFencedError):
        job.turn()
    with pytest.raises(EngineFencedError):
        job._store.settle(now=True)
    assert world.rows(JOURNAL) == []
    newer.turn()
    assert seen(world) == {"ACCEPTED": 2, "QUEUED": DEVICES - 2}


def test_a_restart_does_not_read_again_what_the_journal_has(world: EngineWorld) -> None:
    job = begun(world)
    tell(world, job, "d01", "ACCEPTED")
    job.turn()
    read = job._settled(job._nothing())
    assert DeltalakeStore(world.root)._marks() == read


def test_an_ended_action_that_was_forgotten_is_loaded_with_its_gathered_changes(world: EngineWorld) -> None:
    job = begun(world)
    for number in range(DEVICES):
        world.status(f"d{number:02}", "FAILED" if number == 1 else "SUCCEEDED")
    job.turn()
    assert [row["phase"] for row in world.rows("action_state")] == ["ENDED"]
    tell(world, job, "d01", "SUCCEEDED")
    loaded = job._store.load({"a1"})
    assert counted([{"state": target.state.value} for target in loaded.targets]) == seen(world)


def test_tables_of_the_release_before_have_no_journal_and_get_one(world: EngineWorld) -> None:
    job = begun(world)
    job.close()
    table = Path(tables.uri_of(world.root, JOURNAL))
    for file in sorted(table.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    table.rmdir()
    assert seen(world) == {"QUEUED": DEVICES}
    job = engine(world)
    tell(world, job, "d01", "ACCEPTED")
    assert seen(world) == {"ACCEPTED": 1, "QUEUED": DEVICES - 1}


def test_a_journal_that_cannot_be_read_stops_the_start_in_one_sentence(world: EngineWorld) -> None:
    job = begun(world)
    tell(world, job, "d01", "ACCEPTED")
    for file in Path(tables.uri_of(world.root, JOURNAL)).glob("*.parquet"):
        file.unlink()
    with pytest.raises(TableStoreError, match="action_journal"):
        engine(world)


def test_the_journal_keeps_a_short_log_and_no_change_data(world: EngineWorld) -> None:
    properties = world.table(JOURNAL).metadata().configuration
    assert properties["delta.enableChangeDataFeed"] == "false"
    assert properties["delta.deletedFileRetentionDuration"] == "interval 1 hours"


def large_fleet(world: EngineWorld) -> ActionJob:
    job = engine(world)
    for number in range(DEVICES):
        world.online(f"d{number:02}", "1.0")
    job.turn()
    job.close()
    assert len(world.rows("device_state")) == DEVICES
    store = DeltalakeStore(world.root, steady_s=lambda: world.now_us / SECOND)
    return ActionJob(store, world.log, pace=Pace(device_state_s=0), clock_us=lambda: world.now_us)


def test_reports_of_a_large_fleet_about_themselves_do_not_rewrite_all_of_them(world: EngineWorld) -> None:
    job, before = large_fleet(world), version(world, "device_state")
    world.online("d01", "2.0")
    job.turn()
    job.turn()
    assert version(world, "device_state") == before
    assert world.versions()["d01"] == "1.0"
    fresh = {row["device_id"]: row["version"] for row in FleetDesk(world.root).device_states()}
    assert (fresh["d01"], len(fresh)) == ("2.0", DEVICES)
    state = Inventory(world.root).device("d01")["state"]
    assert state["version"] == "2.0"
    world.passes(DEVICES)
    job.turn()
    assert world.versions()["d01"] == "2.0"


def test_a_report_of_a_device_survives_a_kill_before_the_merge(world: EngineWorld) -> None:
    job = large_fleet(world)
    world.online("d01", "2.0")
    job.turn()
    job.turn()
    engine(world)
    assert (world.versions()["d01"], world.rows(JOURNAL)) == ("2.0", [])


def slow(world: EngineWorld, patch: pytest.MonkeyPatch) -> ActionJob:
    """An engine with a large action that sends a command a minute, and has sent the first one."""
    patch.setattr(journal_, "_ROWS_PER_S", 0.01)
    world.action("a2", rate_per_minute=1)
    job = engine(world)
    job.turn()
    job._store.settle(now=True)
    return job


def test_places_in_the_log_are_durable_with_the_next_commit(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn of a large action makes one commit, not one before and one after the publish."""
    job = slow(world, monkeypatch)
    before = version(world, JOURNAL)
    for number in (1, 2):
        world.passes(125)
        job.turn()
        assert version(world, JOURNAL) == before + number, "the last place, and what is owed now"
    world.passes(0.1)
    job.turn()
    assert version(world, JOURNAL) == before + 3, "the place alone, a turn later"
    world.passes(0.1)
    job.turn()
    assert version(world, JOURNAL) == before + 3


def test_a_place_that_a_kill_took_is_asked_for_again_under_the_same_key(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = slow(world, monkeypatch)
    world.passes(125)
    job.turn()
    sent = world.log.keys[-1]
    assert sent is not None
    assert sent.startswith("a2/")
    engine(world).turn()
    assert world.log.keys[-1] == sent
    assert world.log.keys.count(sent) == 2
