"""What devices and brokers say about actions, from log records to rows of `action_events`. Pure: no table, no clock.

A record that does not say what docs/protocols.md asks for becomes a row of `quarantine` with the reason, and its bytes.
Whether a report makes sense for its action is the engine's to judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

RECEIPTS = "$receipts"
STATUS_FILTER = "devices/+/status"
STATUS_BYTES_MAX = 64 * 1024
ONLINE = "ONLINE"
"""What a device says after a start, about itself and no action."""

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1
_TIME_MAX_US = 253_402_300_799 * 1_000_000  # The end of year 9999, where timestamps of Spark and Arrow end.

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parsed:
    events: tuple[Row, ...]
    quarantine: tuple[Row, ...]
    foreign: int
    """Receipts of records that were not published by the engine: nobody waits for them."""


class _Wrong(ValueError):
    """Why a record cannot be used; becomes the reason."""


def parse(records: Iterable[Mapping[str, Any]], *, tenant: str, recorded_us: int) -> Parsed:
    """Rows for records in the canonical schema, `timestamp` as Unix microseconds."""
    events: list[Row] = []
    quarantine: list[Row] = []
    foreign = 0
    for record in records:
        try:
            said = _receipt(record) if record["topic"] == RECEIPTS else _status(record)
        except _Wrong as error:
            quarantine.append(_quarantined(record, str(error), tenant, recorded_us))
            continue
        if said is None:
            foreign += 1
            continue
        events.append({**_common(record, tenant, recorded_us), **said})
    return Parsed(tuple(events), tuple(quarantine), foreign)


def _common(record: Mapping[str, Any], tenant: str, recorded_us: int) -> Row:
    place = {name: record[name] for name in ("log_id", "partition", "offset", "epoch")}
    return {
        **place,
        "event_id": "/".join(str(value) for value in place.values()),
        "tenant": tenant,
        "at": record["timestamp"],
        "recorded_at": recorded_us,
    }


def _quarantined(record: Mapping[str, Any], reason: str, tenant: str, recorded_us: int) -> Row:
    names = ("topic", "key", "value", "log_id", "partition", "offset", "epoch")
    return {
        **{name: record[name] for name in names},
        "tenant": tenant,
        "pipeline": "status",
        "reason": reason,
        "at": record["timestamp"],
        "quarantined_at": recorded_us,
    }


def _status(record: Mapping[str, Any]) -> Row:
    levels = record["topic"].split("/")
    if len(levels) != 3 or levels[0] != "devices" or levels[2] != "status":
        raise _Wrong(f"the topic {record['topic']} is not devices/<id>/status")
    if len(record["value"]) > STATUS_BYTES_MAX:
        raise _Wrong(f"the status has {len(record['value'])} bytes; {STATUS_BYTES_MAX} are the limit")
    body = _object(record["value"])
    result = body.get("result")
    about_action = body.get("state") != ONLINE
    return {
        "source": "status",
        "device_id": levels[1],
        "action_id": _text(body, "action_id", required=True) if about_action else None,
        "attempt": _number(body, "attempt", 1, _INT32_MAX, required=True) if about_action else None,
        "state": _text(body, "state", required=True),
        "boot": _text(body, "boot"),
        "seq": _number(body, "seq", 0, _INT64_MAX),
        "progress": _number(body, "progress", 0, 100),
        "message": _text(body, "message"),
        "result": None if result is None else json.dumps(result, ensure_ascii=False),
        "version": _text(body, "version"),
        "device_time": _number(body, "ts", 0, _TIME_MAX_US),
    }


def _receipt(record: Mapping[str, Any]) -> Row | None:
    body = _object(record["value"])
    key = _text(body, "idempotency_key")
    levels = key.split("/") if key else []
    cancel = len(levels) == 4 and levels[3] == "cancel"
    if not (len(levels) == 3 or cancel) or not levels[2].isascii() or not levels[2].isdigit():
        return None
    attempt = int(levels[2])
    if not levels[0] or not levels[1] or not 1 <= attempt <= _INT32_MAX:
        return None
    return {
        "source": "receipt",
        "device_id": _text(body, "client_id", required=True),
        "action_id": levels[0],
        "attempt": attempt,
        "state": "CANCEL_DELIVERED" if cancel else "DELIVERED",
        "command_partition": _number(body, "partition", 0, _INT32_MAX, required=True),
        "command_offset": _number(body, "offset", 0, _INT64_MAX, required=True),
    }


def _object(value: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise _Wrong(f"the payload is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise _Wrong("the payload is not a JSON object")
    return body


def _text(body: Mapping[str, Any], name: str, *, required: bool = False) -> str | None:
    value = body.get(name)
    if value is None and not required:
        return None
    if not isinstance(value, str) or (required and not value):
        raise _Wrong(f"{name} must be a text, not {_short(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise _Wrong(f"{name} has characters that are not Unicode: {error.reason}") from error
    return value


def _number(body: Mapping[str, Any], name: str, low: int, high: int, *, required: bool = False) -> int | None:
    value = body.get(name)
    if value is None and not required:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise _Wrong(f"{name} must be a whole number from {low} to {high}, not {_short(value)}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
