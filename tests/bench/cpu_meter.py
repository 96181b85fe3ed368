"""Processor time of this process and what it has started, as the benchmarks of Spark count it: without the brokers."""

from __future__ import annotations

import os
from collections.abc import Container
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(*, without: Container[int] = ()) -> dict[str, float]:
    """Seconds by name of program: of this process and its descendants that live, with the children they have buried.
    Processes in `without`, and what is below them, do not count.
    """
    children: dict[int, list[int]] = {}
    used: dict[int, tuple[str, int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        fields = tail.split()
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        used[int(entry.name)] = (head.partition("(")[2], sum(int(field) for field in fields[11:15]))
    wanted, total = [os.getpid()], dict[str, float]()
    while wanted:
        pid = wanted.pop()
        name, ticks = used.get(pid, ("gone", 0))
        total[name] = total.get(name, 0.0) + ticks / _TICKS
        wanted += [child for child in children.get(pid, []) if child not in without]
    return total


def cpu_of(pid: int) -> float:
    """Seconds of one process that lives."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:13]) / _TICKS
