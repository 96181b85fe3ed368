"""With local tables, what a power cut leaves of the engine's writes is what a kill could leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.engine_world import EngineWorld, PretendedLog

from actions import journal, table_writer
from actions.job import ActionJob
from actions.store import DeltalakeStore
from broker_edge import Place, Row


class Notes:
    """The steps of an engine, in order."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, is_synced: bool) -> None:
        self.done: list[str] = []
        self.world = EngineWorld(root)
        self.world.devices("d1")
        self._patch = monkeypatch
        monkeypatch.setattr(table_writer, "sync_file_system", self._noted("sync", table_writer.sync_file_system))
        monkeypatch.setattr(DeltalakeStore, "_put", self._noted("", DeltalakeStore._put))
        store = DeltalakeStore(root, synced=root if is_synced else None)
        self.job = ActionJob(store, NotedLog(self.done), clock_us=lambda: self.world.now_us)

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self.done.append(name or arguments[1])
            return call(*arguments)

        return run

    def turn(self) -> list[str]:
        self.done.clear()
        self.job.turn()
        return list(self.done)

    def mark(self, table: str, name: str) -> int:
        found = DeltaTable(str(self.world.root / table)).transaction_version(f"headwater-actions:{name}")
        return -1 if found is None else int(found)


class NotedLog(PretendedLog):
    def __init__(self, done: list[str]) -> None:
        super().__init__()
        self._done = done

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        self._done.append("publish")
        return super().publish(rows)


def test_targets_are_on_disk_before_the_state_of_their_action_and_before_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes(tmp_path, monkeypatch, is_synced=True)
    notes.world.action()
    done = notes.turn()
    assert done[: done.index("publish")] == ["action_targets", "sync", "action_state"]


def test_a_version_that_was_read_counts_as_settled_once_it_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes(tmp_path, monkeypatch, is_synced=True)
    notes.world.action("a1")
    notes.turn()
    assert notes.mark("action_state", "actions") == -1, "the version may still be lost"
    notes.world.action("a2")
    assert notes.turn()[0] == "sync"
    assert notes.mark("action_state", "actions") == 1, "the version of a1, but not that of a2"


def test_control_without_sync_a_version_counts_when_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = Notes(tmp_path, monkeypatch, is_synced=False)
    notes.world.action()
    assert "sync" not in notes.turn()
    assert notes.mark("action_state", "actions") == 1


@pytest.mark.parametrize("large", [0, 1_000], ids=["through the journal", "directly"])
def test_what_devices_said_is_on_disk_before_a_mark_says_that_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, large: int
) -> None:
    """A power cut may keep a later commit to another table and lose an earlier one."""
    notes = Notes(tmp_path, monkeypatch, is_synced=True)
    monkeypatch.setattr(journal, "LARGE", large)
    notes.world.action("a1")
    notes.turn()
    monkeypatch.setattr(table_writer.TableWriter, "_committed", notes._noted("", table_writer.TableWriter._committed))
    monkeypatch.setattr(journal, "_PART", 0)
    notes.world.status("d1", "ACCEPTED")
    done = notes.turn()
    assert "device_state" in done
    first = next(number for number, name in enumerate(done) if name in ("action_targets", "action_journal"))
    assert done.index("device_state") < first
    assert "sync" in done[done.index("device_state") : first]


@pytest.mark.parametrize("said", ["action_events", "quarantine"])
def test_what_the_engine_says_is_on_disk_before_the_rows_that_settle_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    """Else a power cut may leave an ending without its event, and nothing says it again."""
    notes = Notes(tmp_path, monkeypatch, is_synced=True)
    notes.world.action("a1", timeout_queued_s=60)
    notes.turn()
    monkeypatch.setattr(table_writer.TableWriter, "_committed", notes._noted("", table_writer.TableWriter._committed))
    if said == "quarantine":
        notes.world.status("d1", "EXPLODED")
        notes.world.status("d1", "ACCEPTED")
    else:
        notes.world.passes(100)
    done = notes.turn()
    assert done.index(said) < done.index("action_targets")
    assert "sync" in done[done.index(said) : done.index("action_targets")]
