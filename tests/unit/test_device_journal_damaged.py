"""A journal that cannot be read is one sentence, and never an empty journal: the device would repeat commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker_edge.device import Journal
from broker_edge.device.flash import FileFlash, Firmware
from broker_edge.errors import ConfigError


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "{}",
        "[1]",
        '[{"x": 1}]',
        '[{"action_id": ["a"], "attempt": 1, "state": "X"}]',
        "[" * 100_000,
        '[{"action_id": "a", "attempt": 1, "state": []}]',
        '[{"action_id": "a", "attempt": "1", "state": "X"}]',
    ],
    ids=lambda text: text[:20],
)
def test_a_damaged_journal_is_an_error_and_not_a_fresh_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "journal.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"journal\.json is damaged"):
        Journal(path)
    assert path.read_text() == text


def test_a_journal_that_is_no_file_is_no_fresh_start_either(tmp_path: Path) -> None:
    folder, loop = tmp_path / "folder", tmp_path / "loop"
    folder.mkdir()
    loop.symlink_to(loop)
    for path in (folder, loop):
        with pytest.raises(ConfigError, match=f"{path.name} is damaged"):
            Journal(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"good": {}}', "\udcff", "[" * 100_000, '{"x": 1}'])
@pytest.mark.parametrize("name", ["boot.json", "job.json"])
def test_damage_of_the_flash_names_the_file_and_what_to_do(tmp_path: Path, name: str, text: str) -> None:
    flash = FileFlash(tmp_path, firmware=Firmware("fw", "1"))
    (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=rf"{name} is damaged .*: (put the file of a backup there|remove it)"):
        flash.boot() if name == "boot.json" else flash.job()
