"""What a query remembers of offsets that it has looked at: ranges without a record that it wants."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scan:
    """No record of a partition between `next` and `scanned` matches, as long as its epoch is unchanged."""

    next: int
    scanned: int
    epoch: int


Scans = dict[tuple[str, int], Scan]
"""Ranges that were scanned without a match, by log and partition, so that a narrow filter does not scan them again in
each batch."""
