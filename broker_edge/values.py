"""The values that the client takes and gives: plain, frozen, and checked where a wrong one could pass unseen.

Offsets and partition numbers are the broker's global ones; times are Unix microseconds in UTC. Nothing here talks to
a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker_edge.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Version:
    """What a broker is: its version, the protocol and disk format it speaks, and the id of its log."""

    version: str
    protocol: int
    format: int
    log_id: str


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic and the offsets `[first, next)` of its partition between which it has records."""

    topic: str
    class_name: str
    partition: int
    name: str
    first: int
    next: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records `[start, end)` of one partition; `start == end` is the empty range."""

    partition: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end:
            raise RefusedError(f"bad range [{self.start}, {self.end}) of partition {self.partition}", field="start")


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets `[start, end)` that are gone: by `damage` or `retention`."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The bounds of a partition. Readable are the offsets `[log_start, high_watermark)`.

    `offset_for_time` is set when a time was asked for, `epoch_before` when an offset was, and it is None where the
    record before that offset does not exist. `gaps` are those known so far, ascending; the newest thousand.
    """

    partition: int
    name: str
    class_name: str
    log_start: int
    high_watermark: int
    epoch: int
    bytes: int
    offset_for_time: int | None = None
    epoch_before: int | None = None
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class Offsets:
    """The bounds of partitions, by number, at one moment."""

    log_id: str
    partitions: Mapping[int, PartitionOffsets]


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """How far to read: `[start, end)` holds `records` matching ones of `bytes`; none match in `[end, scanned)`.

    `epoch` is that of the record before `end`, None at 0 and where it is gone.
    """

    partition: int
    start: int
    end: int
    scanned: int
    records: int
    bytes: int
    epoch: int | None
    log_start: int
    high_watermark: int

    @property
    def range(self) -> OffsetRange:
        return OffsetRange(self.partition, self.start, self.end)


@dataclass(frozen=True, slots=True)
class Plan:
    """How far to read each partition, by number."""

    log_id: str
    partitions: Mapping[int, PartitionPlan]


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """What a consumer group knows of a partition; None where nothing is known."""

    initial: int | None = None
    committed: int | None = None
    scanned: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: its newest reader's epoch and its offsets by partition."""

    group: str
    reader_epoch: int
    partitions: Mapping[int, GroupOffsets]


@dataclass(frozen=True, slots=True)
class Commit:
    """All below `committed` is finished; nothing that matches waits below `scanned`."""

    committed: int
    scanned: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One record to produce.

    `key` defaults to the routing level of the topic. With an `idempotency_key` a second row with the same key in the
    same partition appends nothing, as long as the first is retained.
    """

    topic: str
    value: bytes
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    qos: int = 1
    retain: bool = False
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        # Arrow would quietly encode text, and the reader would not get back what the writer meant.
        if not isinstance(self.value, bytes):
            raise RefusedError(
                f"the value of a row for `{self.topic}` is {type(self.value).__name__}, not bytes", field="value"
            )


@dataclass(frozen=True, slots=True)
class Place:
    """Where a produced row is. `duplicate`: it was there already, and nothing was appended."""

    partition: int
    offset: int
    duplicate: bool


# From the JSON of docs/protocols.md, section 3. A missing field raises KeyError, which the caller reports.


def topic_from_json(row: Mapping[str, Any]) -> Topic:
    return Topic(row["topic"], row["class"], row["partition"], row["name"], row["first"], row["next"])


def offsets_from_json(answer: Mapping[str, Any]) -> Offsets:
    partitions = {
        int(number): PartitionOffsets(
            partition=int(number),
            name=row["name"],
            class_name=row["class"],
            log_start=row["log_start"],
            high_watermark=row["high_watermark"],
            epoch=row["epoch"],
            bytes=row["bytes"],
            offset_for_time=row.get("offset_for_time"),
            epoch_before=row.get("epoch_before"),
            gaps=tuple(Gap(gap["start"], gap["end"], gap["reason"]) for gap in row.get("gaps", ())),
        )
        for number, row in answer["partitions"].items()
    }
    return Offsets(answer["log_id"], dict(sorted(partitions.items())))


def plan_from_json(answer: Mapping[str, Any], starts: Mapping[int, int]) -> Plan:
    partitions = {
        int(number): PartitionPlan(
            partition=int(number),
            start=starts[int(number)],
            end=row["end"],
            scanned=row["scanned"],
            records=row["records"],
            bytes=row["bytes"],
            epoch=row["epoch"],
            log_start=row["log_start"],
            high_watermark=row["high_watermark"],
        )
        for number, row in answer["partitions"].items()
    }
    return Plan(answer["log_id"], dict(sorted(partitions.items())))


def group_from_json(answer: Mapping[str, Any]) -> Group:
    partitions = {
        int(number): GroupOffsets(row["initial"], row["committed"], row["scanned"])
        for number, row in answer["partitions"].items()
    }
    return Group(answer["group"], answer["reader_epoch"], dict(sorted(partitions.items())))
