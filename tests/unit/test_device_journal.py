"""A device's journal: bounded, and on disk either new or unchanged."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from broker_edge.device.journal import Entry, Journal


def test_entries_survive_a_restart_with_what_was_told(tmp_path: Path) -> None:
    path = tmp_path / "journal.json"
    first = Journal(path)
    first.put(Entry("a1", 1, "SUCCEEDED", result={"x": [1]}, told=True))
    first.put(Entry("a2", 1, "IN_PROGRESS"))
    again = Journal(path)
    assert again.get("a1", 1) == Entry("a1", 1, "SUCCEEDED", result={"x": [1]}, told=True)
    assert [entry.action_id for entry in again.untold()] == ["a2"]
    assert again.get("a1", 2) is None


def test_oldest_entries_are_forgotten_first() -> None:
    journal = Journal(entries_max=2)
    for number in range(3):
        journal.put(Entry(f"a{number}", 1, "SUCCEEDED"))
    assert [journal.get(f"a{number}", 1) is None for number in range(3)] == [True, False, False]


def test_kill_while_writing_leaves_the_old_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal.json"
    journal = Journal(path)
    journal.put(Entry("a1", 1, "SUCCEEDED"))

    def die(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("broker_edge.device.journal.json.dump", die)
    with pytest.raises(KeyboardInterrupt):
        journal.put(Entry("a2", 1, "SUCCEEDED"))
    assert Journal(path).get("a1", 1) == Entry("a1", 1, "SUCCEEDED")


def test_what_could_not_be_written_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker delivers a command again that has not been acknowledged, and it must not pass for one that runs."""
    path = tmp_path / "journal.json"
    journal = Journal(path, entries_max=2)
    before = [Entry("a1", 1, "SUCCEEDED"), Entry("a2", 1, "ACCEPTED")]
    for entry in before:
        journal.put(entry)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("broker_edge.device.journal.write_json", full)
        for entry in (Entry("a3", 1, "ACCEPTED"), Entry("a2", 1, "SUCCEEDED")):
            with pytest.raises(OSError, match="No space left"):
                journal.put(entry)
    assert list(journal.untold()) == before
    journal.put(Entry("a3", 1, "ACCEPTED"))
    assert list(Journal(path).untold()) == [before[1], Entry("a3", 1, "ACCEPTED")]
