"""Uses the filters of a batch query before anything is read: which topics, logs, partitions and offsets can have rows.

It only narrows. A filter that is not understood or not exact is left to Spark, which applies every filter again. A
lower bound on `timestamp` narrows to the first record at or after it. An upper bound narrows only if the options say
how far a broker's clock was set back at most, because after such a step later offsets have earlier times. The read then
ends at the first record that is later than the bound by at least that much (`endingTimestamp` cuts at the bound itself,
on purpose).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from broker_edge.errors import RefusedError
from sources.log_server import LogServer
from sources.offsets import OffsetRange
from sources.option_values import microseconds
from sources.options import SourceOptions

TOPICS_MAX = 100
"""With more topics than these, none is named to the broker: matching them would cost as much as reading everything."""


@dataclass(frozen=True, slots=True)
class Narrowing:
    """Where rows can be. None and the infinite bounds exclude nothing."""

    topics: frozenset[str] | None = None
    log_ids: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    offset_from: int = 0
    offset_to: float = math.inf
    time_from_us: int | None = None
    time_to_us: int | None = None
    """Upper bound, exclusive: rows with this time or a later one do not pass."""

    def clip(self, one: OffsetRange) -> OffsetRange | None:
        """The part of a range that can have rows."""
        if self.log_ids is not None and one.log_id not in self.log_ids:
            return None
        if self.partitions is not None and one.partition not in self.partitions:
            return None
        start, end = max(one.start, self.offset_from), int(min(one.end, self.offset_to))
        if start >= end:
            return None
        return replace(one, start=start, end=end, end_epoch=one.end_epoch if end == one.end else None)


def narrow(filters: Iterable[Filter]) -> Narrowing:
    """What a list of filters, all of which must hold, says about topics, logs, partitions, offsets and times."""
    found = Narrowing()
    for one in filters:
        column = getattr(one, "attribute", ())
        if column == ("topic",):
            found = replace(found, topics=_both(found.topics, _values(one, str)))
        elif column == ("log_id",):
            found = replace(found, log_ids=_both(found.log_ids, _values(one, str)))
        elif column == ("partition",):
            found = replace(found, partitions=_both(found.partitions, _values(one, int)))
        elif column == ("offset",):
            low, high = _bounds(one)
            found = replace(found, offset_from=max(found.offset_from, low), offset_to=min(found.offset_to, high))
        elif column == ("timestamp",):
            since_us, until_us = _time_bounds_us(one)
            if since_us is not None:
                found = replace(found, time_from_us=max(found.time_from_us or 0, since_us))
            if until_us is not None:
                known = until_us if found.time_to_us is None else found.time_to_us
                found = replace(found, time_to_us=min(known, until_us))
    return found


def narrow_topics(options: SourceOptions, topics: frozenset[str] | None) -> SourceOptions | None:
    """The options for reading only these topics; None if no topic is left."""
    if topics is None or options.pattern is not None or len(topics) > TOPICS_MAX:
        return options
    if any(not topic or set(topic) & set("+#\0") for topic in topics):
        return options
    wanted = topics
    if options.filters is not None:
        wanted = frozenset(topic for topic in topics if any(filter_matches(one, topic) for one in options.filters))
    return replace(options, filters=tuple(sorted(wanted))) if wanted else None


def clip_below(found: Sequence[OffsetRange], firsts: Mapping[int, int]) -> list[OffsetRange]:
    """Drops what lies before the given first offset of each partition."""
    clipped = (Narrowing(offset_from=firsts.get(one.partition, 0)).clip(one) for one in found)
    return [one for one in clipped if one is not None]


def clip_above(found: Sequence[OffsetRange], ends: Mapping[int, int]) -> list[OffsetRange]:
    """Drops what lies at or after the given end offset of each partition."""
    clipped = (Narrowing(offset_to=ends.get(one.partition, math.inf)).clip(one) for one in found)
    return [one for one in clipped if one is not None]


def clip_to_topics(found: Sequence[OffsetRange], server: LogServer, topics: Sequence[str]) -> list[OffsetRange]:
    """Reduces the ranges of one log to what lies between the first and the last record of the topics."""
    try:
        rows = server.topics(topics)
    except RefusedError as error:
        if error.code != "permission_denied":
            raise
        # A user with read access may lack the permission to list topics.
        return list(found)
    bounds: dict[int, tuple[int, int]] = {}
    for row in rows:
        first, following = bounds.get(row["partition"], (row["first"], row["next"]))
        bounds[row["partition"]] = min(first, row["first"]), max(following, row["next"])
    clipped = []
    for one in found:
        if one.partition in bounds:
            first, following = bounds[one.partition]
            clipped.append(Narrowing(offset_from=first, offset_to=following).clip(one))
    return [one for one in clipped if one is not None]


def filter_matches(topic_filter: str, topic: str) -> bool:
    """MQTT 5, section 4.7: `+` matches one level, `#` the rest, and a leading wildcard never matches a `$` topic."""
    if topic.startswith("$") and topic_filter.startswith(("+", "#")):
        return False
    levels, parts = topic.split("/"), topic_filter.split("/")
    for place, part in enumerate(parts):
        if part == "#":
            return True
        if place >= len(levels) or part not in ("+", levels[place]):
            return False
    return len(levels) == len(parts)


def _values(one: Filter, kind: type) -> frozenset[Any] | None:
    """The only values that pass; None if the filter does not restrict them."""
    if isinstance(one, EqualTo | EqualNullSafe):
        values: Sequence[Any] = (one.value,)
    elif isinstance(one, In):
        values = one.value
    else:
        return None
    return frozenset(values) if all(isinstance(value, kind) for value in values) else None


def _both(known: frozenset[Any] | None, also: frozenset[Any] | None) -> frozenset[Any] | None:
    if known is None or also is None:
        return known if also is None else also
    return known & also


def _bounds(one: Filter) -> tuple[int, float]:
    """Offsets `[low, high)` that may pass."""
    values = _values(one, int)
    if values:
        return min(values), max(values) + 1
    value = getattr(one, "value", None)
    if not isinstance(value, int):
        return 0, math.inf
    match one:
        case GreaterThan():
            return value + 1, math.inf
        case GreaterThanOrEqual():
            return value, math.inf
        case LessThan():
            return 0, value
        case LessThanOrEqual():
            return 0, value + 1
        case _:
            return 0, math.inf


def _time_bounds_us(one: Filter) -> tuple[int | None, int | None]:
    """Times `[since, until)` that may pass; each is None if the filter does not restrict it."""
    values = _values(one, datetime)
    if values:
        moments = sorted(_known(list(values)))
        return (moments[0], moments[-1] + 1) if moments else (None, None)
    match one:
        case GreaterThan() | GreaterThanOrEqual():
            return next(iter(_known([one.value])), None), None
        case LessThan():
            return None, next(iter(_known([one.value])), None)
        case LessThanOrEqual():
            return None, next((time_us + 1 for time_us in _known([one.value])), None)
        case _:
            return None, None


def _known(values: Sequence[Any]) -> list[int]:
    """Times in microseconds since 1970. Empty if one of the values is not a time or has a time zone unknown here."""
    if not all(isinstance(value, datetime) and value.tzinfo is not None for value in values):
        return []
    return [max(0, microseconds(value)) for value in values]
