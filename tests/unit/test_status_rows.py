"""Records of devices and brokers become rows of action_events, or rows of quarantine with a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.status_rows import parse
from sinks.rows import arrow_of
from sinks.tables import ACTION_EVENTS, QUARANTINE

STATUS = {"action_id": "a1", "attempt": 1, "state": "SUCCEEDED", "boot": "b1", "seq": 3, "ts": 1_800_000_000_000_000}
RECEIPT = {
    "client_id": "d1",
    "topic": "devices/d1/actions",
    "key": "d1",
    "idempotency_key": "a1/d1/1",
    "partition": 2,
    "name": "control-1",
    "offset": 41,
    "time_us": 5,
}


def record(value: bytes, topic: str = "devices/d1/status") -> dict[str, Any]:
    place = {"log_id": "log", "partition": 5, "offset": 7, "epoch": 2}
    return {**place, "topic": topic, "key": b"d1", "value": value, "timestamp": 99}


def parsed(body: Any, topic: str = "devices/d1/status") -> Any:
    value = body if isinstance(body, bytes) else json.dumps(body).encode()
    return parse([record(value, topic)], tenant="default", recorded_us=100)


def test_status_becomes_an_event_that_names_its_place() -> None:
    (row,) = parsed({**STATUS, "progress": 100, "result": {"x": 1}}).events
    assert (row["event_id"], row["source"], row["device_id"]) == ("log/5/7/2", "status", "d1")
    assert (row["state"], row["seq"], row["at"], row["recorded_at"]) == ("SUCCEEDED", 3, 99, 100)
    assert row["result"] == '{"x": 1}'


@pytest.mark.parametrize(("suffix", "state"), [("", "DELIVERED"), ("/cancel", "CANCEL_DELIVERED")])
def test_receipt_becomes_an_event_with_the_place_of_the_command(suffix: str, state: str) -> None:
    (row,) = parsed({**RECEIPT, "idempotency_key": f"a1/d1/2{suffix}"}, "$receipts").events
    assert (row["source"], row["action_id"], row["device_id"], row["attempt"]) == ("receipt", "a1", "d1", 2)
    assert (row["state"], row["command_partition"], row["command_offset"]) == (state, 2, 41)


@pytest.mark.parametrize("key", [None, "", "mine", "a/b", "a/b/x", "a/b/1/2", "a/b/0", "/b/1", "a/b/1/cancel/x"])
def test_receipt_of_what_the_engine_did_not_publish_is_left_alone(key: str | None) -> None:
    result = parsed({**RECEIPT, "idempotency_key": key}, "$receipts")
    assert (result.events, result.quarantine, result.foreign) == ((), (), 1)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff\xfe", "the payload is not JSON"),
        (b"", "the payload is not JSON"),
        (b"[" * 60_000, "the payload is not JSON"),
        (b"[" * 100_000, "the status has 100000 bytes; the limit is 65536"),
        ([], "the payload is not a JSON object"),
        ({**STATUS, "action_id": None}, "action_id must be a text, not None"),
        ({**STATUS, "attempt": "1"}, "attempt must be a whole number from 1 to 2147483647, not '1'"),
        ({**STATUS, "attempt": True}, "attempt must be a whole number"),
        ({**STATUS, "seq": 2**63}, "seq must be a whole number"),
        ({**STATUS, "progress": 101}, "progress must be a whole number from 0 to 100, not 101"),
        ({**STATUS, "ts": 1e9}, "ts must be a whole number"),
        ({**STATUS, "message": "\ud800"}, "message contains characters that are not Unicode"),
        ({}, "action_id must be a text"),
    ],
)
def test_status_that_breaks_the_protocol_is_quarantined_with_reason_and_bytes(body: Any, reason: str) -> None:
    result = parsed(body)
    (row,) = result.quarantine
    assert result.events == ()
    assert row["reason"].startswith(reason)
    assert row["value"] == (body if isinstance(body, bytes) else json.dumps(body).encode())


@given(st.dictionaries(st.sampled_from([*STATUS, "progress", "message", "result"]), st.from_type(object) | st.none()))
def test_whatever_a_device_sends_fits_the_tables(body: dict[str, Any]) -> None:
    value = json.dumps({**STATUS, **body}, default=repr).encode()
    result = parse([record(value)], tenant="default", recorded_us=100)
    assert len(result.events) + len(result.quarantine) == 1
    arrow_of(result.events, ACTION_EVENTS)
    arrow_of(result.quarantine, QUARANTINE)


def test_device_that_only_says_that_it_is_online_needs_no_action() -> None:
    (row,) = parsed({"state": "ONLINE", "boot": "b1", "seq": 0, "version": "1.2"}).events
    assert (row["state"], row["action_id"], row["attempt"], row["version"]) == ("ONLINE", None, None, "1.2")
