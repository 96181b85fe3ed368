"""Fields of JSON that devices and brokers sent, checked one by one; a wrong one is named with what it should be.

`WrongField` is the only error that what was sent can cause here. Numbers, depth and texts are bounded before they are
used: Python refuses to read or print a number of some thousand digits, recursion ends where the stack does, and JSON
can spell characters (`"\\ud800"`) that no table can hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
TIME_MAX_US = 253_402_300_799 * 1_000_000
"""The end of year 9999, where timestamps of Spark and Arrow end."""
ACTION_ID_MAX = 256
"""Characters; the engine refuses an action with a longer id, so nobody can speak of one."""
DEPTH_MAX = 100
"""Far from where Python's recursion ends, whoever calls."""
DIGITS_MAX = 1_000
"""Of a whole number; Spark's JSON reader takes no longer one either."""


_REASONS_MAX = 5


class WrongField(ValueError):
    """Why what was sent cannot be used; becomes the reason in `quarantine`."""


def loaded(value: bytes) -> Any:
    """The JSON in `value`, no deeper than `DEPTH_MAX`. Its texts may still have characters that are not Unicode."""
    try:
        body = json.loads(value, parse_int=_whole)
    except WrongField:
        raise
    except (ValueError, RecursionError) as error:
        raise WrongField(f"the payload is not JSON: {error}") from error
    if is_deeper(body, DEPTH_MAX):
        raise WrongField(f"the payload is nested deeper than {DEPTH_MAX}")
    return body


def _whole(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise WrongField(f"the payload has a number of {len(digits)} digits; {DIGITS_MAX} are the limit")
    return int(digits)


def is_deeper(body: Any, limit: int) -> bool:
    """Whether lists and objects are nested deeper than `limit`. Without recursion: that is what it protects."""
    level: list[Any] = [body]
    for _ in range(limit):
        below: list[Any] = []
        for one in level:
            inner: Iterable[Any] = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
            below += [found for found in inner if isinstance(found, dict | list)]
        if not below:
            return False
        level = below
    return True


def object_of(value: bytes) -> Mapping[str, Any]:
    body = loaded(value)
    if not isinstance(body, dict):
        raise WrongField("the payload is not a JSON object")
    return body


def text(body: Mapping[str, Any], name: str, *, required: bool = False, longest: int | None = None) -> str | None:
    """`longest` in characters."""
    value = body.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, str) or (required and not value):
        raise WrongField(f"{name} must be a text, not {short(value)}")
    _refuse_no_unicode(name, value)
    if longest is not None and len(value) > longest:
        raise WrongField(f"{name} has {len(value)} characters; {longest} are the limit")
    return value


def number(body: Mapping[str, Any], name: str, low: int, high: int, *, required: bool = False) -> int | None:
    value = body.get(name)
    if value is None and not required:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise WrongField(f"{name} must be a whole number from {low} to {high}, not {short(value)}")
    return value


def json_text(body: Mapping[str, Any], name: str) -> str | None:
    """Any value as JSON again. NaN and infinities, for which JSON has no words, become null."""
    value = body.get(name)
    if value is None:
        return None
    try:
        found = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        plain = json.loads(json.dumps(value), parse_constant=lambda _: None)
        found = json.dumps(plain, ensure_ascii=False)
    _refuse_no_unicode(name, found)
    return found


def whole_number(digits: str, low: int, high: int) -> int | None:
    """The number that ASCII digits spell, or None where they are something else or it is out of these bounds."""
    if not digits.isascii() or not digits.isdigit() or len(digits) > len(str(high)):
        return None
    found = int(digits)
    return found if low <= found <= high else None


def short(value: Any) -> str:
    """A value in a sentence. It must come from `loaded`, which bounds what there is to show."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def in_short(reasons: Sequence[str]) -> str:
    """What is wrong with a record, in one sentence: a record may have thousands of parts."""
    more = len(reasons) - _REASONS_MAX
    return "; ".join(reasons[:_REASONS_MAX]) + (f"; and {more} more" if more > 0 else "")


def _refuse_no_unicode(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise WrongField(f"{name} has characters that are not Unicode: {error.reason}") from error
