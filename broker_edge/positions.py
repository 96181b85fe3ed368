"""Start positions for reading: `earliest`, `latest`, a time, or `<partition name>:<offset>[,…]` (docs/protocols.md)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from broker_edge.errors import RefusedError
from broker_edge.times import FORMS, time_us

if TYPE_CHECKING:
    from broker_edge.client import Client

_PLACE = re.compile(r"([a-z]+-\d+):(\d+)\Z")


@dataclass(frozen=True, slots=True)
class Position:
    """One of: a word, a time, or offsets by partition name; `text` is the notation of MQTT, where a time is in µs."""

    text: str
    word: str | None = None
    time_us: int | None = None
    offsets: Mapping[str, int] | None = None


def parse_position(text: str) -> Position:
    """Parses a position, with a time in any form of `time_us`. Raises RefusedError if `text` is not a position."""
    if text in ("earliest", "latest"):
        return Position(text, word=text)
    if _PLACE.match(text.partition(",")[0].strip()) is None:
        try:
            at_us = time_us(text)
        except RefusedError as error:
            raise RefusedError(
                f"`{text}` is not a position: write earliest, latest, telemetry-0:1234, or a time: {FORMS}",
                field="position",
            ) from error
        return Position(str(at_us), time_us=at_us)
    offsets: dict[str, int] = {}
    for part in text.split(","):
        found = _PLACE.match(part.strip())
        if found is None or found[1] in offsets:
            raise RefusedError(
                f"`{text}` is not a position: write each partition once, as in telemetry-0:1234,telemetry-1:0",
                field="position",
            )
        offsets[found[1]] = int(found[2])
    return Position(",".join(f"{name}:{offset}" for name, offset in offsets.items()), offsets=offsets)


def resolve(client: Client, position: Position, filters: list[str] | None) -> dict[int, int]:
    """The start offset of each partition that the filters can reach; for offsets, only of the named partitions."""
    found = client.offsets(filters=filters, time_us=position.time_us)
    if position.offsets is None:
        starts = {}
        for number, bounds in found.partitions.items():
            at = {"earliest": bounds.log_start, "latest": bounds.high_watermark}
            time_at = bounds.high_watermark if bounds.offset_for_time is None else bounds.offset_for_time
            starts[number] = at[position.word] if position.word else time_at
        return starts
    by_name = {bounds.name: number for number, bounds in found.partitions.items()}
    for name in position.offsets:
        if name not in by_name:
            known = ", ".join(sorted(by_name)) or "none"
            raise RefusedError(
                f"there is no partition `{name}` for these filters; there are: {known}", field="position"
            )
    return {by_name[name]: offset for name, offset in position.offsets.items()}
