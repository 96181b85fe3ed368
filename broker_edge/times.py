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
_PER_S_BY_DIGITS = ((11, 1), (14, 1_000), (17, 1_000_000), (19, 1_000_000_000))
"""The unit of a Unix time by its number of digits: up to 11 are seconds, up to 14 ms, up to 17 µs, up to 19 ns. From
1974 on these do not overlap."""
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
            per_s = next(per_s for digits, per_s in _PER_S_BY_DIGITS if len(given) <= digits)
            return int(given) * 1_000_000 // per_s
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
