"""The waves that docs/actions.md shows are waves that the engine takes."""

from __future__ import annotations

from pathlib import Path

from support.doc_blocks import blocks
from support.doc_snippets import snippets

from actions.engine.waves import parsed
from actions.fleet_desk import FleetDesk
from actions.rollout_file import read_rollout


def test_the_waves_of_the_page_are_waves() -> None:
    (text,) = snippets("actions.md", "json")
    waves = parsed(text)
    assert [wave.percentage for wave in waves] == [1, 10, 100]
    assert waves[0].approve


def test_the_rollout_file_of_docs_actions_md_is_an_action_that_the_engine_accepts(tmp_path: Path) -> None:
    (block,) = blocks("docs/actions.md", "yaml")
    path = tmp_path / "rollout.yaml"
    path.write_text(block.text)
    rollout = read_rollout(path)
    assert rollout.order.timeout_queued_s == 7 * 86_400
    desk = FleetDesk(tmp_path / "tables", by="ann", create=True)
    assert desk.order(rollout.order, action_id=rollout.action_id) == "pump-110"
