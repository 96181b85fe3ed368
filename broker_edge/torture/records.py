"""The published records, which can be identified and rebuilt from a seed alone.

A payload names its (run, connection, sequence) and continues with bytes derived from the seed. A reader thus knows
which record it is and what every byte must be. Nothing here talks to a broker.
"""

from __future__ import annotations

import os
import random
import struct
import zlib
from dataclasses import dataclass, field

_HEADER = struct.Struct(">4sIHI")
_MAGIC = b"hwr1"
_POOL_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, order=True)
class RecordName:
    """Identifies a record: `sequence` counts the publishes of one connection within one run of the load."""

    run: int
    connection: int
    sequence: int

    def __str__(self) -> str:
        return f"run {self.run}, connection {self.connection}, sequence {self.sequence}"


@dataclass(frozen=True, slots=True)
class Publisher:
    """One connection of the load. Its records go to one topic, hence to one partition, in the order of `sequence`.

    A publisher that `resends` keeps its session and, after a crash, sends unacknowledged records again, as MQTT
    requires (4.4). At QoS 1 the log may then have a record more than once; at QoS 2 exactly once. Other publishers
    never resend.
    """

    connection: int
    protocol: int  # 4 is MQTT 3.1.1, 5 is MQTT 5
    topic: str
    client_id: str
    retains: bool = False
    qos: int = 1
    resends: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rebuilds every payload from the seed of a run."""

    seed: int
    large_every: int = 400  # One record in this many has tens of KiB.
    _pool: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_pool", random.Random(self.seed).randbytes(_POOL_BYTES))

    def payload(self, name: RecordName) -> bytes:
        header = _HEADER.pack(_MAGIC, name.run, name.connection, name.sequence)
        draw = zlib.crc32(header, self.seed & 0xFFFF_FFFF)
        start = draw % (_POOL_BYTES // 2)
        return header + self._pool[start : start + self._length(draw)]

    def retain(self, publisher: Publisher, sequence: int) -> bool:
        return publisher.retains and sequence % 16 == 3

    def _length(self, draw: int) -> int:
        spread = draw >> 8
        if spread % self.large_every == 0:
            return 16_384 + spread % 49_153
        return spread % 4_096 if spread % 16 == 0 else spread % 400


def name_of(payload: bytes) -> RecordName | None:
    """The record that a payload names; None if no load wrote it."""
    if len(payload) < _HEADER.size or not payload.startswith(_MAGIC):
        return None
    _, run, connection, sequence = _HEADER.unpack_from(payload)
    return RecordName(run, connection, sequence)


def publishers(count: int = 8, *, protocols: tuple[int, ...] = (5, 4), control: bool = True) -> tuple[Publisher, ...]:
    """Connections that mix protocol versions, partitions of two classes, and retained records."""
    return tuple(
        Publisher(
            connection=n,
            protocol=protocols[n % len(protocols)],
            topic=f"devices/fault-{n}/actions" if control and n % 4 == 3 else f"devices/fault-{n}/telemetry",
            client_id=f"fault-{n}",
            retains=n % 4 == 2,
        )
        for n in range(count)
    )


def resending_publishers(*, qos2: bool, first: int = 64) -> tuple[Publisher, ...]:
    """Connections with a session that resend after a crash: QoS 1, and QoS 2 if the broker supports it."""
    kinds = [(1, 5), (1, 4)] + [(2, 5), (2, 4), (2, 5)] * qos2
    return tuple(
        Publisher(
            connection=first + n,
            protocol=protocol,
            topic=f"devices/again-{n}/{'actions' if n % 4 == 3 else 'telemetry'}",
            client_id=f"again-{n}",
            retains=n == 4,
            qos=qos,
            resends=True,
        )
        for n, (qos, protocol) in enumerate(kinds)
    )


def chosen_seed() -> int:
    """HEADWATER_FAULT_SEED, otherwise a new one."""
    text = os.environ.get("HEADWATER_FAULT_SEED")
    return int(text) if text else random.SystemRandom().randrange(1 << 32)
