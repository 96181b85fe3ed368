"""Every reader of bytes from outside ends in a value or in its own error, soon, and with output in proportion.

The inputs are changed documents, pieces of their syntax, and noise. HEADWATER_STEPS is the number of inputs by reader
(default 150); a finding becomes a test with a name beside the other tests of its reader. `make fuzz` checks the same
readers on inputs that coverage guides, and what it found is read here again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from support.signing import Maker
from support.sparkplug_bytes import block, double, metric, number

from actions.inventory_csv import read_inventory
from actions.rollout_file import EXAMPLE, read_rollout
from actions.status_rows import parse
from actions.uplink_status import TOPIC, UplinkTopic
from broker_edge.artifacts import ArtifactError, Manifest
from broker_edge.errors import SettingsError
from broker_edge.policy import PolicyError, Root, chain_bytes, parse_chain
from broker_edge.policy.targets import Policy
from pipelines.settings import Settings
from pipelines.settings.yaml_file import Section, read_yaml
from pipelines.silver.payloads import PayloadError, cbor_to_json, sparkplug_to_json
from pipelines.silver.rules import Rules
from pipelines.silver.schema import MessageSchema

STEPS = int(os.environ.get("HEADWATER_STEPS", "150"))
SOON_S = 5.0
"""Of processor time: other tests run beside these."""
OUTPUT_TIMES, OUTPUT_FREE = 100, 8 * 1024
"""The longest text that a payload may become: a float of two bytes has 24 characters, a control character six, and a
text may be repeated to 16 times the payload."""

MAKER = Maker()
MANIFEST = MAKER.manifest("2.0.0", floor="1.5.0")
CONF = Path(__file__).parents[2] / "conf"
CORPUS = Path(__file__).parents[2] / "broker_edge/core/fuzz/corpus"

FAST = settings(
    max_examples=STEPS,
    deadline=None,
    database=None,
    phases=[Phase.generate],  # A slow input would be made smaller for minutes; it is shown as it is.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

PIECES = {
    "json": [
        b'"\\ud800"', b"1e999", b"9" * 5_000, b"[" * 3_000, b'{"a":' * 3_000, b"NaN", b"-Infinity", b"null", b"\x00",
        b'{"a":1,"a":2}', b"\xff", b"\xef\xbb\xbf", b"2147483648", b"-1", b"true", b"[]", b"{}", b"1.5", b'"\\u0000"',
    ],
    "yaml": [
        b"&a [*a]", b"*a", b"!!python/object/apply:os.system [x]", b"!!binary x", b"!!set {a}", b"2026-99-99",
        b"1_0:99",
        b"? [a]\n: b\n", b"<<: [1]\n", b"<<: *a\n", b"---\n", b"\t", b"%YAML 9.9\n", b"[" * 2_000, b"9" * 5_000,
        b".inf",
        b"!!timestamp x", b"!!int x", b"!!float x", b"{a: {b: [c]}}", b"|\n x", b"\xff", b"\x00", b"\xc2\x85",
        b"0o9", b"0b",
        b"!!omap [a]", b"!!pairs [a]", b"- - - -\n", b"=", b"!!merge x", b"!!bool x", b"!!null x", b"0x_", b"+.",
    ],
    "csv": [
        b'"', b'""', b",", b"\n", b"\r", b"\x00", b"\xff", b"label.", b"label.x", b"device_id", b"x" * 140_000,
        b"../../etc",
        b"Europe", b";", b"\xef\xbb\xbf", "e\u0301\u202e\ud7ff".encode(), b"time_zone", b"UTC\x00",
        b"/etc/passwd", b"x" * 300,
    ],
    "bytes": [
        b"\xd8\x1c", b"\xd8\x1d\x00", b"\xd9\x01\x00", b"\xd8\x19\x00", b"\xc2", b"\xc4\x82", b"\xc5\x82",
        b"\xd8\x1e\x82",
        b"\x9f", b"\xbf", b"\x5f", b"\x7f", b"\xff", b"\xa1", b"\x81", b"\x9b" + b"\xff" * 8, b"\x5b" + b"\x7f" * 8,
        b"\xc0\x64", b"\xc1\xfb", b"\xd8\x23", b"\xd8\x24", b"\xd8\x25\x50", b"\xd9\x01\x04", b"\xd9\x01\x05",
        b"\xd8\x34",
        b"\xd8\x36", b"\xd9\x01\x02", b"\xf9\x7c\x00", b"\xfb", b"\xf8\x18", b"\xd9\xd9\xf7", b"\xc6",
        b"\xd8\x64", b"\xd9\x03\xec",
        b"\x12", b"\x12\x02", b"\x20\x16", b"\x82\x01", b"\x8a\x01", b"\xff" * 10, b"\x80" * 12,
        b"\x92\x01\x03abc", b"\x0a\x00",
    ],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reader:
    read: Callable[[Path, bytes], Any]
    honest: tuple[bytes, ...]
    pieces: str
    errors: tuple[type[Exception], ...]


def in_file(read: Callable[[Path], Any]) -> Callable[[Path, bytes], Any]:
    def of_bytes(folder: Path, payload: bytes) -> Any:
        path = folder / "input"
        path.write_bytes(payload)
        return read(path)

    return of_bytes


def status(topic: str) -> Callable[[Path, bytes], Any]:
    def rows(_: Path, payload: bytes) -> Any:
        record = {
            "topic": topic, "value": payload, "key": b"x", "log_id": "l", "partition": 0, "offset": 1, "epoch": 1,
            "timestamp": 5, "client_id": "x",
        }  # fmt: skip
        found = parse([record], tenant="t", recorded_us=9, uplink=UplinkTopic(TOPIC))
        assert len(found.events) + len(found.quarantine) + found.foreign >= 1
        return None

    return rows


def yaml_of(model: type[Section]) -> Callable[[Path, bytes], Any]:
    return in_file(lambda path: read_yaml(path, model))


CBOR = cbor2.dumps({"t": 21.5, "n": [1, 2**70, b"\x00", None, "x" * 40], 3: {"deep": [[[[]]]]}})
SPARKPLUG = number(1, 5) + metric("T", 10, double(21.5)) + metric("S", 12, block(15, b"text")) + metric("A", 23, b"")
PACKED = cbor2.dumps([{"temperature": "warm", "humidity": n} for n in range(9)], string_referencing=True)

READERS = {
    "cbor": Reader(lambda _, payload: cbor_to_json(payload), (CBOR, PACKED), "bytes", (PayloadError,)),
    "sparkplug": Reader(lambda _, payload: sparkplug_to_json(payload), (SPARKPLUG,), "bytes", (PayloadError,)),
    "status": Reader(
        status("devices/x/status"),
        (json.dumps({"action_id": "a", "attempt": 1, "state": "SUCCEEDED", "seq": 1, "result": {"x": [1]}}).encode(),),
        "json",
        (),
    ),
    "receipt": Reader(
        status("$receipts"),
        (
            json.dumps(
                {
                    "client_id": "x",
                    "idempotency_key": "a/x/1",
                    "partition": 0,
                    "offset": 1,
                    "topic": "devices/x/actions",
                }
            ).encode(),
        ),
        "json",
        (),
    ),
    "manifest": Reader(lambda _, payload: Manifest.parse(payload), (MANIFEST.to_bytes(),), "json", (ArtifactError,)),
    "key list": Reader(
        lambda _, payload: (_chain(payload), Root.parse(payload)),
        (chain_bytes([MAKER.root, MAKER.next_root(targets=MAKER.targets[1:])]), MAKER.root.to_bytes()),
        "json",
        (PolicyError,),
    ),
    "policy": Reader(
        lambda _, payload: Policy.parse(payload),
        (json.dumps({"artifact": MANIFEST.artifact.to_json(), "policy": MANIFEST.policy}).encode(),),
        "json",
        (PolicyError,),
    ),
    "inventory": Reader(
        in_file(read_inventory),
        (b'device_id,groups,time_zone,label.site\npump-1,"a;b",Europe/Berlin,north\npump-2,,UTC,\n',),
        "csv",
        (SettingsError,),
    ),
    "rollout file": Reader(in_file(read_rollout), (EXAMPLE.encode(),), "yaml", (SettingsError,)),
    "pipelines.yaml": Reader(yaml_of(Settings), ((CONF / "pipelines.yaml").read_bytes(),), "yaml", (SettingsError,)),
    "schema": Reader(
        yaml_of(MessageSchema),
        tuple(path.read_bytes() for path in sorted((CONF / "schemas").glob("*.yaml"))),
        "yaml",
        (SettingsError,),
    ),
    "rules": Reader(
        yaml_of(Rules),
        tuple(path.read_bytes() for path in sorted((CONF / "quality").glob("*.yaml"))),
        "yaml",
        (SettingsError,),
    ),
}


def _chain(payload: bytes) -> None:
    try:
        parse_chain(payload)
    except PolicyError:
        return


@st.composite
def inputs(draw: st.DrawFn, reader: Reader) -> bytes:
    piece = st.sampled_from(PIECES[reader.pieces]) | st.binary(max_size=12)
    if draw(st.integers(0, 4)) == 0:
        return b"".join(draw(st.lists(piece, max_size=12)))
    payload = draw(st.sampled_from(reader.honest))
    for _ in range(draw(st.integers(1, 4))):
        at, cut = draw(st.integers(0, len(payload))), draw(st.sampled_from([0, 0, 1, 2, 5, 30]))
        payload = payload[:at] + draw(piece) + payload[at + cut :]
    return payload


def check(reader: Reader, folder: Path, payload: bytes) -> None:
    began_s = time.process_time()
    try:
        found = reader.read(folder, payload)
    except reader.errors as error:
        found = str(error)
        assert found, "the error says nothing"
        assert "\n" not in found or reader.pieces == "yaml", f"not one sentence: {found!r}"
    assert time.process_time() - began_s < SOON_S
    if isinstance(found, str):
        assert len(found) <= OUTPUT_TIMES * len(payload) + OUTPUT_FREE


@pytest.mark.parametrize("name", READERS)
def test_any_bytes_are_read_or_refused_by_their_reader(name: str, tmp_path: Path) -> None:
    reader = READERS[name]

    @FAST
    @given(inputs(reader))
    def holds(payload: bytes) -> None:
        check(reader, tmp_path, payload)

    holds()


@pytest.mark.parametrize("name", READERS)
def test_inputs_that_coverage_has_found_are_read_or_refused(name: str, tmp_path: Path) -> None:
    inputs = (CORPUS / f"py_{name.replace(' ', '_').replace('.', '_')}.hex").read_text().split()
    assert inputs
    for text in inputs:
        check(READERS[name], tmp_path, bytes.fromhex(text))


def test_control_a_reader_with_another_error_is_noticed(tmp_path: Path) -> None:
    careless = Reader(lambda _, payload: json.loads(payload), (b'{"a": [1, 2]}',), "json", ())

    @settings(FAST, max_examples=max(STEPS, 50))
    @given(inputs(careless))
    def holds(payload: bytes) -> None:
        check(careless, tmp_path, payload)

    with pytest.raises((ValueError, RecursionError, BaseExceptionGroup)):
        holds()


@pytest.mark.parametrize("name", READERS)
def test_each_honest_document_is_read(name: str, tmp_path: Path) -> None:
    reader = READERS[name]
    if name != "key list":  # A chain and a single list are two documents.
        for payload in reader.honest:
            reader.read(tmp_path, payload)
