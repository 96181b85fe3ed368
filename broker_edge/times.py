"""Times as people write them, for every command and position: `-1h`, `now`, `2027-01-15T22:00`, or a Unix time."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from broker_edge.errors import RefusedError

UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
"""Seconds of the unit behind a number."""
SECONDS_MAX = 2**31 - 1
_SPAN = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhd]?)")
_DIGITS = re.compile(r"[0-9]{9,19}")
_US_PER_DIGITS = ((11, 1_000_000.0), (14, 1_000.0), (17, 1.0), (19, 0.001))
"""Microseconds of a Unix time with at most so many digits: in seconds, ms, µs and ns. Times since 1973 have different
numbers of digits in each unit."""
FORMS = "-1h for an hour ago, now, 2027-01-15T22:00+01:00, or a Unix time in seconds, ms, µs or ns"


def time_us(text: str, *, now_us: int | None = None) -> int:
    """The Unix time in µs of `text`; `now_us` is the clock of this machine by default.

    A time without a zone is in that of this machine. Raises RefusedError for anything else, also for a number with
    fewer than nine digits: such a Unix time would be before 1974 in any unit.
    """
    given = text.strip()
    now_us = int(datetime.now(UTC).timestamp() * 1_000_000) if now_us is None else now_us
    try:
        if given == "now":
            return now_us
        if given[:1] in ("+", "-"):
            return now_us + (-1 if given[0] == "-" else 1) * int(_span_s(given[1:]) * 1_000_000)
        if _DIGITS.fullmatch(given):
            return int(int(given) * next(factor for digits, factor in _US_PER_DIGITS if len(given) <= digits))
        # ISO 8601 has dates of eight digits, and Python takes more of them for a date and a time.
        if given.isdigit() and len(given) != len("20270115"):
            raise ValueError
        moment = datetime.fromisoformat(given)
        return int((moment if moment.tzinfo else moment.astimezone()).timestamp() * 1_000_000)
    except (ValueError, OverflowError, OSError) as error:
        raise RefusedError(f"`{text}` is no time: write {FORMS}", field="time") from error


def _span_s(text: str) -> float:
    found = _SPAN.fullmatch(text)
    if found is None:
        raise ValueError(text)
    seconds = float(found[1]) * UNITS[found[2]]
    if seconds > SECONDS_MAX:
        raise OverflowError
    return seconds
