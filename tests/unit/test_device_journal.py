"""A device's journal: bounded, and on disk either new or unchanged."""

from __future__ import annotations

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
