"""Files that are written beside others: a link in the place of a draft leads to no other file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from broker_edge.device.files import write_json
from broker_edge.draft import open_draft
from headwater_cli._export import _opened
from headwater_cli.signing import _replace
from sinks.folder import TableFolder


def _device(path: Path) -> None:
    write_json(path, {"a": "é"})


def _signed(path: Path) -> None:
    _replace(path, b"new")


def _exported(path: Path) -> None:
    with _opened(path) as file:
        file.write("new")


def _table(path: Path) -> None:
    TableFolder.of(str(path.parent)).replace(path.name, b"new")


@pytest.mark.parametrize(
    ("write", "draft"),
    [(_device, "f.new"), (_signed, "f.json.new"), (_exported, "f.json.part"), (_table, "f.new")],
)
def test_a_link_in_the_place_of_a_draft_is_not_followed(
    tmp_path: Path, write: Callable[[Path], None], draft: str
) -> None:
    other = tmp_path / "other"
    other.write_text("of somebody else")
    place = tmp_path / "place"
    place.mkdir()
    (place / draft).symlink_to(other)
    write(place / "f.json")
    assert other.read_text() == "of somebody else"
    assert not (place / "f.json").is_symlink()
    assert (place / "f.json").stat().st_size > 0
    assert sorted(one.name for one in place.iterdir()) == ["f.json"]


def test_a_draft_that_an_earlier_attempt_left_is_begun_anew(tmp_path: Path) -> None:
    draft = tmp_path / "f.new"
    draft.write_text("much longer than the new one")
    with open_draft(draft, text=True) as file:
        file.write("é\n")
    assert draft.read_bytes() == "é\n".encode()
