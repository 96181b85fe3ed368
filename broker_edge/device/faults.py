"""Faults to order for simulated devices: which there are, how they are written, and which device has which.

`offline=5%,crash@install=2%`: shares of the fleet, each device has at most one. The same fleet and seed give the same
devices the same faults, in whatever processes they run.
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
    "away": "goes as soon as it has connected, and is back some seconds later",
    "slow": "takes some time over each chunk",
    "interrupted": "is cut off twice while it downloads",
    "crash": "is cut off before a step of an update, once: crash@install",
    "wrong-checksum": "finds its image damaged",
    "fails": "fails each command; new firmware does not work and is rolled back",
    "refuses": "rejects commands and updates",
    "stuck": "begins each command and is not heard of again",
    "silent": "takes commands and never says a word of them",
    "reflashed": "loses flash and counters before it verifies an image, once",
}

_ONE = re.compile(r"([a-z-]+)(?:@([a-z]+))?=(\d+(?:\.\d+)?)%")


@dataclass(frozen=True, slots=True)
class Fault:
    """`step` is there for `crash`."""

    name: str
    step: str | None = None

    def __str__(self) -> str:
        return self.name if self.step is None else f"{self.name}@{self.step}"


@dataclass(frozen=True, slots=True)
class Share:
    fault: Fault
    percent: float


def parse(text: str) -> list[Share]:
    """`NAME[@STEP]=PERCENT%`, separated by commas. Raises RefusedError in words."""
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = _ONE.fullmatch(word)
        if match is None:
            raise RefusedError(f"`{word}` is no fault: write NAME=SHARE%, for example silent=2% or crash@install=1%")
        name, step, percent = match.groups()
        if name not in FAULTS:
            raise RefusedError(f"`{name}` is no fault that is known: {', '.join(FAULTS)}")
        if (name == "crash") != (step is not None) or (step is not None and step not in STEPS):
            raise RefusedError(f"`{word}`: crash, and nothing else, names a step: crash@{'|'.join(STEPS)}")
        found.append(Share(Fault(name, step), float(percent)))
    if sum(share.percent for share in found) > 100:
        raise RefusedError("the shares of the faults are more than 100 % together")
    return found


def assign(device_ids: Sequence[str], shares: Sequence[Share], *, seed: int = 0) -> dict[str, Fault]:
    """The faults of a whole fleet: each gets its share of the devices, to the nearest device."""
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
