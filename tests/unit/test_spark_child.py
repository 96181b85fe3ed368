"""`pipelines.spark.child`: a program is awaited with all that it starts, and none of it is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.following import until

from pipelines.spark import child

# Starts a program that goes on when it has ended itself.
PARENT = """
import subprocess, sys
print("  early  \\n", flush=True)
subprocess.Popen([sys.executable, *sys.argv[1:]])
raise SystemExit(3)
"""
# Speaks when its parent has ended.
LATE = """
import os, sys
parent = os.getppid()
while os.getppid() == parent and os.path.exists(f"/proc/{parent}/exe"):
    os.sched_yield()
print("late")
"""
# Never ends.
ENDLESS = """
import os, signal, sys
open(sys.argv[1], "w").write(str(os.getpid()))
signal.pause()
"""


def test_the_output_ends_when_all_that_hold_it_have_ended(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, "-c", LATE]
    code, lines = child.run(command, cwd=tmp_path, env=os.environ, seconds_max=60)
    assert (code, lines) == (3, ["early", "late"])


def test_what_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, "-c", ENDLESS, str(tmp_path / "id")]
    with pytest.raises(subprocess.TimeoutExpired):
        child.run(command, cwd=tmp_path, env=os.environ, seconds_max=2)
    process = Path("/proc") / (tmp_path / "id").read_text()
    # Its place in the table goes when the system has collected it.
    until("the program has ended", lambda: True if has_ended(process) else None)


def has_ended(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except OSError:
        return True
