"""The tutorial and the how-to guides as a reader copies them, with the output that they show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.doc_blocks import ROOT, blocks
from support.doc_shell import DocShell, compare

from broker_edge.torture.waiting import wait_until

JOBS = "headwater jobs run"
PAGES = (
    "docs/tutorial.md",
    "docs/howto/back-up.md",
    "docs/howto/install.md",
    "docs/howto/replace-a-box.md",
    "docs/howto/roll-out-firmware.md",
    "docs/howto/secure.md",
    "docs/howto/sign-firmware.md",
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


def test_nothing_of_a_page_outlives_a_run_that_was_killed(tmp_path: Path) -> None:
    """As a time limit does it, which leaves no moment to clean up."""
    code = """
import os, pathlib, signal, sys
from support.doc_blocks import Block
from support.doc_shell import DocShell
shell = DocShell(pathlib.Path(sys.argv[1])).__enter__()
print(shell.run(Block("page", 1, "sh", "sleep 1000 & echo $!")), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = os.pathsep.join(str(ROOT / folder) for folder in ("", "tests"))
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    sleeper = int(killed.stdout)
    wait_until(lambda: not _is_running(sleeper), seconds=60, what="the process to end")


def _is_running(pid: int) -> bool:
    """A zombie that nobody has waited for has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
