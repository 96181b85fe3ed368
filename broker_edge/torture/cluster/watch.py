"""Asks every node, several times a second, whether it leads and how far readers may read.

Two nodes that lead in one epoch are `two leaders`. A high watermark that goes back in an answer of an epoch that is not
older is `lost`: a reader has been told of records that are not there. Each node has threads of its own, so that one
that is paused holds up none of the others.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from broker_edge.torture.cluster.nodes import NODES, Nodes
from broker_edge.torture.reader import Bounds, LogReader
from broker_edge.torture.report import Finding, Report

_EVERY_S = 0.1
_ASK_S = 0.7
_READ_S = 2.0
FRESH_S = 1.0


class Leaderships:
    """Who said that it leads, by epoch."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._by_epoch: dict[int, dict[str, str]] = {}

    def add(self, epoch: int, node: str, why: str) -> None:
        with self._lock:
            known = self._by_epoch.setdefault(epoch, {})
            if node in known:
                return
            known[node] = why
            if len(known) > 1:
                text = "; ".join(f"{name} {reason}" for name, reason in known.items())
                self._report.add(Finding.TWO_LEADERS, f"epoch {epoch}: {text}")

    @property
    def epochs(self) -> int:
        with self._lock:
            return len(self._by_epoch)


class HighWatermarks:
    """What readers were told, by partition: the highest, and in which epoch."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._lock = threading.Lock()
        self._told: dict[str, tuple[int, int, str]] = {}

    def before(self) -> dict[str, tuple[int, int, str]]:
        """What was told before a question that is asked next."""
        with self._lock:
            return dict(self._told)

    def add(self, before: Mapping[str, tuple[int, int, str]], bounds: Mapping[str, Bounds], node: str) -> None:
        """The answer of a node to a question that was asked after `before`."""
        with self._lock:
            for name, one in bounds.items():
                was = before.get(name)
                if was is not None and one.epoch >= was[1] and one.high_watermark < was[0]:
                    text = f"{name}: {was[2]} told readers of {was[0]} records in epoch {was[1]}"
                    now = f"{node} tells of {one.high_watermark} in epoch {one.epoch}"
                    self._report.add(Finding.LOST, f"{text}, and {now}")
                    # Told once.
                    self._told[name] = (one.high_watermark, one.epoch, node)
                    continue
                best = self._told.get(name, (-1, -1, node))
                self._told[name] = max(best, (one.high_watermark, one.epoch, node))


class Watch:
    """Runs from `with` to its end. `report` gets what it finds."""

    def __init__(self, nodes: Nodes, report: Report) -> None:
        self._nodes = nodes
        self.leaderships = Leaderships(report)
        self.high_watermarks = HighWatermarks(report)
        self._newest: dict[str, tuple[float, Mapping[str, Any]]] = {}
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=run, args=(name,), daemon=True) for name in NODES for run in (self._ask, self._read)
        ]

    def __enter__(self) -> Watch:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(10)

    def reports(self) -> dict[str, Mapping[str, Any]]:
        """What nodes have said of themselves within the last second."""
        now = time.monotonic()
        return {name: report for name, (at, report) in dict(self._newest).items() if now - at < FRESH_S}

    def leader(self) -> str | None:
        """The node that says that it leads; of several, in the highest epoch."""
        leading = [one for one in self.reports().values() if one["role"] == "leader"]
        return str(max(leading, key=lambda one: int(one["epoch"]))["node"]) if leading else None

    def in_sync(self) -> set[str]:
        """The in-sync set as the leader knows it; empty if nobody leads."""
        leader = self.leader()
        report = None if leader is None else self.reports().get(leader)
        return set() if report is None else set(report["in_sync"])

    def is_whole(self) -> bool:
        """Whether somebody leads and all nodes answer, are in sync, sound and follow it."""
        reports = self.reports()
        if self.in_sync() != set(NODES) or set(reports) != set(NODES):
            return False
        roles = sorted(one["role"] for one in reports.values())
        is_sound = all(one["trust"] == "sound" for one in reports.values())
        return is_sound and roles == ["follower", "follower", "leader"]

    def describe(self) -> str:
        """One line with what every node says."""
        reports = self.reports()
        lines = []
        for name in NODES:
            one = reports.get(name)
            if one is None:
                lines.append(f"{name} {'is down' if self._nodes.is_down(name) else 'is silent'}")
                continue
            told = f"{one['role']} of epoch {one['epoch']}, {one['trust']}"
            lines.append(f"{name} is {told}, in sync as it knows: {'+'.join(one['in_sync']) or 'nobody'}")
        return "; ".join(lines)

    def _ask(self, name: str) -> None:
        while not self._is_over.wait(_EVERY_S):
            try:
                with urllib.request.urlopen(f"{self._nodes.admin(name)}/api/v1/cluster", timeout=_ASK_S) as answer:
                    report = json.loads(answer.read())
            except (OSError, ValueError):
                continue
            self._newest[name] = (time.monotonic(), report)
            if report["role"] == "leader":
                self.leaderships.add(int(report["epoch"]), name, "said that it leads")

    def _read(self, name: str) -> None:
        while not self._is_over.is_set():
            try:
                with LogReader(self._nodes.flight(name), timeout_s=_READ_S) as reader:
                    while not self._is_over.wait(_EVERY_S):
                        before = self.high_watermarks.before()
                        self.high_watermarks.add(before, reader.bounds(), name)
            except (pa.ArrowException, flight.FlightError):
                self._is_over.wait(_EVERY_S)
