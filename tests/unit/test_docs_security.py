"""Every test that docs/security.md names as the proof of a limit or a threat exists under exactly that name."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAMED = re.compile(r"`((?:test_)?[a-z0-9]+(?:_[a-z0-9]+){3,})`")


def _named(page: str) -> list[str]:
    """The names in the last cells of the page's tables."""
    rows = [line.rstrip().rstrip("|") for line in page.splitlines() if line.startswith("| ")]
    return [name for row in rows for name in _NAMED.findall(row.rpartition("|")[2])]


def _defined() -> set[str]:
    """Functions of tests in Python and Rust."""
    found: set[str] = set()
    for folder, pattern, function in (("tests", "*.py", r"def (test_\w+)"), ("broker_edge/core", "*.rs", r"fn (\w+)")):
        for path in (ROOT / folder).rglob(pattern):
            if "target" not in path.parts:
                found.update(re.findall(function, path.read_text("utf-8")))
    return found


def _missing(page: str) -> list[str]:
    defined = _defined()
    return [name for name in _named(page) if name not in defined]


def test_every_test_that_the_security_page_names_exists() -> None:
    page = (ROOT / "docs/security.md").read_text("utf-8")
    assert len(_named(page)) >= 20
    assert _missing(page) == []


def test_control_a_name_without_a_test_is_noticed() -> None:
    page = "| who | what | `test_every_test_that_the_security_page_names_exists`, `test_that_was_never_ever_written` |"
    assert _missing(page) == ["test_that_was_never_ever_written"]
