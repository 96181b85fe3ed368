"""The examples of a docs page in order, so that tests can run what readers copy."""

from __future__ import annotations

import re
from pathlib import Path

_DOCS = Path(__file__).resolve().parents[2] / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def snippets(page: str, language: str) -> list[str]:
    """The examples in one language from `docs/<page>`; AssertionError if there is none."""
    found = [text for given, text in _BLOCK.findall((_DOCS / page).read_text(encoding="utf-8")) if given == language]
    assert found, f"docs/{page} has no example in {language}"
    return found
