"""`headwater jobs run` as a process of a test: start, read line by line, interrupt with Ctrl-C, restart."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from support.programs import COMMAND, python_path, take_interrupts

WAIT_S = 300.0
"""Limit of every wait: starting a JVM on a busy machine takes minutes."""
_LOOK_S = 0.5
"""Rarely, because each check takes processor time from the jobs."""


class JobsProcess:
    """At most one running process; each start writes to its own files."""

    def __init__(self, folder: Path, config: Path) -> None:
        self._folder, self._config = folder, config
        self._process: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def __enter__(self) -> JobsProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(WAIT_S)

    def start(self, *names: str) -> None:
        """Starts the jobs without waiting for them."""
        self._starts += 1
        with self._file("out").open("wb") as out, self._file("err").open("wb") as err:
            self._process = subprocess.Popen(
                [*COMMAND, "jobs", "run", *names, "--json", "--config", str(self._config)],
                cwd=self._folder,
                env=os.environ | {"PYTHONPATH": python_path()},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                # The process group that Ctrl-C reaches on a terminal: driver, JVM and their children.
                start_new_session=True,
                preexec_fn=take_interrupts,
            )

    def interrupt(self) -> int:
        """Sends Ctrl-C; returns the exit code."""
        assert self._process is not None, "the jobs are not running"
        os.killpg(self._process.pid, signal.SIGINT)
        return self.wait()

    def terminate(self) -> int:
        """Sends SIGTERM to the driver alone, as a service manager may; returns the exit code."""
        assert self._process is not None, "the jobs are not running"
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Waits for the end; returns the exit code."""
        assert self._process is not None, "the jobs are not running"
        code = self._process.wait(WAIT_S)
        self._process = None
        return code

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits while the jobs run. Fails with their last output if they end first or the time is over."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert self._process is not None, "the jobs are not running"
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no {what}; the last output of the jobs:\n{self.last_words()}")
            time.sleep(_LOOK_S)

    def lines(self) -> list[dict[str, Any]]:
        """The output of this start so far."""
        whole = self._file("out").read_text().rpartition("\n")[0]
        return [json.loads(line) for line in whole.splitlines()]

    def alerts(self) -> list[dict[str, Any]]:
        return [line["alert"] for line in self.lines() if "alert" in line]

    def talk(self) -> str:
        """The standard error of this start."""
        return self._file("err").read_text(errors="replace")

    def last_words(self) -> str:
        shown = [json.dumps(line) for line in self.lines()[-10:]]
        return "\n".join([*shown, self.talk()[-3_000:]])

    def _file(self, kind: str) -> Path:
        return self._folder / f"jobs.{self._starts}.{kind}"
