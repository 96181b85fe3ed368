"""`headwaterd` as a process that is started, killed and restarted on the same data folder.

Of the broker it only knows the three addresses on its ready line, and the admin HTTP.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import selectors
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

Address = tuple[str, int]

READY_S = 60.0
_READY = re.compile(r"^ready mqtt=(\S+) flight=(\S+) admin=(\S+)")
_ANY_PORT = {f"listeners.{name}.bind": "127.0.0.1:0" for name in ("mqtt", "flight", "admin")}


class BrokerError(Exception):
    """The broker did not start; the message contains its output."""


def binary() -> Path:
    """The program under test: HEADWATERD, otherwise the one that `make build` creates in a checkout, otherwise one on
    the PATH."""
    named = os.environ.get("HEADWATERD")
    if named:
        return Path(named)
    target = Path(__file__).resolve().parents[1] / "core" / "target"
    built = [target / profile / "headwaterd" for profile in ("quick", "release", "debug")]
    there = next((path for path in built if path.exists()), None)
    found = shutil.which("headwaterd")
    return there or (Path(found) if found else built[0])


def faults_binary(program: Path) -> Path:
    """The fault build beside a program."""
    return program.with_name("headwaterd-faults")


class BrokerProcess:
    """One data folder with settings, and at most one running process on it."""

    def __init__(
        self,
        *,
        data_dir: Path,
        settings: Mapping[str, str] | None = None,
        log_file: Path,
        program: Path | None = None,
        command: Sequence[str] | None = None,
        environment: Mapping[str, str] | None = None,
        files_max: int | None = None,
    ) -> None:
        """`program` is `binary()` by default, `command` that program alone, and `environment` that of this process;
        `files_max` limits the file descriptors of the process."""
        self.data_dir = data_dir
        # Faults of the next start, in the notation of HEADWATER_FAULTS; only a fault build uses them.
        self.faults = ""
        self._program = program
        self._command = None if command is None else list(command)
        self._environment = environment
        self._files_max = files_max
        self._settings = {"data_dir": str(data_dir), **_ANY_PORT, **(settings or {})}
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._addresses: tuple[Address, Address, Address] | None = None
        self._others: dict[str, Address] = {}

    def __enter__(self) -> BrokerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def mqtt(self) -> Address:
        return self._ready()[0]

    @property
    def flight(self) -> Address:
        return self._ready()[1]

    @property
    def admin(self) -> Address:
        return self._ready()[2]

    def listener(self, name: str) -> Address:
        """The address of an optional listener: `mqtts`, `ws` or `wss`."""
        return self._others[name]

    @property
    def log_file(self) -> Path:
        """The file with its log output."""
        return self._log_file

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended by itself."""
        return self._process is not None and self._process.poll() is None

    @property
    def has_ended(self) -> bool:
        """Whether it was started and has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def spawn(self) -> None:
        """Starts the process without waiting for it."""
        assert self._process is None, "the broker is already running"
        command = list(self._command or [str(self._program or binary())])
        for key, value in self._settings.items():
            command += ["--set", f"{key}={value}"]
        given = os.environ if self._environment is None else self._environment
        # The tests' own variables must not become settings of the broker.
        environment = {k: v for k, v in given.items() if not k.startswith("HEADWATER")}
        if self.faults:
            environment["HEADWATER_FAULTS"] = self.faults
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # Ctrl-C is meant for the parent process.
            )
        # An intended crash needs no core file.
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(self._process.pid, resource.RLIMIT_CORE, (0, 0))
            if self._files_max is not None:
                resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (self._files_max, self._files_max))

    def start(self) -> None:
        """Starts the process and returns once it serves; raises BrokerError with its last output if it does not."""
        self.spawn()
        self.wait_ready()

    def wait_ready(self) -> None:
        line = self._first_line()
        match = _READY.match(line)
        if match is None:
            self.kill()
            raise BrokerError(
                f"headwaterd printed {line!r} instead of its ready line; its log ends:\n{self.last_words()}"
            )
        mqtt, flight, admin = (_address(text) for text in match.groups())
        self._addresses = (mqtt, flight, admin)
        words = (word.partition("=") for word in line[match.end() :].split())
        self._others = {name: _address(text) for name, _, text in words}

    def kill(self) -> None:
        """Sends SIGKILL and waits until the process is gone. Does nothing if none is running."""
        self._end(signal.SIGKILL)

    def stop(self, *, seconds: float = 60.0) -> int:
        """Sends SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM, seconds=seconds)

    def readyz(self) -> tuple[int, str]:
        """Status and body of GET /readyz."""
        return self.get("/readyz")

    def get(self, path: str) -> tuple[int, str]:
        host, port = self.admin
        try:
            with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()

    def send_signal(self, how: signal.Signals) -> None:
        """Sends a signal without waiting."""
        if self._process is not None:
            self._process.send_signal(how)

    def wait_end(self, *, seconds: float) -> int | None:
        """Waits for the process to end by itself; returns its exit code, or None if it keeps running."""
        assert self._process is not None, "the broker is not running"
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def last_words(self) -> str:
        text = self._log_file.read_text(errors="replace") if self._log_file.exists() else ""
        return "\n".join(text.splitlines()[-20:])

    def _ready(self) -> tuple[Address, Address, Address]:
        assert self._addresses is not None, "the broker is not ready"
        return self._addresses

    def _first_line(self) -> str:
        assert self._process is not None
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + READY_S
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return f"{line.decode(errors='replace')} (nothing more in {READY_S} s)"
                piece = os.read(stdout.fileno(), 4096)
                if not piece:
                    return f"{line.decode(errors='replace')} (end of output, exit code {self._process.wait(5)})"
                line += piece
        return line.decode(errors="replace").splitlines()[0]

    def _end(self, how: signal.Signals, *, seconds: float = 60.0) -> int:
        process, self._process, self._addresses = self._process, None, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(seconds)
            raise
        finally:
            if process.stdout is not None:
                process.stdout.close()


def _address(text: str) -> Address:
    host, _, port = text.rpartition(":")
    return host.rpartition("/")[2].strip("[]"), int(port)
