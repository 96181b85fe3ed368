"""The findings of a checker, in the usual terms of storage testing, with counts and a few examples each."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

EXAMPLES = 8  # Examples of each kind in a report.


class Finding(enum.StrEnum):
    """The kinds of findings; `docs/torture.md` defines them."""

    LOST = "lost"
    DUPLICATED = "duplicated"
    REORDERED = "reordered"
    UNEXPECTED = "unexpected"
    CHANGED = "changed"
    HOLE = "hole"
    EPOCH = "epoch"
    EARLY = "early"
    UNDETECTED = "undetected"
    STUCK = "stuck"
    PROTOCOL = "protocol"
    DIVERGED = "diverged"
    TWO_LEADERS = "two leaders"
    UNAVAILABLE = "unavailable"


OF_CLUSTERS = frozenset({Finding.DIVERGED, Finding.TWO_LEADERS, Finding.UNAVAILABLE})


_COUNTS = ("sent", "acked", "readable", "restarts", "faults", "qos2_acked", "qos2_completed", "resent", "recycled")


@dataclass(slots=True)
class Report:
    """Counts by finding, with a few examples each."""

    seed: int
    sent: int = 0
    acked: int = 0
    readable: int = 0
    restarts: int = 0
    faults: int = 0  # Injected into a cluster.
    qos2_acked: int = 0
    qos2_completed: int = 0
    resent: int = 0
    recycled: int = 0  # Segments that were made from removed ones.
    counts: Counter[Finding] = field(default_factory=Counter)
    examples: dict[Finding, list[str]] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # Seconds until a cluster served again, by fault.
    points: set[str] = field(default_factory=set)  # Named points at which the process was ended.

    def add(self, finding: Finding, text: str, *, count: int = 1) -> None:
        self.counts[finding] += count
        examples = self.examples.setdefault(finding, [])
        if len(examples) < EXAMPLES:
            examples.append(text)

    def merge(self, other: Report) -> None:
        """Adds the findings of another checker."""
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for finding, texts in other.examples.items():
            for text in texts:
                self.add(finding, text, count=0)
        self.counts += other.counts
        self.violations += other.violations
        self.waits += other.waits
        self.points |= other.points

    def to_json(self) -> dict[str, Any]:
        counts = {finding.value: self.counts[finding] for finding in Finding}
        counts[Finding.PROTOCOL] += len(self.violations)
        return {
            "sent": self.sent,
            "acknowledged": self.acked,
            "acknowledged_qos2": self.qos2_acked,
            "sent_again": self.resent,
            "readable": self.readable,
            "restarts": self.restarts,
            "recycled_segments": self.recycled,
            "findings": counts,
            **({"cluster_faults": self.faults, "served_after_s": self._waits()} if self.faults else {}),
            **({"points": sorted(self.points)} if self.points else {}),
        }

    def _waits(self) -> dict[str, float]:
        """Median, 99th percentile and maximum."""
        ordered = sorted(self.waits)
        if not ordered:
            return {}
        named = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        return {
            name: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2) for name, share in named.items()
        }

    def findings(self) -> list[str]:
        """One line per example."""
        found = [f"{finding}: {text}" for finding, texts in self.examples.items() for text in texts]
        return found + [f"{Finding.PROTOCOL}: {text}" for text in self.violations[:EXAMPLES]]

    @property
    def clean(self) -> bool:
        return not self.counts.total() and not self.violations

    def __str__(self) -> str:
        counts = ", ".join(f"{finding} {self.counts[finding]}" for finding in Finding)
        done = f"{self.restarts} restarts, sent {self.sent}, acked {self.acked}, readable {self.readable}"
        return f"seed {self.seed}: {done}: {counts}"

    def details(self) -> str:
        return "\n".join([str(self), *(f"  {line}" for line in self.findings())])
