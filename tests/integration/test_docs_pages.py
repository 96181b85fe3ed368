"""The tutorial and the how-to guides as a reader copies them, with the output that they show."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.doc_blocks import blocks
from support.doc_shell import DocShell, compare

JOBS = "headwater jobs run"
PAGES = (
    "docs/tutorial.md",
    "docs/howto/back-up.md",
    "docs/howto/install.md",
    "docs/howto/replace-a-box.md",
    "docs/howto/roll-out-firmware.md",
    "docs/howto/secure.md",
    "docs/howto/size-the-disk.md",
)


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_the_page_work_as_they_stand(page: str, tmp_path: Path) -> None:
    """Folders of the system that a page names are folders of the test. From the block on that starts jobs with Spark,
    which takes minutes on a busy machine, only `make test-long` runs a page.
    """
    folders = {"/etc/headwater": tmp_path / "etc", "/var/lib/headwater": tmp_path / "lib"}
    for folder in folders.values():
        folder.mkdir()
    own = {usual: str(folder) for usual, folder in folders.items()} | {"0.0.0.0:8883": "127.0.0.1:0"}
    todo = [block for block in blocks(page, "sh") if block.reason is None]
    with DocShell(tmp_path, more=own) as shell:
        for block in todo:
            if JOBS in block.text and not os.environ.get("HEADWATER_LONG_DOCS"):
                break
            shell.run(block)


def test_output_that_differs_from_the_page_is_found() -> None:
    compare("a …\nc", ["a 1", "b", "c"], "here")
    with pytest.raises(AssertionError, match="the page shows 'c'"):
        compare("a …\nc", ["c", "a 1"], "here")
