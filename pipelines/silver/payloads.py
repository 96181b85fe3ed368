"""Converts payloads of every format to JSON text, so that Spark judges types in one place for all formats.

JSON stays unchanged and never leaves the JVM. Python workers read CBOR and Sparkplug B in Arrow batches. Pure functions
of bytes, without tables or schemas.
"""

from __future__ import annotations

import base64
import datetime
import functools
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cbor2
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from pipelines.silver.cbor_scan import is_over
from pipelines.silver.schema import DEPTH_MAX, JSON_BYTES_MAX, NODES_MAX, MessageSchema, PayloadFormat
from pipelines.silver.sparkplug import RepeatedMetricError, SparkplugError, SparkplugLimitError, read_sparkplug

_DECODED = "struct<json string, problem string>"
_ARROW = pa.struct([("json", pa.string()), ("problem", pa.string())])
_NUMBER_KEYS_BYTES_MAX = 128 * 1024
"""Larger payloads may only have strings (or bytes) as map keys; otherwise they are refused."""
_NUMBER_BYTES_MAX = 1_024
"""Limit for a bignum (tags 2 and 3), also within a decimal fraction or a rational. Longer ones have no JSON form
anyway, and the cost of decimals and rationals grows with the square of their length: one megabyte took minutes."""
_TEXT_TIMES, _TEXT_FREE = 16, 4 * 1024
"""Limit for the text produced from a payload: this multiple of its size, plus a constant."""

WORKER_BATCHES: Mapping[str, str] = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * 1024 * 1024),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
"""Bytes of payloads per call of a Python worker. The result is one Arrow batch, whose texts may have 2 GiB at most and
must fit into memory. This limits it to about 100 MB, unless one payload alone is larger."""


class PayloadError(ValueError):
    """Why a payload cannot be read. The text becomes the reason in `quarantine`."""


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """What one payload may become at most; the settings of the same names in a message schema."""

    depth_max: int = DEPTH_MAX
    nodes_max: int = NODES_MAX
    json_bytes_max: int = JSON_BYTES_MAX

    @classmethod
    def of(cls, schema: MessageSchema) -> PayloadLimits:
        return cls(schema.depth_max, schema.nodes_max, schema.json_bytes_max)

    def too_deep(self) -> str:
        return f"it is nested deeper than {self.depth_max} (depth_max of its schema)"

    def too_many(self) -> str:
        return f"it has more than {self.nodes_max:,} values (nodes_max of its schema)"

    def too_long(self) -> str:
        return f"its JSON would have more than {self.json_bytes_max:,} bytes (json_bytes_max of its schema)"


DEFAULT_LIMITS = PayloadLimits()


def decoded(value: Column, schema: MessageSchema) -> Column:
    """`struct<json, problem>` of a binary column; one of the two is null."""
    limits = PayloadLimits.of(schema)
    if schema.format is PayloadFormat.JSON:
        is_long = F.octet_length(value) > limits.json_bytes_max
        text = F.when(~is_long, F.try_validate_utf8(value.cast("string")))
        problem = F.when(is_long, F.lit(f"the payload is too long: {limits.too_long()}")).when(
            text.isNull(), F.lit("the payload is not UTF-8")
        )
        return F.struct(text.alias("json"), problem.alias("problem"))
    read = cbor_to_json if schema.format is PayloadFormat.CBOR else sparkplug_to_json
    return F.arrow_udf(_by_rows(functools.partial(read, limits=limits)), _DECODED)(value)


def cbor_to_json(payload: bytes, limits: PayloadLimits = DEFAULT_LIMITS) -> str:
    """One CBOR item as JSON. Byte strings become base64, keys other than strings become strings, NaN becomes null.

    Regular expressions and MIME messages (tags 35 and 36) become their texts. Items that refer to others (tags 28 and
    29) are refused: two hundred bytes can expand beyond any memory. Maps with a repeated key are refused too, as in
    JSON, because it is unclear which value was meant.
    """
    # A payload has at most as many items as bytes. The items of a longer one are counted before any of them is made.
    if len(payload) > limits.nodes_max and is_over(payload, limits.nodes_max):
        raise PayloadError(f"the payload is CBOR beyond a limit: {limits.too_many()}")
    source = io.BytesIO(payload)
    try:
        item = cbor2.CBORDecoder(
            source,
            semantic_decoders=_TAGS,
            allow_duplicate_keys=False,
            # Numbers can be chosen to collide in a hash table; strings cannot.
            strict_hashable_types=len(payload) > _NUMBER_KEYS_BYTES_MAX,
        ).decode()
    except cbor2.CBORError as error:
        if isinstance(error.__cause__, MemoryError | ImportError):
            raise error.__cause__ from error  # The payload is not the cause.
        raise PayloadError(f"the payload is not CBOR: {_short(error)}") from error
    if source.read(1):
        raise PayloadError("the payload is not CBOR: there are more bytes after its first item")
    try:
        text = json.dumps(_Plain(len(payload), limits).of(item, 0), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the payload is CBOR that JSON cannot express: {_short(error)}") from error
    return _bounded(text, limits)


def _no_references(*_: Any) -> Any:
    raise ValueError("it has references between its items")


def _as_it_is(item: Any, *_: Any) -> Any:
    return item


def _natural(item: Any, *_: Any) -> int:
    if not isinstance(item, bytes):
        raise ValueError(f"a bignum must be a byte string, not {type(item).__name__}")
    if len(item) > _NUMBER_BYTES_MAX:
        raise ValueError(f"it has a number of {len(item)} bytes; the limit is {_NUMBER_BYTES_MAX}")
    return int.from_bytes(item, "big")


def _negative(item: Any, *_: Any) -> int:
    return -1 - _natural(item)


_TAGS = {
    2: _natural,
    3: _negative,
    28: _no_references,
    29: _no_references,
    35: _as_it_is,
    36: _as_it_is,
}
"""Bignums (2 and 3) are checked for size before conversion. Regular expressions (35) and MIME messages (36) stay texts:
compiling a thousand bytes of the former can take minutes, and nothing here needs the result."""


def sparkplug_to_json(payload: bytes, limits: PayloadLimits = DEFAULT_LIMITS) -> str:
    """A Sparkplug B payload as JSON; see `silver.sparkplug`."""
    try:
        found = read_sparkplug(payload, values_max=limits.nodes_max)
        text = json.dumps(found, ensure_ascii=False, allow_nan=False)
    except SparkplugLimitError as error:
        raise PayloadError(f"the payload is Sparkplug B beyond a limit: {limits.too_many()}") from error
    except SparkplugError as error:
        raise PayloadError(f"the payload is not Sparkplug B: {error}") from error
    except RepeatedMetricError as error:
        raise PayloadError(f"the payload repeats a metric: {error}") from error
    return _bounded(text, limits)


def _bounded(text: str, limits: PayloadLimits) -> str:
    if len(text) > limits.json_bytes_max or len(text.encode()) > limits.json_bytes_max:
        raise PayloadError(f"the payload is too long: {limits.too_long()}")
    return text


def _by_rows(read: Callable[[bytes], str]) -> Callable[[pa.Array], pa.Array]:
    def decode(values: pa.Array) -> pa.Array:
        rows: list[dict[str, str | None]] = []
        for value in values:
            try:
                rows.append({"json": read(value.as_py() or b""), "problem": None})
            except PayloadError as error:
                rows.append({"json": None, "problem": str(error)})
        return pa.array(rows, _ARROW)

    return decode


class _Plain:
    """Converts a CBOR item to types that JSON has. Every item takes at least one byte of the payload; strings may be
    repeated by number (tag 25), and keys that are lists or maps become texts within texts, so texts are counted as
    they will be written: the output stays in proportion to the input."""

    def __init__(self, payload_bytes: int, limits: PayloadLimits) -> None:
        self._limits = limits
        self._payload_items = payload_bytes + 1
        self._items = 0
        self._text_left = min(_TEXT_TIMES * payload_bytes + _TEXT_FREE, limits.json_bytes_max)
        self._is_at_limit = self._text_left == limits.json_bytes_max

    def of(self, item: Any, depth: int) -> Any:
        self._items += 1
        if depth > self._limits.depth_max:
            raise ValueError(self._limits.too_deep())
        if self._items > self._payload_items:
            raise ValueError("it has more items than bytes")
        if self._items > self._limits.nodes_max:
            raise ValueError(self._limits.too_many())
        match item:
            case None | bool() | int():
                return item
            case _ if item is cbor2.undefined:
                return None
            case str():
                # A lone surrogate cannot be encoded as UTF-8.
                return self._counted(item.encode("utf-8", "replace").decode())
            case float():
                return item if math.isfinite(item) else None
            case bytes():
                return self._counted(base64.b64encode(item).decode())
            case datetime.datetime() | datetime.date():
                return item.isoformat()
            case dict():
                found = {self._key(key, depth + 1): self.of(value, depth + 1) for key, value in item.items()}
                if len(found) < len(item):
                    raise ValueError("two of its keys become the same string")
                return found
            case list() | tuple() | set() | frozenset():
                return [self.of(one, depth + 1) for one in item]
            case cbor2.CBORTag():
                return self.of(item.value, depth + 1)
            case _:
                return self._counted(str(item).encode("utf-8", "replace").decode())

    def _key(self, item: Any, depth: int) -> str:
        found = self.of(item, depth)
        return found if isinstance(found, str) else self._counted(str(found))

    def _counted(self, text: str) -> str:
        # Texts of this length are refused without a copy; others are counted with the escapes of JSON.
        if len(text) <= self._text_left:
            self._text_left -= len(json.dumps(text, ensure_ascii=False).encode())
        else:
            self._text_left = -1
        if self._text_left < 0:
            raise ValueError(self._limits.too_long() if self._is_at_limit else "it repeats its strings too often")
        return text


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."
