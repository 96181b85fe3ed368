"""Converts reports of devices and brokers from log records to rows of `action_events`. Pure: no table, no clock.

A record that does not follow docs/protocols.md becomes a row of `quarantine` with the reason and its bytes. The engine
judges whether a report makes sense for its action.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from actions import uplink_status
from actions.engine.json_fields import (
    ACTION_ID_MAX,
    FACT_MAX,
    INT32_MAX,
    INT64_MAX,
    TIME_MAX_US,
    WrongField,
    in_short,
    json_text,
    number,
    object_of,
    short,
    text,
    whole_number,
)

RECEIPTS = "$receipts"
STATUS_FILTER = "devices/+/status"
STATUS_BYTES_MAX = 64 * 1024
DEVICE_ID_BYTES_MAX = 1_024
"""The engine sends nothing to a device with a longer id."""
ONLINE = "ONLINE"
"""The status of a device after a start, about itself and not about an action."""

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parsed:
    events: tuple[Row, ...]
    quarantine: tuple[Row, ...]
    foreign: int
    """Receipts of records that the engine did not publish: no target waits for them."""


def parse(
    records: Iterable[Mapping[str, Any]],
    *,
    tenant: str,
    recorded_us: int,
    uplink: uplink_status.UplinkTopic | None = None,
) -> Parsed:
    """Rows for records in the canonical schema, `timestamp` as Unix microseconds. `uplink` is the topic of devices that
    use uplink's format."""
    events: list[Row] = []
    quarantine: list[Row] = []
    foreign = 0
    for record in records:
        common = _common(record, tenant, recorded_us)
        device_id = None if uplink is None else uplink.device_of(record["topic"])
        try:
            if device_id is not None:
                said_in_turn, wrong = _uplink(record, device_id)
                events += [{**common, "event_id": f"{common['event_id']}{id_}", **said} for id_, said in said_in_turn]
                if wrong:
                    raise WrongField(in_short(wrong))
                continue
            said = _receipt(record) if record["topic"] == RECEIPTS else _status(record)
        except WrongField as error:
            quarantine.append(quarantined(record, str(error), tenant=tenant, recorded_us=recorded_us))
            continue
        if said is None:
            foreign += 1
            continue
        events.append({**common, **said})
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


def quarantined(record: Mapping[str, Any], reason: str, *, tenant: str, recorded_us: int) -> Row:
    """The row of `quarantine` for a record that cannot be used."""
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
        raise WrongField(f"the topic {short(record['topic'])} is not devices/<id>/status")
    _refuse_too_large(record)
    _refuse_long_id(levels[1])
    body = object_of(record["value"])
    about_action = body.get("state") != ONLINE
    return {
        "source": "status",
        "device_id": levels[1],
        "action_id": text(body, "action_id", required=True, longest=ACTION_ID_MAX) if about_action else None,
        "attempt": number(body, "attempt", 1, INT32_MAX, required=True) if about_action else None,
        "state": text(body, "state", required=True),
        "boot": text(body, "boot"),
        "seq": number(body, "seq", 0, INT64_MAX),
        "progress": number(body, "progress", 0, 100),
        "message": text(body, "message"),
        "result": json_text(body, "result"),
        "version": text(body, "version", longest=FACT_MAX),
        "product": text(body, "product", longest=FACT_MAX),
        "hardware": text(body, "hardware", longest=FACT_MAX),
        "device_time": number(body, "ts", 0, TIME_MAX_US),
    }


def _uplink(record: Mapping[str, Any], device_id: str) -> tuple[list[tuple[str, Row]], list[str]]:
    """For each valid response the suffix of its event id and its columns; then the problems of the others."""
    _refuse_too_large(record)
    _refuse_long_id(device_id)
    found, wrong = uplink_status.responses(record["value"])
    rows = []
    for response in found:
        # The first response has the id of a record with a single status.
        said: Row = {"source": "status", "device_id": device_id, "boot": None, "result": None, **response.said}
        rows.append((f"/{response.index}" if response.index else "", said))
    return rows, wrong


def _refuse_too_large(record: Mapping[str, Any]) -> None:
    if len(record["value"]) > STATUS_BYTES_MAX:
        raise WrongField(f"the status has {len(record['value'])} bytes; the limit is {STATUS_BYTES_MAX}")


def _refuse_long_id(device_id: str) -> None:
    size_bytes = len(device_id.encode())
    if size_bytes > DEVICE_ID_BYTES_MAX:
        raise WrongField(f"the device's id has {size_bytes} bytes; the limit is {DEVICE_ID_BYTES_MAX}")


def _receipt(record: Mapping[str, Any]) -> Row | None:
    if len(record["value"]) > STATUS_BYTES_MAX:
        return None  # The engine's keys are never this long.
    body = object_of(record["value"])
    key = text(body, "idempotency_key")
    levels = key.split("/") if key else []
    cancel = len(levels) == 4 and levels[3] == "cancel"
    if not (len(levels) == 3 or cancel) or not levels[0] or not levels[1] or len(levels[0]) > ACTION_ID_MAX:
        return None
    attempt = whole_number(levels[2], 1, INT32_MAX)
    if attempt is None:
        return None
    return {
        "source": "receipt",
        "device_id": text(body, "client_id", required=True),
        "action_id": levels[0],
        "attempt": attempt,
        "state": "CANCEL_DELIVERED" if cancel else "DELIVERED",
        "command_partition": number(body, "partition", 0, INT32_MAX, required=True),
        "command_offset": number(body, "offset", 0, INT64_MAX, required=True),
    }
