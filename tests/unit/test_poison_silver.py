"""Malicious payloads: each is parsed or refused with a reason, in time and memory in proportion to its size."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import cbor2
import pyarrow as pa
import pytest
from support.poison import SEED, mutated
from support.sparkplug_bytes import block, double, metric, number

from pipelines.silver import payloads
from pipelines.silver.payloads import PayloadError, cbor_to_json, sparkplug_to_json

SOON_S = 5.0
"""Anything slower counts as hanging; each of these takes milliseconds."""


def head(major: int, value: int) -> bytes:
    return bytes([major << 5 | 27]) + value.to_bytes(8, "big")


def doubled(times: int) -> bytes:
    """An array that is shared, inside one that contains it twice, inside one that contains that twice …"""
    items = b"\xd8\x1c\x80"
    for n in range(times):
        items += b"\xd8\x1c\x82" + (b"\xd8\x1d" + head(0, n)) * 2
    return head(4, times + 1) + items


def colliding(count: int) -> bytes:
    keys = [((n + 16) * (2**61 - 1)).to_bytes(10, "big") for n in range(count)]
    return head(5, count) + b"".join(b"\xc2\x4a" + key + b"\x00" for key in keys)


def bignum(size_bytes: int, *, tag: int = 2, byte: bytes = b"\xff") -> bytes:
    return bytes([0xC0 | tag]) + head(2, size_bytes) + byte * size_bytes


def fibonacci_pair(index: int) -> bytes:
    """Two numbers for which Euclid's algorithm takes the most steps."""

    def pair(n: int) -> tuple[int, int]:
        if n == 0:
            return 0, 1
        low, high = pair(n >> 1)
        first, second = low * (2 * high - low), low * low + high * high
        return (second, first + second) if n & 1 else (first, second)

    found = [number.to_bytes(number.bit_length() // 8 + 1, "big") for number in pair(index)]
    return b"".join(b"\xc2" + head(2, len(one)) + one for one in found)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "shared items that double": (doubled(60), "it has references between its items|semantic tag"),
    "shared items as a key": (b"\xa1" + doubled(60) + b"\x00", "semantic tag|refers"),
    "an item within itself": (b"\xd8\x1c\x81\xd8\x1d\x00", "semantic tag|refers"),
    "a repeated text": (
        b"\xd9\x01\x00" + head(4, 2_001) + head(3, 60_000) + b"a" * 60_000 + b"\xd8\x19\x00" * 2_000,
        "it repeats its strings too often",
    ),
    "keys that collide": (colliding(30_000), "the payload is not CBOR"),
    "a number of 5,000 digits": (bignum(3_000), "the payload is not CBOR"),
    "a decimal of a million digits": (b"\xc4\x82\x00" + bignum(500_000), "the payload is not CBOR"),
    "a big float of a million digits": (b"\xc5\x82\x00" + bignum(500_000, tag=3), "the payload is not CBOR"),
    "a share of long numbers": (b"\xd8\x1e\x82" + fibonacci_pair(3_000_000), "the payload is not CBOR"),
    "a bignum of text": (b"\xc2\x61a", "the payload is not CBOR"),
    "an array that claims 2^60": (head(4, 2**60), "the payload is not CBOR"),
    "a map that claims 2^60": (head(5, 2**60), "the payload is not CBOR"),
    "bytes that claim 2^62": (head(2, 2**62) + b"x", "the payload is not CBOR"),
    "a key twice": (b"\xa2\x61a\x01\x61a\x02", "the payload is not CBOR"),
    "a key twice, by its text": (b"\xa2\x01\x00\x611\x00", "two of its keys become the same string"),
    "depth": (b"\x81" * 200 + b"\x00", "nested deeper than 100"),
    "depth of thousands": (b"\x81" * 50_000 + b"\x00", "the payload is not CBOR"),
    "tags in tags": (b"\xc1" * 50_000 + b"\x00", "the payload is not CBOR"),
    "a time beyond all": (b"\xc1" + head(0, 2**63), "the payload is not CBOR"),
    "a day beyond all": (b"\xd8\x64" + head(0, 2**63), "the payload is not CBOR"),
    "a decimal beyond all": (b"\xc4\x82" + head(0, 2**63) + b"\x01", "the payload is not CBOR"),
    "a big float beyond all": (b"\xc5\x82" + head(0, 2**40) + b"\x01", "the payload is not CBOR"),
    "a share of nothing": (b"\xd8\x1e\x82\x01\x00", "the payload is not CBOR"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_cbor_is_refused_soon_and_in_words(name: str) -> None:
    payload, says = HOSTILE[name]
    began_s = time.monotonic()
    with pytest.raises(PayloadError, match=says):
        cbor_to_json(payload)
    assert time.monotonic() - began_s < SOON_S


@pytest.mark.parametrize(
    "text", ["(?i)" + "[a-\U0010ffff]" * 60_000, "a|b" * 300_000, "(", "Content-Type: multipart/mixed; boundary=b\n\n"]
)
@pytest.mark.parametrize("tag", [35, 36])
def test_regular_expressions_and_mail_are_the_texts_that_they_are(tag: int, text: str) -> None:
    payload = cbor2.dumps(cbor2.CBORTag(tag, text))
    began_s = time.monotonic()
    assert json.loads(cbor_to_json(payload)) == text
    assert time.monotonic() - began_s < SOON_S


def test_texts_by_number_and_keys_that_are_numbers_are_read_as_before() -> None:
    value = [{"temperature": n, "humidity": n} for n in range(200)]
    packed = cbor2.dumps(value, string_referencing=True)
    assert len(packed) < len(cbor2.dumps(value)) / 2
    assert json.loads(cbor_to_json(packed)) == value
    assert json.loads(cbor_to_json(cbor2.dumps({1: 2, -3: [2**70]}))) == {"1": 2, "-3": [2**70]}
    edges = [2**8192 - 1, -(2**8192), -(2**64) - 1, Decimal(-(2**300)) / 8, Fraction(2**200, 3)]
    assert json.loads(cbor_to_json(cbor2.dumps(edges))) == [*edges[:3], *map(str, edges[3:])]


@pytest.mark.parametrize("read", [cbor_to_json, sparkplug_to_json])
def test_whatever_comes_is_read_or_refused(read: Callable[[bytes], str]) -> None:
    chance = random.Random(SEED)
    honest = [
        cbor2.dumps({"t": 21.5, "n": [1, 2**70, b"\x00", None, "x" * 40], 3: {"deep": [[[[]]]]}}),
        number(1, 5)
        + metric("T", 10, double(21.5))
        + metric("S", 12, block(15, b"text"))
        + metric(None, 3, number(10, 5), alias=7),
    ]
    for turn in range(6_000):
        payload = mutated(chance, chance.choice(honest))
        if turn % 5 == 0:
            payload = chance.randbytes(chance.randrange(40))
        try:
            found = read(payload).encode()
        except PayloadError as error:
            found = json.dumps(str(error)).encode()
        except Exception as error:
            pytest.fail(f"seed {SEED}, turn {turn}: {payload[:200]!r}: {error!r}")
        json.loads(found, parse_constant=pytest.fail)


@pytest.mark.parametrize("error", [MemoryError("full"), OSError("gone"), ImportError("gone")])
def test_what_is_not_the_fault_of_the_payload_ends_the_task(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def decode(self) -> Any:
            raise error

    monkeypatch.setattr(cbor2, "CBORDecoder", Failing)
    with pytest.raises(type(error)):
        payloads._by_rows(cbor_to_json)(pa.array([b"\x00"]))


def test_memory_that_ends_within_a_tag_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise MemoryError("full")

    monkeypatch.setitem(payloads._TAGS, 28, full)
    with pytest.raises(MemoryError):
        cbor_to_json(b"\xd8\x1c\x80")
