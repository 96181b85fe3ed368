"""A log in memory with the visible behaviour of the broker's: partitions, offsets, epochs, topics and limits.

`support.flight_server` serves it. It keeps nothing on disk, checks no bytes, and hashes keys with CRC-32 instead of
XXH3-64, so a topic may be in another partition than in a real broker.
"""

from __future__ import annotations

import bisect
import json
import re
import threading
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

CLASS_FILTERS: Mapping[str, tuple[str, ...]] = {
    "internal": ("$state/#",),
    "control": ("devices/+/actions", "$receipts", "$gaps"),
    "artifacts": ("artifacts/#",),
}


@dataclass(frozen=True, slots=True)
class Record:
    """One record; `headers` is None without headers, `timestamp_us` the time of the append."""

    offset: int
    epoch: int
    topic: str
    key: bytes
    value: bytes
    timestamp_us: int
    headers: tuple[tuple[str, bytes], ...] | None = None
    qos: int = 1
    retain: bool = False
    client_id: str = ""


@dataclass(slots=True)
class Partition:
    """Records in offset order; those below `log_start` are gone."""

    number: int
    class_name: str
    index: int
    log_start: int = 0
    epoch: int = 1
    records: list[Record] = field(default_factory=list)
    # Offset of the next record; kept when retention empties the partition.
    high_watermark: int = 0

    @property
    def name(self) -> str:
        return f"{self.class_name}-{self.index}"

    def between(self, start: int, end: int) -> Iterator[Record]:
        low = bisect.bisect_left(self.records, start, key=lambda record: record.offset)
        for record in self.records[low:]:
            if record.offset >= end:
                return
            yield record

    def gaps(self) -> Iterator[tuple[int, int]]:
        """The offsets `[start, end)` that are gone in the middle."""
        after = self.log_start
        for record in self.records:
            if record.offset > after:
                yield after, record.offset
            after = record.offset + 1
        if after < self.high_watermark:
            yield after, self.high_watermark

    def epoch_before(self, offset: int) -> int | None:
        """The epoch of the record before `offset`; None at 0 and if that record is gone."""
        found = list(self.between(offset - 1, offset))
        return found[0].epoch if found else None

    def offset_for_time(self, time_us: int) -> int:
        return next((r.offset for r in self.records if r.timestamp_us >= time_us), self.high_watermark)


@dataclass(frozen=True, slots=True)
class Planned:
    end: int
    scanned: int
    records: int
    bytes: int


@dataclass(slots=True)
class Group:
    name: str
    reader_epoch: int = 0
    initial: dict[int, int] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)
    scanned: dict[int, int] = field(default_factory=dict)


def matches(topic_filter: str, topic: str) -> bool:
    """The rule of MQTT, section 4.7: `+` matches one level, `#` the rest, and a leading wildcard never matches a `$`
    topic."""
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    levels = topic.split("/")
    for place, part in enumerate(topic_filter.split("/")):
        if part == "#":
            return True
        if place >= len(levels) or part not in ("+", levels[place]):
            return False
    return len(levels) == len(topic_filter.split("/"))


@dataclass(frozen=True, slots=True)
class Pattern:
    """A regular expression for whole topics, usable in place of a list of filters."""

    text: str

    def matches(self, topic: str) -> bool:
        is_hidden = topic.startswith("$") and not self.text.startswith("\\$")
        return not is_hidden and re.fullmatch(self.text, topic) is not None


Wanted = Sequence[str] | Pattern | None


def matches_any(filters: Wanted, topic: str) -> bool:
    if isinstance(filters, Pattern):
        return filters.matches(topic)
    return filters is None or any(matches(one, topic) for one in filters)


def _overlap(left: Sequence[str], right: Sequence[str]) -> bool:
    """Whether some topic matches both filters, given as levels."""
    if not left or not right:
        return list(left or right) in ([], ["#"])
    if "#" in (left[0], right[0]):
        return True
    return (left[0] == right[0] or "+" in (left[0], right[0])) and _overlap(left[1:], right[1:])


class MemoryLog:
    """Partitions 0 (internal), 1 (control), 2 (artifacts), 3… (telemetry), numbered as in a new broker.

    Every method may be called from any thread; `changed` is notified after each append.
    """

    def __init__(self, *, telemetry_partitions: int = 2, log_id: str | None = None) -> None:
        self.log_id = log_id or str(uuid.uuid4())
        places = [("internal", 0), ("control", 0), ("artifacts", 0)]
        places += [("telemetry", index) for index in range(telemetry_partitions)]
        self.partitions = {n: Partition(n, class_name, index) for n, (class_name, index) in enumerate(places)}
        self.groups: dict[str, Group] = {}
        self.changed = threading.Condition(threading.RLock())

    def route(self, topic: str, key: bytes | None) -> tuple[Partition, bytes]:
        """The partition of a topic, and the key of its record."""
        class_name = next((c for c, fs in CLASS_FILTERS.items() if matches_any(fs, topic)), "telemetry")
        levels = topic.split("/")
        level = levels[1] if len(levels) > 1 and levels[0] == "devices" else topic
        if key is None:
            key = level.encode()
        choices = [p for p in self.partitions.values() if p.class_name == class_name]
        return choices[(zlib.crc32(level.encode()) >> 16) % len(choices)], key

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Iterable[tuple[str, bytes]] | None = None,
        qos: int = 1,
        retain: bool = False,
        client_id: str = "",
        timestamp_us: int | None = None,
        partition: int | None = None,
    ) -> tuple[int, int]:
        """Appends one record and returns (partition, offset). `partition` overrules the routing."""
        with self.changed:
            place, key = self.route(topic, key)
            if partition is not None:
                place = self.partitions[partition]
            record = Record(
                offset=place.high_watermark,
                epoch=place.epoch,
                topic=topic,
                key=key,
                value=value,
                timestamp_us=time.time_ns() // 1_000 if timestamp_us is None else timestamp_us,
                headers=tuple(headers) if headers else None,
                qos=qos,
                retain=retain,
                client_id=client_id,
            )
            place.records.append(record)
            place.high_watermark += 1
            self.changed.notify_all()
            return place.number, record.offset

    def place_of_key(self, topic: str, idempotency_key: str) -> tuple[int, int] | None:
        """Where the topic's partition has a record with this idempotency key."""
        place, _ = self.route(topic, None)
        wanted = ("headwater.idempotency-key", idempotency_key.encode())
        found = (r.offset for r in place.records if r.headers and wanted in r.headers)
        return next(((place.number, offset) for offset in found), None)

    def reported_gaps(self) -> list[tuple[int, int, int]]:
        """Partition, start and end of each gap that was reported, in order."""
        found = [json.loads(one.value) for one in self.partitions[1].records if one.topic == "$gaps"]
        return [(gap["partition"], gap["start"], gap["end"]) for gap in found]

    # Changes that tests make to a log: retention, damage and a new term.

    def expire(self, partition: int, log_start: int) -> None:
        """Retention: every record below `log_start` is gone."""
        with self.changed:
            place = self.partitions[partition]
            place.log_start = log_start
            place.records = [record for record in place.records if record.offset >= log_start]
            place.high_watermark = max(place.high_watermark, log_start)
            self.changed.notify_all()

    def lose(self, partition: int, start: int, end: int) -> None:
        """A gap in the middle: records [start, end) are gone while the log start stays."""
        with self.changed:
            place = self.partitions[partition]
            place.records = [r for r in place.records if not start <= r.offset < end]

    def new_epoch(self, partition: int | None = None, *, cut_to: int | None = None) -> None:
        """A restart of the broker. `cut_to` drops the tail from that offset, so its offsets are reused."""
        with self.changed:
            for place in self.partitions.values():
                if partition not in (None, place.number):
                    continue
                place.epoch += 1
                if cut_to is not None:
                    place.records = [record for record in place.records if record.offset < cut_to]
                    place.high_watermark = min(place.high_watermark, cut_to)
            self.changed.notify_all()

    # Requests of the Flight service.

    def reachable(self, filters: Wanted) -> list[Partition]:
        """Partitions that can hold a topic of `filters`; all except internal without filters or with a pattern."""
        if filters is None or isinstance(filters, Pattern):
            return [p for p in self.partitions.values() if p.class_name != "internal"]
        names = {
            name
            for name, of_class in CLASS_FILTERS.items()
            for one in filters
            for other in of_class
            if _overlap(one.split("/"), other.split("/")) and not (other[0] == "$" and one[:1] in ("+", "#"))
        }
        special = {topic for of_class in CLASS_FILTERS.values() for topic in of_class}
        if any(one not in special and not one.startswith(("$", "artifacts/")) for one in filters):
            names.add("telemetry")
        return [p for p in self.partitions.values() if p.class_name in names]

    def plan(
        self, starts: Mapping[int, int], filters: Wanted, max_records: int | None, max_bytes: int | None
    ) -> dict[int, Planned]:
        """How far each partition may be read. A limit is divided by the waiting records; one record always fits."""
        waiting = {
            number: [
                r
                for r in self.partitions[number].between(start, self.partitions[number].high_watermark)
                if matches_any(filters, r.topic)
            ]
            for number, start in starts.items()
        }
        records = _shares({n: len(rs) for n, rs in waiting.items()}, max_records)
        sizes = _shares({n: sum(len(r.value) for r in rs) for n, rs in waiting.items()}, max_bytes)
        planned = {}
        for number, found in waiting.items():
            taken: list[Record] = []
            size = 0
            for record in found[: records[number]]:
                if taken and size + len(record.value) > sizes[number]:
                    break
                taken.append(record)
                size += len(record.value)
            left = found[len(taken)].offset if len(taken) < len(found) else self.partitions[number].high_watermark
            end = taken[-1].offset + 1 if taken else starts[number]
            planned[number] = Planned(end, left, len(taken), size)
        return planned


def _shares(waiting: Mapping[int, int], limit: int | None) -> dict[int, int]:
    """Splits `limit` in proportion to the waiting records; remainders go to the longest queues, then by number."""
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return dict(waiting)
    shares = {number: limit * count // total for number, count in waiting.items()}
    left = limit - sum(shares.values())
    for number in sorted(waiting, key=lambda n: (-waiting[n], n)):
        if left and shares[number] < waiting[number]:
            shares[number] += 1
            left -= 1
    return shares
