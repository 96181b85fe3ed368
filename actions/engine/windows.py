"""Maintenance windows: `Mon-Fri 22:00-06:00, Sun 00:00-24:00`, in the device's local time. Reads no clock.

A span that passes midnight belongs to the day on which it begins. Without days it applies to every day.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MIN = 24 * 60
_WEEK_MIN = 7 * _DAY_MIN
_SPAN = re.compile(r"(?:(\w{3})(?:-(\w{3}))?\s+)?(\d\d):(\d\d)-(\d\d):(\d\d)")
_SPANS_MAX = 32


class WindowError(ValueError):
    """The text is not a maintenance window; the message says why."""


@dataclass(frozen=True, slots=True)
class Span:
    """Minutes of the week [start, end); `end` may be in the next week."""

    start_min: int
    end_min: int


@lru_cache(maxsize=256)
def spans(text: str) -> tuple[Span, ...]:
    """The spans in the text. Raises WindowError."""
    found: list[Span] = []
    parts = text.split(",")
    if len(parts) > _SPANS_MAX:
        raise WindowError(f"has {len(parts)} spans; the limit is {_SPANS_MAX}")
    for part in parts:
        match = _SPAN.fullmatch(part.strip())
        if match is None:
            raise WindowError(f"has {part.strip()!r}, which does not look like 'Mon-Fri 22:00-06:00'")
        first, last, *clock = match.groups()
        hour, minute, end_hour, end_minute = map(int, clock)
        start, end = hour * 60 + minute, end_hour * 60 + end_minute
        if minute > 59 or end_minute > 59 or start >= _DAY_MIN or end > _DAY_MIN or start == end:
            raise WindowError(f"has {part.strip()!r}: times are from 00:00 to 24:00, and a span must not be empty")
        if end < start:
            end += _DAY_MIN
        found += [Span(day * _DAY_MIN + start, day * _DAY_MIN + end) for day in _days(first, last)]
    return tuple(found)


def _days(first: str | None, last: str | None) -> list[int]:
    if first is None:
        return list(range(7))
    try:
        start = _DAYS.index(first.lower())
        end = _DAYS.index((last or first).lower())
    except ValueError as error:
        raise WindowError(f"has a day that is not one of {', '.join(_DAYS)}") from error
    return [day % 7 for day in range(start, (end if end >= start else end + 7) + 1)]


def is_open(text: str, time_zone: str | None, now_us: int) -> bool:
    """Whether the window is open. A time zone unknown to this machine counts as UTC."""
    return _is_open(text, time_zone, now_us // 60_000_000)


@lru_cache(maxsize=4_096)
def _is_open(text: str, time_zone: str | None, minute_of_time: int) -> bool:
    """Cached by time zone, because a tick may ask for a hundred thousand devices."""
    local = datetime.fromtimestamp(minute_of_time * 60, zone(time_zone))
    minute = local.weekday() * _DAY_MIN + local.hour * 60 + local.minute
    return any(span.start_min <= at < span.end_min for span in spans(text) for at in (minute, minute + _WEEK_MIN))


@lru_cache(maxsize=1_024)
def zone(name: str | None) -> tzinfo:
    if not name:
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # Unknown, not a name, or a folder: use UTC.
        return UTC
