"""Processor time of this process and what it has started, as the benchmarks of Spark count it: without the brokers.

Spark's workers come and go, and what one has used goes with it, so all of them are looked at several times a second and
counted at their last look.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Container
from pathlib import Path
from types import TracebackType

LOOK_SECONDS = 0.3
_TICKS = os.sysconf("SC_CLK_TCK")
# A process, apart from a later one with its number: pid and start.
_Process = tuple[int, int]


class CpuMeter:
    """`with CpuMeter(without=brokers) as meter: …; meter.seconds()`. Processes in `without`, and what is below them, do
    not count."""

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
        """Used since the beginning."""
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
    """Seconds of one process that lives."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:13]) / _TICKS
