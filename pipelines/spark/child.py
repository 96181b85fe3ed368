"""A program that is run to its end, with all that it starts, and what it says."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


def run(command: Sequence[str], *, cwd: Path, env: Mapping[str, str], seconds_max: float) -> tuple[int, list[str]]:
    """The exit code and the lines on stdout and stderr, stripped and without the empty ones.

    It ends when all that hold its output open have ended, such as a JVM that goes on after its Python. Raises
    `subprocess.TimeoutExpired` after `seconds_max`; then, and when we are interrupted, all of it is killed.
    """
    # In a session of its own, so that an interrupt, which is for us, can end all of it: a JVM that is left alone would
    # go on writing into the folder.
    running = subprocess.Popen(
        command,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = running.communicate(timeout=seconds_max)
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
        raise
    return running.returncode, [line.strip() for line in said.splitlines() if line.strip()]
