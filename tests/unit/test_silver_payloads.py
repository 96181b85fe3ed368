"""CBOR and Sparkplug B as JSON: every value that JSON can express, a reason for all others, and no crash on noise."""

from __future__ import annotations

import contextlib
import datetime
import json
import struct
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sparkplug_bytes import block, double, metric, number, varint

from pipelines.silver.payloads import PayloadError, cbor_to_json, sparkplug_to_json


def sparkplug(payload: bytes) -> Any:
    return json.loads(sparkplug_to_json(payload))


def test_a_sparkplug_payload_gives_its_metrics_by_name() -> None:
    payload = number(1, 1_700_000_000_000) + number(3, 17) + block(4, b"uuid") + block(5, b"\x00\x01")
    payload += metric("Temperature", 10, double(21.5))
    payload += metric("Pressure", 9, varint(12 << 3 | 5) + struct.pack("<f", 0.5))
    payload += metric("Below", 3, number(10, 2**32 - 5))
    payload += metric("Small", 1, number(10, 0xFF))
    payload += metric("Far", 4, number(11, 2**64 - 2))
    payload += metric("Count", 8, number(11, 2**63 + 1))
    payload += metric("Running", 11, number(14, 1))
    payload += metric("Mode", 12, block(15, "auto °".encode()))
    payload += metric("Raw", 17, block(16, b"\xff"))
    payload += metric("Levels", 23, block(16, struct.pack("<3h", 1, -2, 3)))
    payload += metric("Nan", 10, double(float("nan")))
    payload += metric("Gone", 10, number(7, 1))
    payload += metric(None, 10, double(1.0), alias=7)
    payload += metric("", 11, number(14, 1), alias=2**64 - 1)
    payload += metric("alias_7", 11, number(14, 0), alias=3)
    found = sparkplug(payload)
    metrics = found.pop("metrics")
    assert found.pop("aliases") == {"7": 1.0, "18446744073709551615": True}
    assert found == {"timestamp": 1_700_000_000_000, "seq": 17, "uuid": "uuid", "body": "AAE="}
    assert metrics == {
        "Temperature": 21.5,
        "Pressure": 0.5,
        "Below": -5,
        "Small": -1,
        "Far": -2,
        "Count": 2**63 + 1,
        "Running": True,
        "Mode": "auto °",
        "Raw": "/w==",
        "Levels": [1, -2, 3],
        "Nan": None,
        "Gone": None,
        "alias_7": False,
    }


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"\x12\x05ab", "it ends within field 2"),
        (b"\x80", "it ends within a number"),
        (b"\xff" * 11, "a number is longer than 64 bits"),
        (b"\x0b", "wire type 3 does not exist in protobuf"),
        (block(2, b""), "a metric has neither name nor alias"),
        (block(2, block(1, b"\xff")), "a text is not UTF-8"),
        (block(2, block(1, b"a") + number(13, 1)), "field 13 of a metric has wire type 0"),
        (block(2, block(1, b"a") + number(4, 23) + block(16, b"abc")), "an array of data type 23 has 3 bytes"),
    ],
)
def test_what_is_no_sparkplug_says_why(payload: bytes, says: str) -> None:
    with pytest.raises(PayloadError, match=f"the payload is not Sparkplug B: {says}"):
        sparkplug_to_json(payload)


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        (metric("Flow", 3, number(10, 1)) + metric("Flow", 3, number(10, 2)), "Flow"),
        (metric(None, 3, number(10, 1), alias=7) + metric("", 3, number(10, 2), alias=7), "with alias 7"),
        (metric("x" * 300, 3, b"") * 2, "x" * 100),
        (metric("a\n\x1b[2J", 3, b"") * 2, r"a\\n\\x1b\[2J"),
    ],
)
def test_a_metric_that_comes_twice_is_said_and_not_overwritten(metrics: bytes, shown: str) -> None:
    with pytest.raises(PayloadError, match=f"the payload repeats a metric: it has the metric {shown} twice"):
        sparkplug_to_json(metrics)


@given(st.binary(max_size=200))
def test_noise_is_read_or_refused(payload: bytes) -> None:
    for read in (sparkplug_to_json, cbor_to_json):
        with contextlib.suppress(PayloadError):
            json.loads(read(payload))


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_what_json_can_hold_comes_through_cbor_as_it_is(value: Any) -> None:
    assert json.loads(cbor_to_json(cbor2.dumps(value))) == value


def test_what_only_cbor_has_becomes_what_json_can_hold() -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    value = {1: b"\x00\xff", "at": at, "nan": float("nan"), "none": cbor2.undefined, "tag": cbor2.CBORTag(4711, [1])}
    assert json.loads(cbor_to_json(cbor2.dumps(value))) == {
        "1": "AP8=",
        "at": "2026-01-02T03:04:05+00:00",
        "nan": None,
        "none": None,
        "tag": [1],
    }


@pytest.mark.parametrize(
    "payload", [b"", b"\xa1", cbor2.dumps(1) + b"\x00", b"\x9f" * 5_000, b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff"]
)
def test_what_is_no_cbor_says_so(payload: bytes) -> None:
    with pytest.raises(PayloadError, match=r"the payload is (not )?CBOR"):
        cbor_to_json(payload)
