"""The values of the client's arguments and results: plain, frozen, and checked where an error could go unnoticed.

Offsets and partition numbers are the broker's global ones; times are Unix microseconds in UTC. Nothing here talks to a
server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from broker_edge.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Version:
    """A broker's version, protocol, disk format and log id."""

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
    """Offsets `[start, end)` that are gone because of `damage` or `retention`."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The bounds of a partition. The offsets `[log_start, high_watermark)` are readable.

    `offset_for_time` is set if a time was requested. `epoch_before` is set if an offset was requested and the record
    before it exists. `gaps` are the newest thousand known gaps, ascending.
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
    """How far to read: `[start, end)` contains `records` matching records of `bytes`; none match in `[end, scanned)`.

    `epoch` is the epoch of the record before `end`, None at 0 and if that record is gone.
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
    """A consumer group's offsets in a partition; None for unknown ones."""

    initial: int | None = None
    committed: int | None = None
    scanned: int | None = None

    @property
    def finished(self) -> int | None:
        """What lies below it is finished: retention waits for the group from here."""
        return self.initial if self.committed is None else self.committed

    @property
    def next(self) -> int | None:
        """The first offset that the group has neither finished nor passed because its filter does not match."""
        return max((at for at in (self.finished, self.scanned) if at is not None), default=None)


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group: its newest reader's epoch and its offsets by partition."""

    group: str
    reader_epoch: int
    partitions: Mapping[int, GroupOffsets]


@dataclass(frozen=True, slots=True)
class Commit:
    """All records below `committed` are finished; none below `scanned` match and wait."""

    committed: int
    scanned: int | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One record to produce.

    `key` defaults to the routing level of the topic. With an `idempotency_key`, a second row with the same key in the
    same partition appends nothing while the first one is retained.
    """

    topic: str
    value: bytes
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    qos: int = 1
    retain: bool = False
    idempotency_key: str | None = None

    def __post_init__(self) -> None:
        # Arrow would silently encode text, and the reader would get something else than the writer meant.
        if not isinstance(self.value, bytes):
            raise RefusedError(
                f"the value of a row for `{self.topic}` is {type(self.value).__name__}, not bytes", field="value"
            )


@dataclass(frozen=True, slots=True)
class Place:
    """The log position of a produced row. `duplicate`: the row already existed, and nothing was appended."""

    partition: int
    offset: int
    duplicate: bool


# Parsers for the JSON of docs/protocols.md, section 3. A missing field raises KeyError, and a wrong one TypeError; the
# caller reports them. Jobs use the values of several brokers together: one of them must not spoil those of the others.

_INT64_MAX = 2**63 - 1


def whole(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _INT64_MAX:
        raise TypeError(f"{value!r:.60} is not a whole number")
    return value


def whole_or_none(value: object) -> int | None:
    return None if value is None else whole(value)


def text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.60} is not a text")
    return value


def version_from_json(answer: Mapping[str, Any]) -> Version:
    return Version(text(answer["version"]), whole(answer["protocol"]), whole(answer["format"]), text(answer["log_id"]))


def places_from_json(answer: Mapping[str, Any], count: int) -> list[Place]:
    """The places of `count` rows."""
    columns = (answer["partitions"], answer["offsets"], answer["duplicates"])
    if any(not isinstance(column, list) or len(column) != count for column in columns):
        raise ValueError(f"a wrong number of answers for {count} rows")
    return [Place(whole(at), whole(offset), bool(is_known)) for at, offset, is_known in zip(*columns, strict=True)]


def topic_from_json(row: Mapping[str, Any]) -> Topic:
    return Topic(
        text(row["topic"]),
        text(row["class"]),
        whole(row["partition"]),
        text(row["name"]),
        whole(row["first"]),
        whole(row["next"]),
    )


def offsets_from_json(answer: Mapping[str, Any]) -> Offsets:
    partitions = {
        int(number): PartitionOffsets(
            partition=int(number),
            name=text(row["name"]),
            class_name=text(row["class"]),
            log_start=whole(row["log_start"]),
            high_watermark=whole(row["high_watermark"]),
            epoch=whole(row["epoch"]),
            bytes=whole(row["bytes"]),
            offset_for_time=whole_or_none(row.get("offset_for_time")),
            epoch_before=whole_or_none(row.get("epoch_before")),
            gaps=tuple(Gap(whole(gap["start"]), whole(gap["end"]), text(gap["reason"])) for gap in row.get("gaps", ())),
        )
        for number, row in answer["partitions"].items()
    }
    return Offsets(text(answer["log_id"]), dict(sorted(partitions.items())))


def plan_from_json(answer: Mapping[str, Any], starts: Mapping[int, int]) -> Plan:
    partitions = {
        int(number): PartitionPlan(
            partition=int(number),
            start=starts[int(number)],
            end=whole(row["end"]),
            scanned=whole(row["scanned"]),
            records=whole(row["records"]),
            bytes=whole(row["bytes"]),
            epoch=whole_or_none(row["epoch"]),
            log_start=whole(row["log_start"]),
            high_watermark=whole(row["high_watermark"]),
        )
        for number, row in answer["partitions"].items()
    }
    return Plan(text(answer["log_id"]), dict(sorted(partitions.items())))


def group_from_json(answer: Mapping[str, Any]) -> Group:
    partitions = {
        int(number): GroupOffsets(*(whole_or_none(row[name]) for name in ("initial", "committed", "scanned")))
        for number, row in answer["partitions"].items()
    }
    return Group(text(answer["group"]), whole(answer["reader_epoch"]), dict(sorted(partitions.items())))
