"""Processor time of this process and its children, for the Spark benchmarks: brokers are excluded.

Spark's workers come and go, and their counters disappear with them. All processes are therefore sampled several times a
second, and each counts with its last sample.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container
from pathlib import Path
from types import TracebackType

LOOK_SECONDS = 0.3
_TICKS = os.sysconf("SC_CLK_TCK")
# Identifies a process even if its number is reused: pid and start time.
_Process = tuple[int, int]


class CpuMeter:
    """`with CpuMeter(without=brokers) as meter: …; meter.seconds()`. Processes in `without` and their children do not
    count."""

    def __init__(self, *, without: Container[int] = ()) -> None:
        self._without = without
        self._begun: dict[_Process, float] = {}
        self._latest: dict[_Process, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cpu-meter", daemon=True)

    def __enter__(self) -> CpuMeter:
        self._begun = self._look()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    def seconds(self) -> float:
        """Seconds used since the beginning."""
        self._latest |= self._look()
        return sum(used - self._begun.get(process, 0.0) for process, used in self._latest.items())

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            self._latest |= self._look()

    def _look(self) -> dict[_Process, float]:
        children: dict[int, list[int]] = {}
        found: dict[int, tuple[_Process, float]] = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            pid = int(entry.name)
            children.setdefault(int(fields[1]), []).append(pid)
            found[pid] = (pid, int(fields[19])), sum(int(field) for field in fields[11:13]) / _TICKS
        wanted, used = [os.getpid()], dict[_Process, float]()
        while wanted:
            pid = wanted.pop()
            if pid in found:
                process, seconds = found[pid]
                used[process] = seconds
            wanted += [child for child in children.get(pid, []) if child not in self._without]
        return used


def cpu_of(pid: int) -> float:
    """Seconds used by one running process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:13]) / _TICKS
