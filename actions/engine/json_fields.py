"""Checks fields of JSON from devices and brokers one by one; an error names the field and what it should be.

Input can cause no other error than `WrongField` here. Numbers, depth and texts are bounded before use: Python refuses
to parse or print a number of some thousand digits, recursion is limited by the stack, and JSON can express characters
(`"\\ud800"`) that no table can store.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
TIME_MAX_US = 253_402_300_799 * 1_000_000
"""The end of the year 9999, the latest timestamp of Spark and Arrow."""
ACTION_ID_MAX = 256
"""Characters. The engine refuses an action with a longer id, so no valid report can have one."""
FACT_MAX = 256
"""Characters of the version, the product and the hardware of a device: the engine keeps them of every device."""
DEPTH_MAX = 100
"""Far below the depth at which Python's recursion fails, whatever the depth of the caller."""
DIGITS_MAX = 1_000
"""Digits of a whole number; Spark's JSON reader does not accept longer ones either."""


_REASONS_MAX = 5


class WrongField(ValueError):
    """Why the input cannot be used. The text becomes the reason in `quarantine`."""


def loaded(value: bytes) -> Any:
    """The JSON in `value`, not deeper than `DEPTH_MAX`. Its strings may still contain characters that are not
    Unicode."""
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
        raise WrongField(f"the payload has a number of {len(digits)} digits; the limit is {DIGITS_MAX}")
    return int(digits)


def is_deeper(body: Any, limit: int) -> bool:
    """Whether lists and objects are nested deeper than `limit`. Not recursive, because it protects recursive code."""
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
    """`longest` is in characters."""
    value = body.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, str) or (required and not value):
        raise WrongField(f"{name} must be a text, not {short(value)}")
    _refuse_no_unicode(name, value)
    if longest is not None and len(value) > longest:
        raise WrongField(f"{name} has {len(value)} characters; the limit is {longest}")
    return value


def number(body: Mapping[str, Any], name: str, low: int, high: int, *, required: bool = False) -> int | None:
    value = body.get(name)
    if value is None and not required:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise WrongField(f"{name} must be a whole number from {low} to {high}, not {short(value)}")
    return value


def json_text(body: Mapping[str, Any], name: str) -> str | None:
    """Any value, serialized again. NaN and infinities, which JSON does not have, become null."""
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
    """The number written in ASCII digits, or None if the text is something else or the number is out of bounds."""
    if not digits.isascii() or not digits.isdigit() or len(digits) > len(str(high)):
        return None
    found = int(digits)
    return found if low <= found <= high else None


def short(value: Any) -> str:
    """A value for use in a sentence. It must come from `loaded`, which bounds its size."""
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def in_short(reasons: Sequence[str]) -> str:
    """The problems of a record in one sentence. A record may have thousands of parts, so only the first are listed."""
    more = len(reasons) - _REASONS_MAX
    return "; ".join(reasons[:_REASONS_MAX]) + (f"; and {more} more" if more > 0 else "")


def _refuse_no_unicode(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise WrongField(f"{name} contains characters that are not Unicode: {error.reason}") from error
