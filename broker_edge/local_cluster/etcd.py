"""etcd with one member as a process: for development and tests, because its data has one copy only."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from broker_edge.errors import ConfigError, StartError

_READY_S = 60.0
_ASK_S = 1.0
_STOP_S = 30.0
_BETWEEN_S = 0.05
_LAST_LINES = 10


def etcd_program() -> str:
    """The path of etcd. Raises ConfigError if it is not installed."""
    found = shutil.which("etcd")
    if found is None:
        raise ConfigError("etcd is missing: install it (Debian and Ubuntu: apt-get install etcd-server)")
    return found


class EtcdProcess:
    """At most one process on a data folder, at the same ports of 127.0.0.1 after each start."""

    def __init__(self, *, data_dir: Path, log_file: Path, client_port: int, peer_port: int) -> None:
        self._data_dir, self._log_file = data_dir, log_file
        self._client, self._peer = f"http://127.0.0.1:{client_port}", f"http://127.0.0.1:{peer_port}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> EtcdProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """`http://host:port` for clients."""
        return self._client

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, *, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Starts it and returns when it answers, or when `is_stopped` says so. Raises ConfigError and StartError."""
        command = [
            etcd_program(),
            "--name=local",
            f"--data-dir={self._data_dir}",
            f"--listen-client-urls={self._client}",
            f"--advertise-client-urls={self._client}",
            f"--listen-peer-urls={self._peer}",
            f"--initial-advertise-peer-urls={self._peer}",
            f"--initial-cluster=local={self._peer}",
            "--log-level=warn",
        ]
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is meant for the parent process.
            )
        deadline = time.monotonic() + _READY_S
        while not self._answers() and not is_stopped():
            if self._process.poll() is not None or time.monotonic() >= deadline:
                self.kill()
                raise StartError(
                    f"etcd does not start at {self._client}; the end of {self._log_file}:\n{self._words()}"
                )
            time.sleep(_BETWEEN_S)

    def send_signal(self, how: signal.Signals) -> None:
        """Sends a signal without waiting."""
        if self._process is not None:
            self._process.send_signal(how)

    def stop(self) -> None:
        """Sends SIGTERM and waits. Does nothing if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Sends SIGKILL and waits. Does nothing if it does not run."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._client}/health", timeout=_ASK_S) as answer:
                return b"true" in answer.read(1024)
        except (OSError, urllib.error.URLError):
            return False

    def _words(self) -> str:
        text = self._log_file.read_text(errors="replace") if self._log_file.exists() else ""
        return "\n".join(text.splitlines()[-_LAST_LINES:])
