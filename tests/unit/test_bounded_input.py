"""Bytes from outside stay small when they are read: each reader has limits, and says which one was reached.

Without the limit a test fails by its memory, its time, or because nothing is refused.
"""

from __future__ import annotations

import gzip
import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import cbor2
import pytest
from support.sparkplug_bytes import block, metric

from actions import inventory_csv
from actions.inventory_csv import read_inventory
from actions.rollout_file import read_rollout
from broker_edge.errors import SettingsError
from pipelines.settings.yaml_file import Section, read_yaml
from pipelines.silver.cbor_scan import is_over
from pipelines.silver.payloads import DEFAULT_LIMITS, PayloadError, PayloadLimits, cbor_to_json, sparkplug_to_json

MB = 1_000_000


def head(major: int, value: int) -> bytes:
    return bytes([major << 5 | 27]) + value.to_bytes(8, "big")


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def refused(read: Callable[[], object], says: str) -> None:
    with pytest.raises(PayloadError, match=says):
        read()


def test_a_repeated_text_of_escapes_is_counted_as_it_is_written() -> None:
    """22 KB of CBOR became 2 MB of JSON: a control character takes six."""
    payload = b"\xd9\x01\x00" + head(4, 16) + cbor2.dumps("\x01" * 22_000) + b"\xd8\x19\x00" * 15
    refused(lambda: cbor_to_json(payload), "it repeats its strings too often")


def test_a_payload_of_empty_arrays_is_refused_before_they_are_made() -> None:
    payload = head(4, 4_000_000) + b"\x80" * 4_000_000
    peak = peak_bytes(lambda: refused(lambda: cbor_to_json(payload), r"more than 1,000,000 values \(nodes_max"))
    assert peak < MB


def test_arrays_of_unknown_length_and_of_maps_are_counted_too() -> None:
    inner = b"\x9f" + b"\xa1\x01\x02" * 500_000 + b"\xff"
    assert is_over(inner, 1_000_000)
    assert not is_over(inner, 2_000_000)
    assert not is_over(cbor2.dumps(["x" * 5_000, b"y" * 5_000, {"a": 1.5}]), 10)


def test_a_sparkplug_array_is_counted_before_it_is_made() -> None:
    payload = metric("a", 22, block(16, b"\x01" * 4_000_000))
    peak = peak_bytes(lambda: refused(lambda: sparkplug_to_json(payload), r"more than 1,000,000 values \(nodes_max"))
    assert peak < 20 * MB
    many = b"".join(metric(f"m{n}", 23, block(16, struct.pack("<300h", *range(300)))) for n in range(4_000))
    refused(lambda: sparkplug_to_json(many), "nodes_max")


def test_a_sparkplug_payload_with_too_many_metrics_is_refused() -> None:
    many = b"".join(metric(f"m{n}", 11, b"") for n in range(10_001))
    refused(lambda: sparkplug_to_json(many), "it has more than 10000 metrics")


def test_no_reader_of_payloads_decompresses() -> None:
    """A bomb of 100 KB stands for 100 MB. Bytes in a format that is not theirs stay bytes or are refused."""
    bomb = gzip.compress(bytes(100 * MB))
    assert len(json.loads(cbor_to_json(cbor2.dumps({"z": bomb})))["z"]) < 2 * len(bomb)
    assert len(sparkplug_to_json(metric("z", 17, block(16, bomb)) + block(5, bomb))) < 4 * len(bomb)
    for read in (cbor_to_json, sparkplug_to_json):
        with pytest.raises(PayloadError):
            read(bomb)


def test_sparkplug_templates_and_data_sets_in_one_another_are_not_opened() -> None:
    inner = b""
    for _ in range(2_000):
        inner = block(2, inner)
    assert sparkplug_to_json(metric("t", 19, block(18, inner)) + metric("d", 16, block(17, inner)))


@pytest.mark.parametrize(
    ("read", "payload"),
    [
        (cbor_to_json, cbor2.dumps(["x" * 100] * 20)),
        (sparkplug_to_json, metric("a", 12, block(15, b"\x01" * 200))),
    ],
)
def test_the_length_of_the_json_has_a_limit(read: Callable[[bytes, PayloadLimits], str], payload: bytes) -> None:
    limits = PayloadLimits(json_bytes_max=1_000)
    refused(lambda: read(payload, limits), r"more than 1,000 bytes \(json_bytes_max of its schema\)")
    assert read(payload, DEFAULT_LIMITS)


def test_depth_and_values_of_cbor_have_limits_of_their_schema() -> None:
    refused(lambda: cbor_to_json(b"\x81" * 5 + b"\x00", PayloadLimits(depth_max=4)), r"deeper than 4 \(depth_max")
    refused(
        lambda: cbor_to_json(cbor2.dumps([0] * 50), PayloadLimits(nodes_max=50)), r"more than 50 values \(nodes_max"
    )
    assert cbor_to_json(cbor2.dumps([0] * 49), PayloadLimits(nodes_max=50))


@pytest.mark.parametrize("tagged", ["!!timestamp x", "!!bool x", "!!int ''", "!!float ''"])
def test_a_rollout_file_with_a_tag_that_does_not_fit_is_refused(tmp_path: Path, tagged: str) -> None:
    path = tmp_path / "rollout.yaml"
    path.write_text(f"id: {tagged}\n")
    with pytest.raises(SettingsError, match="has a tag such as !!bool before a value of another type: remove it"):
        read_rollout(path)


def test_depth_of_yaml_is_refused_before_it_costs_time(tmp_path: Path) -> None:
    path = tmp_path / "deep.yaml"
    path.write_text("id: " + "[" * 4_000 + "]" * 4_000)
    began_s = time.process_time()
    with pytest.raises(SettingsError, match="it is nested too deeply"):
        read_rollout(path)
    with pytest.raises(SettingsError, match="is nested deeper than 100"):
        read_yaml(path, Anything)
    assert time.process_time() - began_s < 3.0, "it took 20 s"


class Anything(Section):
    a: object = None
    b: object = None


BOMB = "a: &a0 [x, x]\nb:\n" + "".join(f"  - &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "more than 100,000 keys and values, with its aliases written out: write fewer aliases"),
        ("a: &a [*a]\n", ":1: an alias stands within its own anchor"),
        ("a: " + "[" * 101 + "]" * 101, "is nested deeper than 100"),
        ("a: " + "[" * 20_000, "is nested deeper than 100|is not YAML"),
        ("a: 2026-99-99\n", "is not YAML: a value in it is not of its type"),
        ("a: !!timestamp x\n", "is not YAML: a value in it is not of its type"),
        ("a: !!bool x\n", "is not YAML: a value in it is not of its type"),
        ("a: !!int ''\n", "is not YAML: a value in it is not of its type"),
        ("a: " + "9" * 5_000, ":1 has a number of more than 1000 characters"),
    ],
)
def test_a_settings_file_that_stands_for_too_much_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError, match=says):
        read_yaml(path, Anything)


def test_a_settings_file_may_have_aliases_and_must_be_utf_8_and_short(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("a: &x [1, 2]\nb: [*x, *x]\n")
    assert read_yaml(path, Anything).b == [[1, 2], [1, 2]]
    path.write_bytes(b"a: \xff\n")
    with pytest.raises(SettingsError, match="is not UTF-8"):
        read_yaml(path, Anything)
    path.write_bytes(b"#" * (8 << 20) + b"\n")
    with pytest.raises(SettingsError, match="the limit is 8,388,608"):
        read_yaml(path, Anything)


def test_an_inventory_has_a_limit_of_rows_columns_and_field_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inventory_csv, "ROWS_MAX", 5)
    path = tmp_path / "fleet.csv"
    for rows, says in (("ab/cde", ":7: nothing was written: it has more than 5 devices"), ("abcdef", ":7: nothing")):
        path.write_text("device_id\n" + "".join(f"{one}\n" for one in rows))
        with pytest.raises(SettingsError, match=says):
            read_inventory(path)
    path.write_text("device_id," + ",".join(f"label.l{n}" for n in range(1_000)) + "\n")
    with pytest.raises(SettingsError, match="it has 1,001 columns; the limit is 1,000"):
        read_inventory(path)
    path.write_text("device_id\n" + "x" * 200_000 + "\n")
    with pytest.raises(SettingsError, match="this is not CSV: field larger than field limit"):
        read_inventory(path)
