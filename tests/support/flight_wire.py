"""The wire format for the in-memory server: the schema, JSON bodies and their checks, refusals.

It follows docs/protocols.md, section 3, and holds no records and no sockets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from support.memory_log import Group, Record

JsonObject = dict[str, Any]

TOPICS_A_RESULT = 1_000
BATCH_ROWS = 16_384
BATCH_ROWS_MAX = 65_536

SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("log_id", pa.string()),
        ("epoch", pa.int64()),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("client_id", pa.string()),
    ]
)

_STATUS: dict[str, type[Exception]] = {
    "invalid_argument": pa.ArrowInvalid,
    "not_found": pa.ArrowKeyError,
    "unavailable": flight.FlightUnavailableError,
    "stopped": flight.FlightUnavailableError,
    "internal": flight.FlightInternalError,
}


def refusal(code: str, message: str, **more: Any) -> Exception:
    """The exception that sends `{"error": code, …}` to the client."""
    body = json.dumps({"error": code, "message": message, **more})
    kind: type[Exception] = _STATUS.get(code, flight.FlightServerError)
    return kind(body)


def to_batch(records: Sequence[Record], partition: int, log_id: str) -> pa.RecordBatch:
    """Records in the canonical schema."""
    headers = [None if r.headers is None else [{"key": k, "value": v} for k, v in r.headers] for r in records]
    columns = [
        [r.key for r in records],
        [r.value for r in records],
        [r.topic for r in records],
        [partition] * len(records),
        [r.offset for r in records],
        [r.timestamp_us for r in records],
        [1] * len(records),
        headers,
        [log_id] * len(records),
        [r.epoch for r in records],
        [r.qos for r in records],
        [r.retain for r in records],
        [r.client_id for r in records],
    ]
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def json_object(text: bytes, what: str, required: Sequence[str], optional: Sequence[str]) -> JsonObject:
    """Decodes a JSON object and refuses missing or unknown fields by name."""
    try:
        body = json.loads(text or b"{}")
    except ValueError as error:
        raise refusal("invalid_argument", f"{what} is not JSON: {error}", field="") from error
    if not isinstance(body, dict):
        raise refusal("invalid_argument", f"{what} is not a JSON object", field="")
    for name in body:
        if name not in (*required, *optional):
            raise refusal("invalid_argument", f"{what} has the unknown field `{name}`", field=name)
    for name in required:
        if name not in body:
            raise refusal("invalid_argument", f"{what} lacks the field `{name}`", field=name)
    return body


def next_offset(offset: int) -> pa.Buffer:
    return pa.py_buffer(json.dumps({"next": offset}).encode())


def group_json(group: Group) -> JsonObject:
    numbers = sorted({*group.initial, *group.committed, *group.scanned})
    partitions = {
        str(n): {"initial": group.initial.get(n), "committed": group.committed.get(n), "scanned": group.scanned.get(n)}
        for n in numbers
    }
    return {"group": group.name, "reader_epoch": group.reader_epoch, "partitions": partitions}
