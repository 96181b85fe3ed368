"""Fields of JSON that devices and brokers sent, checked one by one; a wrong one is named with what it should be."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
TIME_MAX_US = 253_402_300_799 * 1_000_000
"""The end of year 9999, where timestamps of Spark and Arrow end."""


class WrongField(ValueError):
    """Why what was sent cannot be used; becomes the reason in `quarantine`."""


def loaded(value: bytes) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise WrongField(f"the payload is not JSON: {error}") from error


def object_of(value: bytes) -> Mapping[str, Any]:
    body = loaded(value)
    if not isinstance(body, dict):
        raise WrongField("the payload is not a JSON object")
    return body


def text(body: Mapping[str, Any], name: str, *, required: bool = False) -> str | None:
    value = body.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, str) or (required and not value):
        raise WrongField(f"{name} must be a text, not {short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise WrongField(f"{name} has characters that are not Unicode: {error.reason}") from error
    return value


def number(body: Mapping[str, Any], name: str, low: int, high: int, *, required: bool = False) -> int | None:
    value = body.get(name)
    if value is None and not required:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise WrongField(f"{name} must be a whole number from {low} to {high}, not {short(value)}")
    return value


def short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
