"""Mistakes that a fault build makes on request, and the findings that must reveal them: these test the checker."""

from __future__ import annotations

from dataclasses import dataclass

from broker_edge.torture.report import Finding


@dataclass(frozen=True, slots=True)
class Sabotage:
    """`fault` reveals it; at least one of `words` must be among the findings."""

    about: str
    fault: str
    words: frozenset[Finding]


SABOTAGES: dict[str, Sabotage] = {
    "no-sync": Sabotage("syncs return and do nothing", "power", frozenset({Finding.LOST})),
    "ack-before-sync": Sabotage("publishes are acknowledged when queued", "kill", frozenset({Finding.LOST})),
    "checksum-ignored": Sabotage(
        "bytes that do not match their checksum are served", "bits", frozenset({Finding.CHANGED})
    ),
    "torn-tail-kept": Sabotage("recovery accepts an incomplete batch", "tears", frozenset({Finding.HOLE})),
    "offset-reused": Sabotage(
        "recovery forgets the last batch and reuses its offsets with the same epoch",
        "kill",
        frozenset({Finding.LOST, Finding.CHANGED}),
    ),
}
