"""A journal that cannot be read is one sentence, and never an empty journal: the device would repeat commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_edge.device import Journal
from broker_edge.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    ["", "null", "{}", "[1]", '[{"x": 1}]', '[{"action_id": ["a"], "attempt": 1, "state": "X"}]', "[" * 100_000],
    ids=lambda text: text[:20],
)
def test_a_damaged_journal_is_an_error_and_not_a_fresh_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"journal\.json is damaged"):
        Journal(path)
    assert path.read_text() == text
