"""The waves that docs/actions.md shows are waves that the engine takes."""

from __future__ import annotations

from support.doc_snippets import snippets

from actions.engine.waves import parsed


def test_the_waves_of_the_page_are_waves() -> None:
    (text,) = snippets("actions.md", "json")
    waves = parsed(text)
    assert [wave.percentage for wave in waves] == [1, 10, 100]
    assert waves[0].approve
