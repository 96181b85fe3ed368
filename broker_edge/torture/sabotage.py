"""The mistakes that a fault build makes on request, and in which word each must be found: what proves the checker."""

from __future__ import annotations

from dataclasses import dataclass

from broker_edge.torture.report import Fault


@dataclass(frozen=True, slots=True)
class Sabotage:
    """`hurt` brings it to light; at least one of `words` must be said of it."""

    about: str
    hurt: str
    words: frozenset[Fault]


SABOTAGES: dict[str, Sabotage] = {
    "no-sync": Sabotage("syncs return and do nothing", "power", frozenset({Fault.LOST})),
    "ack-before-sync": Sabotage("publishes are acknowledged when queued", "kill", frozenset({Fault.LOST})),
    "checksum-ignored": Sabotage(
        "bytes that do not match their checksum are served", "bits", frozenset({Fault.CHANGED})
    ),
    "torn-tail-kept": Sabotage("recovery accepts a batch that is half there", "tears", frozenset({Fault.HOLE})),
    "offset-reused": Sabotage(
        "recovery forgets the last batch and gives its offsets again, with the same epoch",
        "kill",
        frozenset({Fault.LOST, Fault.CHANGED}),
    ),
}
