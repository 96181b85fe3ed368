"""`headwater demo` in the background: what it says, line by line, and how it is ended."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time

from pipelines.spark.jars import default_folder
from support.programs import COMMAND, clean_environment

START_S = 480.0
"""Spark starts in about 10 s on an idle machine, and in minutes on a busy one."""
END_S = 480.0
COMMAND_S = 240.0
DEMO = (*COMMAND, "demo")


def environment() -> dict[str, str]:
    return clean_environment({"HEADWATER_JARS": str(default_folder())})


class RunningDemo:
    """The demo in its own process group, so that a signal reaches the whole group, like Ctrl-C."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*DEMO, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        self.said: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, text: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not any(text in line for line in self.said):
            line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            assert line is not None, "\n".join(self.said[-30:])
            self.said.append(line)

    def signal_group(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def end(self, seconds: float) -> tuple[int, str]:
        assert self.process.stdout is not None
        code = self.process.wait(seconds)
        return code, self.process.stdout.read()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.signal_group(signal.SIGKILL)
            self.process.wait(COMMAND_S)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._lines.put(line.rstrip())
        self._lines.put(None)
