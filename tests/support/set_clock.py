"""A clock that a test sets, for an engine in another process: both read how far it is ahead from one file.

    python -m support.set_clock FILE [--without readers|withdrawals] …

runs the actions job (with the options that follow) by that clock. `--without` leaves a protection out: the control of a
test.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pipelines.actions
from actions.job import ActionJob

SECOND = 1_000_000


class SetClock:
    """The clock of the test."""

    def __init__(self, path: Path) -> None:
        self._path, self._wall_us, self._steady_us = path, 0, 0
        self._write()

    def now_us(self) -> int:
        return time.time_ns() // 1_000 + self._wall_us

    def pass_s(self, seconds: int) -> None:
        """Time passes, on every clock."""
        self._wall_us += seconds * SECOND
        self._steady_us += seconds * SECOND
        self._write()

    def set_by_s(self, seconds: int) -> None:
        """Somebody sets the clock, and no time passes."""
        self._wall_us += seconds * SECOND
        self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps([self._wall_us, self._steady_us]))
        os.replace(new, self._path)


class ReadClock:
    """The same clock in another process."""

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, threading.local()

    def now_us(self) -> int:
        wall_us, self._read.steady_us = json.loads(self._path.read_text())
        return time.time_ns() // 1_000 + int(wall_us)

    def steady_us(self) -> int:
        """The time that the job asks for right after `now_us`: by the same state of the file, so that both fit."""
        return time.monotonic_ns() // 1_000 + int(self._read.steady_us)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m support.set_clock", add_help=False)
    parser.add_argument("file", type=Path)
    parser.add_argument("--without", choices=("readers", "withdrawals"))
    options, rest = parser.parse_known_args(arguments)
    clock = ReadClock(options.file)

    class Job(ActionJob):
        def __init__(self, *given: Any, **named: Any) -> None:
            if options.without == "readers":
                named["readers"] = None
            super().__init__(*given, **named, clock_us=clock.now_us, steady_us=clock.steady_us)

    pipelines.actions.ActionJob = Job  # type: ignore[misc]
    if options.without == "withdrawals":
        # The name `tick` in the package is its function, so the module is looked up.
        for name in ("tick", "moves"):
            sys.modules[f"actions.engine.{name}"].unwanted = lambda target: iter(())  # type: ignore[attr-defined]
    return pipelines.actions.main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
