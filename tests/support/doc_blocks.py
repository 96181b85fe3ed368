"""The pages of the documentation and their blocks of code, so that tests can run what readers copy.

A block of `sh`, `python`, `sql` or `yaml` is a command: a test runs it, or a comment before it says why none does. The
comments are `<!-- not run: REASON -->` and, for a command that goes on in the background, `<!-- wait: TEXT -->`: the
regular expression that its output must match before the next block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = frozenset({"sh", "python", "sql", "yaml"})
RUN_BY = {
    "README.md": "tests/spark/test_docs_readme.py",
    "docs/spark.md": "tests/spark/test_docs_snippets.py",
    "deploy/spark/standalone.md": "tests/support/spark_cluster.py",
    "docs/actions.md": "tests/unit/test_docs_actions.py",
    "docs/tables.md": "tests/unit/test_docs_tables.py",
    **dict.fromkeys(
        (
            "docs/tutorial.md",
            "docs/howto/back-up.md",
            "docs/howto/install.md",
            "docs/howto/replace-a-box.md",
            "docs/howto/roll-out-firmware.md",
            "docs/howto/secure.md",
            "docs/howto/sign-firmware.md",
            "docs/howto/size-the-disk.md",
        ),
        "tests/integration/test_docs_pages.py",
    ),
}
"""Which test runs the blocks of a page. It must name the page."""

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_NOTE = re.compile(r"<!-- (not run|wait): ([^>]+) -->\s*\Z")


@dataclass(frozen=True, slots=True)
class Block:
    """`expected` is the block of `text` behind it, which shows its output; `…` stands for any text in a line."""

    page: str
    line: int
    language: str
    text: str
    reason: str | None = None
    wait: str | None = None
    expected: str | None = None


def pages() -> list[str]:
    """Every page of the documentation, relative to the root of the repository."""
    top = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
    below = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))
    examples = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "deploy").rglob("*.md"))
    return [page for page in top if (ROOT / page).exists()] + below + examples


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, *languages: str) -> list[Block]:
    """The blocks of a page in their order, of all languages unless some are named."""
    return [block for block in _blocks(page) if not languages or block.language in languages]


def _blocks(page: str) -> Iterator[Block]:
    text = read(page)
    found = list(_FENCE.finditer(text))
    for index, match in enumerate(found):
        note = _NOTE.search(text, 0, match.start())
        notes = {note[1]: note[2]} if note is not None else {}
        behind = found[index + 1] if index + 1 < len(found) else None
        yield Block(
            page,
            text.count("\n", 0, match.start()) + 1,
            match[2],
            match[3],
            reason=notes.get("not run"),
            wait=notes.get("wait"),
            expected=behind[3] if behind is not None and behind[2] == "text" else None,
        )
