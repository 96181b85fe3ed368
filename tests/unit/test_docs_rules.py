"""What holds for every page of the documentation: links lead somewhere, lines wrap, and no command goes untested."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.doc_blocks import COMMANDS, ROOT, RUN_BY, blocks, pages, read

LINE_MAX = 120
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^( *)```.*?^\1```$|`[^`]*`", re.DOTALL | re.MULTILINE)
_PROGRAM = re.compile(r"^(sudo |\$ )?(headwater|headwaterd|make|pip|curl|systemctl|mosquitto_\w+) ", re.MULTILINE)


def anchors(page: str) -> set[str]:
    """The anchors of the headings of a page, as GitHub makes them."""
    found = re.findall(r"^#+ (.+)$", _CODE.sub(lambda m: m[0] if "\n" not in m[0] else "", read(page)), re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in found)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", pages())
def test_links_of_a_page_lead_to_files_and_headings(page: str) -> None:
    here = (ROOT / page).parent
    for link in _LINK.findall(_CODE.sub("", read(page))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (here / file).resolve() if file else ROOT / page
        assert target.exists(), f"{page} links to {link}, which does not exist"
        if anchor:
            of = str(target.relative_to(ROOT))
            assert anchor in anchors(of), f"{page} links to {link}, but {of} has no such heading"


@pytest.mark.parametrize("page", [page for page in pages() if page != "docs/conformance.md"])
def test_lines_wrap(page: str) -> None:
    """Rows of tables are lines of their own, and so is a word or address without a space."""
    for number, line in enumerate(read(page).splitlines(), 1):
        if len(line) > LINE_MAX and not line.lstrip().startswith("|"):
            assert " " not in line.strip(), f"{page}:{number} has {len(line)} columns: wrap at {LINE_MAX}"


@pytest.mark.parametrize("page", pages())
def test_every_command_is_run_or_says_why_not(page: str) -> None:
    for block in blocks(page):
        where = f"{page}:{block.line}"
        if block.language in COMMANDS:
            assert block.reason or page in RUN_BY, f"{where}: write `<!-- not run: REASON -->` before it, or run it"
        else:
            assert not _PROGRAM.search(block.text), f"{where} has commands: call the block `sh`"


def test_the_tests_that_run_pages_name_them() -> None:
    for page, test in RUN_BY.items():
        assert (ROOT / page).exists(), page
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not name {page}"
        assert any(block.reason is None for block in blocks(page, *COMMANDS)), f"{page} has nothing to run"


def test_every_page_is_reached_from_the_index() -> None:
    index = {
        (ROOT / "docs" / link.partition("#")[0]).resolve()
        for link in _LINK.findall(_CODE.sub("", read("docs/index.md")))
    }
    found = [page for page in pages() if page.startswith("docs/") and not page.startswith("docs/adr/")]
    missing = [page for page in found if (ROOT / page) not in index]
    assert missing == ["docs/index.md"], "docs/index.md does not link to these pages"


def test_a_missing_heading_and_an_unmarked_command_would_be_found() -> None:
    assert "no-such-heading" not in anchors("README.md")
    assert {"two-commands", "a-device-connects"} <= anchors("README.md")
    assert _PROGRAM.search("headwater broker\n")
