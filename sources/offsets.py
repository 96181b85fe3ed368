"""Offsets of a query as Spark stores them, and the ranges between two of them. Pure values: no network, no Spark.

The text in the checkpoint, with sorted keys:

    {"v":2,"logs":{"<log id>":{"<partition>":[next, epoch]}},"owners":{"<log id>":"<entry>"}}

Spark compares offsets as text, so the same positions must always give the same text; otherwise an idle query would
write empty batches.

    next    the first offset that has not been read
    epoch   the epoch of the record before it, null if there is none; it shows whether the log was truncated and
            rewritten since

`owners` says to which broker of the settings, by its name or otherwise its address, each log belongs
(`broker_edge.log_owners`). Version 1 has no owners.

A position has a third number where the batch that ends here does not start where the one before has ended: after a loss
that the query may skip (`failOnDataLoss=false`), and after records that it has looked at and that matched nothing
(`sources.passing`). It is the offset at which this batch starts, also when it is replayed; where it equals `next`,
nothing is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from broker_edge.errors import OffsetError

FORMAT_VERSION = 2
_WITHOUT_OWNERS = 1


@dataclass(frozen=True, slots=True)
class Place:
    """Where to resume in one partition."""

    next: int
    epoch: int | None = None
    resumed_at: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("offset", self.next), ("epoch", self.epoch), ("place to resume at", self.resumed_at)):
            if value is not None and value < 0:
                raise OffsetError(f"{name} {value} is negative")

    def to_json(self) -> list[int | None]:
        pair: list[int | None] = [self.next, self.epoch]
        return pair if self.resumed_at is None else [*pair, self.resumed_at]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Records `[start, end)` of one partition, never empty; `end_epoch` is the epoch of the record before `end`."""

    log_id: str
    partition: int
    start: int
    end: int
    end_epoch: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise OffsetError(
                f"bad range [{self.start}, {self.end}) of partition {self.partition} of log {self.log_id}"
            )

    def split(self, parts: int) -> list[OffsetRange]:
        """Up to `parts` ranges of nearly equal length that cover this one in order."""
        length = self.end - self.start
        parts = max(1, min(parts, length))
        bounds = [self.start + length * part // parts for part in range(parts + 1)]
        epochs = [None] * (parts - 1) + [self.end_epoch]
        return [
            OffsetRange(self.log_id, self.partition, start, end, epoch)
            for start, end, epoch in zip(bounds, bounds[1:], epochs, strict=False)
        ]


def is_offset(value: object) -> bool:
    """Whether a JSON value is an offset of this source, of whichever version, and not one of another source."""
    return isinstance(value, Mapping) and {"v", "logs"} <= set(value)


@dataclass(frozen=True, slots=True)
class SourceOffset:
    """A position in every partition of every log that a query reads, and the owners of the logs."""

    logs: Mapping[str, Mapping[int, Place]] = field(default_factory=dict)
    owners: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        logs = {
            log_id: {str(partition): places[partition].to_json() for partition in sorted(places)}
            for log_id, places in sorted(self.logs.items())
        }
        if not self.owners:
            return {"v": _WITHOUT_OWNERS, "logs": logs}
        return {"v": FORMAT_VERSION, "logs": logs, "owners": dict(sorted(self.owners.items()))}

    def text(self) -> str:
        return json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def from_json(cls, value: object) -> SourceOffset:
        """Parses the result of `to_json`; for anything else `OffsetError` says what is wrong."""
        if not isinstance(value, dict):
            raise OffsetError(f"an offset is a JSON object, not {json.dumps(value)}")
        version = value.get("v")
        if isinstance(version, bool) or version not in (_WITHOUT_OWNERS, FORMAT_VERSION):
            raise OffsetError(
                f"the checkpoint has offsets of version {version!r} and this reader supports versions up to "
                f"{FORMAT_VERSION}: use the release that wrote it, or a new checkpoint"
            )
        names = ["v", "logs", "owners"] if version == FORMAT_VERSION else ["v", "logs"]
        if set(value) != set(names):
            raise OffsetError(f"an offset of version {version} has the fields {', '.join(names)}, not {sorted(value)}")
        return cls(read_logs(value["logs"]), _read_owners(value.get("owners", {})))


def read_logs(value: object) -> dict[str, dict[int, Place]]:
    """Parses `{"<log id>":{"<partition>":[next, epoch]}}`."""
    if not isinstance(value, dict):
        raise OffsetError(f"`logs` is a JSON object, not {json.dumps(value)}")
    return {log_id: _read_places(log_id, places) for log_id, places in value.items()}


def _read_owners(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise OffsetError(f"`owners` is a JSON object of texts, not {json.dumps(value)}")
    return dict(value)


def _read_places(log_id: str, value: object) -> dict[int, Place]:
    if not isinstance(value, dict):
        raise OffsetError(f"the positions of log {log_id} are a JSON object, not {json.dumps(value)}")
    places = {}
    for partition, place in value.items():
        if not (isinstance(partition, str) and partition.isascii() and partition.isdigit() and len(partition) <= 10):
            raise OffsetError(f"partition {partition!r} of log {log_id} is not a number")
        places[int(partition)] = _read_place(log_id, partition, place)
    return places


def _read_place(log_id: str, partition: str, value: object) -> Place:
    if not (isinstance(value, list) and len(value) in (2, 3)):
        raise OffsetError(
            f"the position in partition {partition} of log {log_id} is [next, epoch], not {json.dumps(value)}"
        )
    numbers = [number for number in value if not (isinstance(number, int) and not isinstance(number, bool))]
    if isinstance(value[0], bool) or not isinstance(value[0], int) or any(number is not None for number in numbers):
        raise OffsetError(
            f"the position in partition {partition} of log {log_id} does not consist of numbers: {json.dumps(value)}"
        )
    return Place(*value)


def ranges(start: SourceOffset, end: SourceOffset) -> list[OffsetRange]:
    """The ranges that the batch from `start` to `end` reads, ordered by log and partition.

    A partition that is missing in `start` joins with `end` and is read from the next batch on.
    """
    found = []
    for log_id, places in sorted(end.logs.items()):
        begun = start.logs.get(log_id, {})
        for partition, place in sorted(places.items()):
            before = begun.get(partition)
            if place.resumed_at == place.next:
                # The position only followed what had been looked at.
                continue
            if before is None and place.epoch is not None:
                # A partition that joins has no epoch yet. This one has: it was read up to here, from a start unknown
                # now.
                raise OffsetError(
                    f"the start of the first batch in partition {partition} of log {log_id} is unknown, because its "
                    "broker does not answer: restart the query when the broker is back"
                )
            if before is None or place == before:
                continue
            first = before.next if place.resumed_at is None else place.resumed_at
            if first > place.next:
                raise OffsetError(
                    f"the batch of partition {partition} of log {log_id} ends at {place.next}, before its "
                    f"start {first}: retention removed it before it was read, or the start of the query was changed; "
                    "use a new checkpoint"
                )
            if first < place.next:
                found.append(OffsetRange(log_id, partition, first, place.next, place.epoch))
    return found
