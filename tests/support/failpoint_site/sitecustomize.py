"""Stops or kills the telemetry job at a named point of its code. Python runs this at the start of each process of the
job, driver and workers, because `support.failpoints` puts its folder on their path; nothing else does.

Nothing happens at a point until the file `armed` contains `<point> <action>`. The first process that reaches the point
then renames the file to `hit` and acts:
    kill-job     SIGKILL to the whole session: driver, JVM, workers
    kill-worker  SIGKILL to this process
    hold         waits until `hit` is removed
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = Path(os.environ["FAILPOINT_FOLDER"])
HOLD_SECONDS_MAX = 300.0


def reached(point: str) -> None:
    armed, hit = FOLDER / "armed", FOLDER / "hit"
    try:
        wanted, action = armed.read_text().split()
        if wanted != point:
            return
        armed.rename(hit)
    except (FileNotFoundError, ValueError):
        return
    if action == "hold":
        deadline = time.monotonic() + HOLD_SECONDS_MAX
        while hit.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        return
    if action == "kill-job":
        # Workers have their own process group; the job's session is that of its first process.
        os.killpg(os.getsid(0), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def before(point: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            reached(point)
            return function(*arguments, **named)

        return wrapped

    return wrap


def after(point: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            result = function(*arguments, **named)
            reached(point)
            return result

        return wrapped

    return wrap


def between(point: str) -> Callable[[Callable[..., Iterator[Any]]], Callable[..., Iterator[Any]]]:
    """After each value of a generator."""

    def wrap(function: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
        def wrapped(*arguments: Any, **named: Any) -> Iterator[Any]:
            for value in function(*arguments, **named):
                yield value
                reached(point)

        return wrapped

    return wrap


POINTS = {
    # The next batch is chosen, but Spark does not know it yet.
    "sources.stream": [
        ("StreamReader", "latestOffset", after("planning")),
        # The batch is in the checkpoint's offsets, but no task has been created.
        ("StreamReader", "partitions", before("offsets")),
    ],
    # A task has some of its records, but not all.
    "sources.log_server": [("LogServer", "get", between("reading"))],
    # The batch is in the table, but Spark does not know it yet.
    "sinks.bronze_commit": [("BronzeCommits", "commit", after("committed"))],
}


class _Finder(importlib.abc.MetaPathFinder):
    """Wraps the functions of a module once it has been executed."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in POINTS:
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for owner, function, wrap in POINTS[name]:
                holder = getattr(module, owner)
                setattr(holder, function, wrap(getattr(holder, function)))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _Finder())
