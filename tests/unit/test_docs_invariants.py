"""docs/invariants.md: every invariant of ARCHITECTURE.md has tests, and every test that the page names exists."""

from __future__ import annotations

import re

from support.doc_blocks import ROOT, read

_ROW = re.compile(r"^\| (I\d+) \| (.+?) \| (.+?) \| (.*?) ?\|$", re.MULTILINE)
_NAME = re.compile(r"`([a-z0-9_]+)`")


def test_every_invariant_has_tests_that_exist() -> None:
    declared = re.findall(r"^- \*\*(I\d+)\*\* ", read("ARCHITECTURE.md"), re.MULTILINE)
    rows = {row[1]: row for row in _ROW.finditer(read("docs/invariants.md"))}
    assert list(rows) == declared
    known = _tests_of_the_repository()
    for number, row in rows.items():
        assert len(_NAME.findall(row[3])) >= 2, f"{number} has hardly a test"
        for name in _NAME.findall(row[3] + row[4]):
            assert name in known, f"docs/invariants.md: {number} names `{name}`, and there is no such test"


def _tests_of_the_repository() -> set[str]:
    """The names of all tests, of Rust and Python."""
    rust = (path.read_text(encoding="utf-8") for path in (ROOT / "broker_edge/core").glob("*/[st]*/**/*.rs"))
    python = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*/test_*.py"))
    names = re.compile(r"^\s*(?:fn|def) ([a-z0-9_]+)\(", re.MULTILINE)
    return {name for text in (*rust, *python) for name in names.findall(text)}
