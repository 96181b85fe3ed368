"""`pipelines.telemetry` as a process that a test starts, kills with SIGKILL and restarts on one checkpoint and one
table."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

REPOSITORY = Path(__file__).resolve().parents[2]
JOB_SECONDS = 480.0
"""Limit of every wait: starting a JVM on a busy machine takes minutes."""

TOO_SLOW = "Python worker failed to connect back"
"""Spark gives the process of a Python source 10 s to start, and no setting changes that. A supervisor of a job restarts
it, and so does this class."""
STARTS_MAX = 5


class TelemetryJob:
    """A folder with table and checkpoint, and at most one running process."""

    def __init__(
        self,
        folder: Path,
        *,
        server: str,
        arguments: list[str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.table = folder / "bronze"
        self.checkpoint = folder / "checkpoint"
        self.server = server
        self._arguments = arguments or []
        self._environment = os.environ | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._given: tuple[str, ...] = ()
        self._log_start = 0
        self._starts = 0
        self._log = folder / "job.txt"

    def __enter__(self) -> TelemetryJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self, *arguments: str) -> None:
        """Starts the job without waiting for it."""
        assert not self.is_running, "the job is already running"
        self._given, self._starts = arguments, 0
        self._launch()

    def _launch(self) -> None:
        self._starts += 1
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pipelines.telemetry", "--server", self.server]
        command += ["--table-path", str(self.table), "--checkpoint", str(self.checkpoint)]
        path = os.pathsep.join([str(REPOSITORY), *filter(None, [self._environment.get("PYTHONPATH")])])
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *self._arguments, *self._given],
                cwd=self.folder,
                env=self._environment | {"PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Its own process group, so that driver and JVM are killed together.
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Kills driver and JVM at once with SIGKILL. Does nothing if no job is running."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=120)

    def terminate(self) -> int:
        """Sends SIGTERM to the driver; returns the exit code."""
        assert self._process is not None, "the job is not running"
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Waits for the end; returns the exit code."""
        while True:
            process = self._process
            assert process is not None, "the job is not running"
            code = process.wait(timeout=JOB_SECONDS)
            if not self._started_again():
                self._process = None
                return code

    def until(self, condition: Callable[[], bool], what: str, *, may_end: bool = False) -> None:
        """Waits while the job runs. Fails with its last output if the job ends first (unless it may) or the time is
        over."""
        deadline = time.monotonic() + JOB_SECONDS
        while not condition():
            assert self._process is not None, "the job is not running"
            if not self.is_running and self._started_again():
                continue
            if may_end and not self.is_running:
                return
            if not self.is_running or time.monotonic() > deadline:
                raise AssertionError(f"no {what}; the job's last output:\n{self.last_words()}")
            time.sleep(0.01)

    def _started_again(self) -> bool:
        """Whether the job ended because the machine was too slow, and was restarted."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            said = log.read().decode(errors="replace")
        if TOO_SLOW not in said or self._starts >= STARTS_MAX:
            return False
        self._launch()
        return True

    def newest(self, kind: str) -> int:
        """The newest batch in `offsets` (planned) or `commits` (finished) of the checkpoint; -1 if there is none."""
        folder = self.checkpoint / kind
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-3_000:] if self._log.exists() else ""
