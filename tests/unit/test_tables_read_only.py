"""Tables that this user may not write: reading works, and what would write says so in one sentence."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from actions.fleet_desk import FleetDesk, Order
from broker_edge.errors import TableStoreError
from sinks import probe, tables

MAIN = "import sys; from headwater_cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    desk = FleetDesk(tmp_path / "tables", by="ann", create=True)
    desk.describe_devices({"d1": {}})
    desk.order(Order("echo", device_ids=["d1"]), action_id="a1")
    for folder, _, files in os.walk(tmp_path / "tables", topdown=False):
        for one in (*(Path(folder) / file for file in files), Path(folder)):
            one.chmod(one.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    return tmp_path / "tables"


def run(*words: str) -> tuple[int, str, str]:
    """The command in a process without root's right to write anything."""
    without: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root without setpriv may write everything")
        without = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"]
    done = subprocess.run([*without, sys.executable, "-c", MAIN, *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "table"),
    [
        (("actions", "create", "echo", "--device", "d1"), "actions"),
        (("actions", "pause", "a1"), "action_requests"),
        (("devices", "set", "d1", "--label", "site=roof"), "devices"),
        (("devices", "select", "save", "roofs", "--label", "site=roof"), "selectors"),
        (("artifacts", "withdraw", "fw", "1"), "artifacts"),
        (("jobs", "run", "actions", "--available-now", "--config", "jobs.yaml"), "action_targets"),
    ],
)
def test_what_would_write_is_refused_in_one_sentence(
    root: Path, words: tuple[str, ...], table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.yaml").write_text(f"actions: {{root: {root}}}\njobs: {{retries: 0}}\n")
    where = () if words[0] == "jobs" else ("--root", str(root))
    code, out, err = run(*words, *where)
    assert code in (1, 5)
    assert words[0] == "jobs" or out == ""
    assert f"nothing was written: {root / table}: this user has no right to write there" in err
    assert "panicked" not in err


def test_reading_needs_no_right_to_write(root: Path) -> None:
    code, out, err = run("devices", "list", "--root", str(root))
    assert (code, out.splitlines()[1].split("\t")[0]) == (0, "d1"), err


def test_a_file_system_that_is_mounted_read_only_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Mounted:
        f_flag = os.ST_RDONLY

    monkeypatch.setattr(probe.os, "access", lambda path, mode: False)
    monkeypatch.setattr(probe.os, "statvfs", lambda path: Mounted())
    with pytest.raises(TableStoreError, match="actions: its file system is mounted read-only"):
        probe.require_writable(tables.uri_of(root, "actions"))
