"""A shell for the blocks of a page: one bash and one folder, in which the commands are those of this checkout.

The broker of a page listens on ports of its own: addresses in the text are replaced, and `mosquitto_pub` and
`mosquitto_sub` are told the port. Everything else runs as it stands. Output is compared with the `text` blocks behind
the commands.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from pipelines.spark.java import SHORT_RUN_JVM
from support.doc_blocks import ROOT, Block, read
from support.ports import free_port
from support.programs import clean_environment, headwaterd, program

WAIT_S = 300.0
"""Bound of every wait: a JVM that starts on a busy machine takes minutes."""
_END = "@@end"


class DocShell:
    """Runs blocks in turn; leaving it ends everything that they started."""

    def __init__(self, folder: Path, *, more: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.ports = {1883: free_port(), 8883: free_port(), 8815: free_port(), 8080: free_port()}
        self._more = dict(more or {})
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._shown: list[str] = []

    def __enter__(self) -> DocShell:
        self._bash = subprocess.Popen(
            ["bash", "-euo", "pipefail"],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
        # If this process is killed, the pipe to the guard closes, and the guard ends everything.
        self._guard = subprocess.Popen(
            ["sh", "-c", f"read -r _; kill -s KILL -- -{self._bash.pid}"], stdin=subprocess.PIPE, start_new_session=True
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._end(signal.SIGTERM)
            if kind is None:
                self._until(None)
        finally:
            self._end(signal.SIGKILL)
            self._bash.wait(WAIT_S)
            self._guard.kill()
            self._guard.wait(WAIT_S)

    def _end(self, how: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, how)

    def here(self, text: str) -> str:
        """The text of a block with the addresses of this run."""
        for usual, port in self.ports.items():
            text = re.sub(rf"\b(127\.0\.0\.1|localhost):{usual}\b", f"127.0.0.1:{port}", text)
            text = re.sub(rf"(--port \w+)={usual}\b", rf"\1={port}", text)
        for usual, own in self._more.items():
            text = text.replace(usual, own)
        return text

    def run(self, block: Block) -> str:
        """What the block printed; AssertionError when it fails or prints something else than the page shows."""
        begin = len(self._shown)
        assert self._bash.stdin is not None
        self._bash.stdin.write(f"{self.here(block.text)}\nprintf '\\n{_END}\\n'\n")
        self._bash.stdin.flush()
        where = f"{block.page}:{block.line}"
        self._until(re.compile(f"^{_END}$"), where, begin)
        if block.wait is not None:
            self._until(re.compile(block.wait), where, begin)
        shown = [line for line in self._shown[begin:] if line not in ("", _END)]
        if block.expected is not None:
            compare(self.here(block.expected), shown, where)
        return "\n".join(shown)

    def _until(self, wanted: re.Pattern[str] | None, where: str = "", begin: int = 0) -> None:
        """Reads on until a line from `begin` on matches; None: until all processes have ended."""
        deadline = time.monotonic() + WAIT_S
        seen = begin
        while True:
            for line in self._shown[seen:]:
                if wanted is not None and wanted.search(line):
                    return
            seen = len(self._shown)
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.001))
            except queue.Empty:
                raise AssertionError(f"{where}: no {wanted} in {WAIT_S} s:\n{self._said()}") from None
            if line is None:
                assert wanted is None, f"{where}: a command failed:\n{self._said()}"
                return
            self._shown.append(line)

    def _said(self) -> str:
        return "\n".join(self._shown[-60:])

    def _read(self) -> None:
        assert self._bash.stdout is not None
        for line in self._bash.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _environment(self) -> dict[str, str]:
        """Programs of this checkout by the names that the pages use, in front of all others."""
        own = self.folder / ".venv" / "bin"
        own.mkdir(parents=True)
        module, function = tomllib.loads(read("pyproject.toml"))["project"]["scripts"]["headwater"].split(":")
        code = f"import sys; from {module} import {function}; sys.exit({function}())"
        _script(own / "headwater", f'exec "{sys.executable}" -c "{code}" "$@"')
        _script(own / "python", f'exec "{sys.executable}" "$@"')
        (own / "headwaterd").symlink_to(Path(headwaterd()).resolve())
        for client in ("mosquitto_pub", "mosquitto_sub"):
            _script(own / client, f'exec {program(client, "mosquitto-clients")} -p {self.ports[1883]} "$@"')
        mqtt, flight, admin = (f"127.0.0.1:{self.ports[port]}" for port in (1883, 8815, 8080))
        return clean_environment(
            {
                "PATH": f"{own}:{os.environ.get('PATH', '')}",
                "PYTHONUNBUFFERED": "1",
                # Jobs that run for seconds: what the optimising compiler costs, they never earn back.
                "JAVA_TOOL_OPTIONS": SHORT_RUN_JVM,
                "HEADWATER_JARS": os.environ.get("HEADWATER_JARS", str(ROOT / ".cache/jars")),
                "HEADWATER_LISTENERS__MQTT__BIND": mqtt,
                "HEADWATER_LISTENERS__FLIGHT__BIND": flight,
                "HEADWATER_LISTENERS__ADMIN__BIND": admin,
                "HEADWATER_MQTT": mqtt,
                "HEADWATER_SERVER": f"grpc://{flight}",
                "HEADWATER_ADMIN": f"http://{admin}",
            }
        )


def compare(expected: str, shown: list[str], where: str) -> None:
    """Every line of `expected` is in `shown`, in this order; `…` stands for any text."""
    left = iter(shown)
    for line in expected.splitlines():
        pattern = re.compile(".*".join(re.escape(part) for part in line.rstrip().split("…")) + r"\s*")
        assert any(pattern.fullmatch(given) for given in left), (
            f"{where}: the page shows {line!r}, which is not in\n" + "\n".join(shown)
        )


def _script(path: Path, command: str) -> None:
    path.write_text(f"#!/bin/sh\n{command}\n", encoding="utf-8")
    path.chmod(0o755)
