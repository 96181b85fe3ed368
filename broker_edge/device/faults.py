"""Faults of simulated devices: which exist, their notation, and how they are assigned to devices.

`offline=5%,crash@install=2%` gives shares of the fleet; each device has at most one fault. The same fleet and seed
assign the same faults to the same devices, in any number of processes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from broker_edge.errors import RefusedError

STEPS = ("download", "verify", "wait", "install", "confirm")
FAULTS = {
    "offline": "never connects",
    "away": "disconnects as soon as it has connected, and returns some seconds later",
    "slow": "needs some time for each chunk",
    "interrupted": "is cut off twice during the download",
    "crash": "is cut off once before a step of an update: crash@install",
    "wrong-checksum": "finds its image damaged",
    "fails": "fails each command; new firmware does not work and is rolled back",
    "refuses": "rejects commands and updates",
    "stuck": "begins each command and then goes silent",
    "silent": "receives commands and never reports on them",
    "reflashed": "loses flash and counters once, before it verifies an image",
}

_ONE = re.compile(r"([a-z-]+)(?:@([a-z]+))?=(\d+(?:\.\d+)?)%")


@dataclass(frozen=True, slots=True)
class Fault:
    """`step` is set only for `crash`."""

    name: str
    step: str | None = None

    def __str__(self) -> str:
        return self.name if self.step is None else f"{self.name}@{self.step}"


@dataclass(frozen=True, slots=True)
class Share:
    fault: Fault
    percent: float


def parse(text: str) -> list[Share]:
    """Parses `NAME[@STEP]=PERCENT%`, separated by commas. Raises RefusedError with the reason."""
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = _ONE.fullmatch(word)
        if match is None:
            raise RefusedError(f"`{word}` is not a fault: write NAME=SHARE%, for example silent=2% or crash@install=1%")
        name, step, percent = match.groups()
        if name not in FAULTS:
            raise RefusedError(f"`{name}` is not a known fault: {', '.join(FAULTS)}")
        if (name == "crash") != (step is not None) or (step is not None and step not in STEPS):
            raise RefusedError(f"`{word}`: crash, and no other fault, names a step: crash@{'|'.join(STEPS)}")
        found.append(Share(Fault(name, step), float(percent)))
    if sum(share.percent for share in found) > 100:
        raise RefusedError("the shares of the faults add up to more than 100 %")
    return found


def assign(device_ids: Sequence[str], shares: Sequence[Share], *, seed: int = 0) -> dict[str, Fault]:
    """Assigns faults to a fleet: each fault gets its share of the devices, rounded to whole devices."""
    mixed = sorted(device_ids, key=lambda id_: hashlib.sha256(f"{seed}/{id_}".encode()).digest())
    found: dict[str, Fault] = {}
    at = 0
    percent = 0.0
    for share in shares:
        percent += share.percent
        end = round(len(mixed) * percent / 100)
        found.update(dict.fromkeys(mixed[at:end], share.fault))
        at = end
    return found
