"""The mistakes that a fault build makes on request, and in which word each must be found: what proves the checker."""

from __future__ import annotations

from dataclasses import dataclass

from broker_edge.torture.report import Finding


@dataclass(frozen=True, slots=True)
class Sabotage:
    """`fault` brings it to light; at least one of `words` must be among the findings."""

    about: str
    fault: str
    words: frozenset[Finding]


SABOTAGES: dict[str, Sabotage] = {
    "no-sync": Sabotage("syncs return and do nothing", "power", frozenset({Finding.LOST})),
    "ack-before-sync": Sabotage("publishes are acknowledged when queued", "kill", frozenset({Finding.LOST})),
    "checksum-ignored": Sabotage(
        "bytes that do not match their checksum are served", "bits", frozenset({Finding.CHANGED})
    ),
    "torn-tail-kept": Sabotage("recovery accepts a batch that is half there", "tears", frozenset({Finding.HOLE})),
    "offset-reused": Sabotage(
        "recovery forgets the last batch and gives its offsets again, with the same epoch",
        "kill",
        frozenset({Finding.LOST, Finding.CHANGED}),
    ),
}
