"""Programs that tests run to the end or in the background: `headwater`, `headwaterd`, and system tools."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from broker_edge.torture.process import BrokerProcess, binary

RUN_S = 240.0

# Starts a broker: `(name of its folder, settings)`, both optional.
StartBroker = Callable[..., BrokerProcess]

COMMAND = (sys.executable, "-c", "import sys; from headwater_cli import main; sys.exit(main())")
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Ended:
    """The result of a program."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def documents(self) -> list[dict[str, Any]]:
        """Each line of the output as JSON."""
        return [json.loads(line) for line in self.lines]


def program(name: str, package: str) -> str:
    """The path of a program. If it is missing, the test fails and says how to install it."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        pytest.fail(f"{name} is missing: install it (Debian: apt-get install {package})", pytrace=False)
    return found


def headwaterd() -> str:
    """The broker under test. If it is not built, the test fails and says so."""
    if not os.access(binary(), os.X_OK):
        pytest.fail(f"{binary()} is missing: run `make build`, or set HEADWATERD", pytrace=False)
    return str(binary())


def run(*command: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> Ended:
    """Runs a program to its end."""
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
        env=clean_environment(environment),
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def headwater(*arguments: str, stdin: str = "", environment: Mapping[str, str] | None = None) -> Ended:
    """Runs the `headwater` command to its end."""
    return run(*COMMAND, *arguments, stdin=stdin, environment=environment)


def start_headwater(*arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts the `headwater` command; the caller ends it."""
    return subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=clean_environment(environment),
        preexec_fn=take_interrupts,
    )


def take_interrupts() -> None:
    """A test run in the background of a script ignores SIGINT, and its children would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def clean_environment(more: Mapping[str, str] | None) -> dict[str, str]:
    """The environment without settings of headwater, and with this checkout's packages first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWATER")}
    return {**kept, "PYTHONPATH": python_path(), **(more or {})}


def python_path() -> str:
    """This checkout's packages first."""
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
