"""An older release, which has no journal, goes on after an engine that was killed: what it writes is not replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.engine_world import EngineWorld
from support.journal_world import JOURNAL, KilledError, engine, large_world, tell

from actions import journal as journal_
from actions import table_writer
from actions.journal import Journal
from actions.table_writer import TableWriter


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EngineWorld:
    return large_world(tmp_path, monkeypatch)


def of_older_release(patch: pytest.MonkeyPatch) -> None:
    """Engines neither claim the journal nor read it, and write every change into its table."""
    patch.setattr(table_writer, "WRITTEN", tuple(name for name in table_writer.WRITTEN if name != JOURNAL))
    patch.setattr(table_writer, "_MARKED", tuple(name for name in table_writer._MARKED if name != JOURNAL))
    patch.setattr(journal_, "LARGE", 1_000_000)
    patch.setattr(Journal, "recover", lambda journal: None)


def killed_with_a_journal(world: EngineWorld) -> None:
    """d01 and d02 have accepted, and only the journal says so."""
    job = engine(world)
    job.turn()
    job._store.settle(now=True)
    tell(world, job, "d01", "ACCEPTED")
    tell(world, job, "d02", "ACCEPTED")
    assert len(world.rows(JOURNAL)) == 4
    assert world.states() == {"QUEUED"}


def stored(world: EngineWorld) -> list[str]:
    rows = sorted(world.rows("action_targets"), key=lambda row: row["device_id"])
    return [row["state"] for row in rows[1:3]]


def test_the_journal_replaces_nothing_that_an_older_release_has_written(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_with_a_journal(world)
    with monkeypatch.context() as patch:
        of_older_release(patch)
        tell(world, engine(world), "d01", "SUCCEEDED")
    assert stored(world) == ["SUCCEEDED", "ACCEPTED"], "it has read the earlier reports again"
    engine(world).turn()
    assert (stored(world), world.rows(JOURNAL)) == (["SUCCEEDED", "ACCEPTED"], [])


def test_what_an_older_release_had_not_read_yet_is_read_again(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_with_a_journal(world)
    with monkeypatch.context() as patch:
        of_older_release(patch)
        engine(world)
    engine(world)
    # Whatever the journal had settled: also the engine after this one reads it.
    engine(world).turn()
    engine(world).close()
    assert stored(world) == ["ACCEPTED", "ACCEPTED"]


@pytest.mark.parametrize("name", ["action_targets", JOURNAL, "action_state"])
def test_a_start_that_is_killed_changes_neither(world: EngineWorld, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    killed_with_a_journal(world)
    with monkeypatch.context() as patch:
        of_older_release(patch)
        tell(world, engine(world), "d01", "SUCCEEDED")
    with monkeypatch.context() as patch:
        killed_claim(patch, name)
        with pytest.raises(KilledError):
            engine(world)
    engine(world).turn()
    assert (stored(world), world.rows(JOURNAL)) == (["SUCCEEDED", "ACCEPTED"], [])


@pytest.mark.parametrize("name", ["action_targets", JOURNAL, "action_state"])
def test_control_a_start_of_this_release_that_is_killed_loses_no_change(
    world: EngineWorld, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    killed_with_a_journal(world)
    with monkeypatch.context() as patch:
        killed_claim(patch, name)
        with pytest.raises(KilledError):
            engine(world)
    world.table("action_events").delete()
    engine(world).close()
    assert (stored(world), world.rows(JOURNAL)) == (["ACCEPTED", "ACCEPTED"], [])


def killed_claim(patch: pytest.MonkeyPatch, last: str) -> None:
    """An engine is killed after it has claimed this table."""
    real = TableWriter._claimed

    def killed(writer: TableWriter, name: str, *rest: object) -> bool:
        done = real(writer, name, *rest)  # type: ignore[arg-type]
        if name == last:
            raise KilledError
        return done

    patch.setattr(TableWriter, "_claimed", killed)
