"""Payloads of every format as JSON text, so that types are judged in one place, by Spark, whatever the format is.

JSON stays as it is and never leaves the JVM. CBOR and Sparkplug B are read by Python workers, Arrow batches at a time.
Pure functions of bytes; no table and no schema.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

import cbor2
import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from pipelines.silver.schema import PayloadFormat
from pipelines.silver.sparkplug import RepeatedMetricError, SparkplugError, read_sparkplug

_DECODED = "struct<json string, problem string>"
_ARROW = pa.struct([("json", pa.string()), ("problem", pa.string())])
_DEPTH_MAX = 100
_NUMBER_KEYS_BYTES_MAX = 128 * 1024
"""Larger payloads have texts (or bytes) as the keys of their maps, or are refused."""
_NUMBER_BYTES_MAX = 1_024
"""Of a bignum (tags 2 and 3), also within a decimal fraction or a rational. Longer ones have no JSON anyway, and what
decimals and rationals do with their digits takes the square of their number: a megabyte took minutes."""
_TEXT_TIMES, _TEXT_FREE = 16, 4 * 1024
"""Text that comes out of a payload: so many times its size, and so much more."""

WORKER_BATCHES: Mapping[str, str] = {
    "spark.sql.execution.arrow.maxBytesPerBatch": str(4 * 1024 * 1024),
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
}
"""Payloads that go to a Python worker at once. What comes back is one Arrow batch, in which texts may have 2 GiB and
for which there has to be memory: it has some 100 MB at most, unless one payload alone has more."""


class PayloadError(ValueError):
    """Why a payload cannot be read; becomes the reason in `quarantine`."""


def decoded(value: Column, payload_format: PayloadFormat) -> Column:
    """`struct<json, problem>` of a binary column; one of the two is null."""
    if payload_format is PayloadFormat.JSON:
        text = F.try_validate_utf8(value.cast("string"))
        problem = F.when(text.isNull(), F.lit("the payload is not UTF-8"))
        return F.struct(text.alias("json"), problem.alias("problem"))
    read = cbor_to_json if payload_format is PayloadFormat.CBOR else sparkplug_to_json
    return F.arrow_udf(_by_rows(read), _DECODED)(value)


def cbor_to_json(payload: bytes) -> str:
    """One CBOR item as JSON. Byte strings become base64, keys that are no text become text, NaN becomes null.

    Regular expressions and MIME messages (tags 35 and 36) are their texts. Items that refer to others (tags 28 and 29)
    are refused: two hundred bytes can mean more than any memory holds. So are maps that have a key twice, as in JSON:
    nobody knows which value was meant.
    """
    source = io.BytesIO(payload)
    try:
        item = cbor2.CBORDecoder(
            source,
            semantic_decoders=_TAGS,
            allow_duplicate_keys=False,
            # Numbers can be chosen so that they meet in a hash table; texts cannot.
            strict_hashable_types=len(payload) > _NUMBER_KEYS_BYTES_MAX,
        ).decode()
    except cbor2.CBORError as error:
        if isinstance(error.__cause__, MemoryError | ImportError):
            raise error.__cause__ from error  # Not the payload's fault.
        raise PayloadError(f"the payload is not CBOR: {_short(error)}") from error
    if source.read(1):
        raise PayloadError("the payload is not CBOR: something follows its first item")
    try:
        return json.dumps(_Plain(len(payload)).of(item, 0), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the payload is CBOR that JSON has no words for: {_short(error)}") from error


def _no_references(*_: Any) -> Any:
    raise ValueError("it refers to other items of its own")


def _as_it_is(item: Any, *_: Any) -> Any:
    return item


def _natural(item: Any, *_: Any) -> int:
    if not isinstance(item, bytes):
        raise ValueError(f"a bignum must be a byte string, not {type(item).__name__}")
    if len(item) > _NUMBER_BYTES_MAX:
        raise ValueError(f"it has a number of {len(item)} bytes; {_NUMBER_BYTES_MAX} are the limit")
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
"""Bignums (2 and 3) are bounded before they are numbers. Regular expressions (35) and MIME messages (36) stay the texts
that they are: of the first a thousand bytes can take minutes to compile, and nobody looks for anything with them."""


def sparkplug_to_json(payload: bytes) -> str:
    """A Sparkplug B payload as JSON; see `silver.sparkplug`."""
    try:
        return json.dumps(read_sparkplug(payload), ensure_ascii=False, allow_nan=False)
    except SparkplugError as error:
        raise PayloadError(f"the payload is not Sparkplug B: {error}") from error
    except RepeatedMetricError as error:
        raise PayloadError(f"the payload has no one value for each metric: {error}") from error


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
    """A CBOR item as what JSON has. Every item takes a byte of the payload at least; a text may come again by its
    number (tag 25), which is counted, so that what comes out stays in proportion to what came in."""

    def __init__(self, payload_bytes: int) -> None:
        self._items_left = payload_bytes + 1
        self._text_left = _TEXT_TIMES * payload_bytes + _TEXT_FREE

    def of(self, item: Any, depth: int) -> Any:
        self._items_left -= 1
        if depth > _DEPTH_MAX:
            raise ValueError(f"it is nested deeper than {_DEPTH_MAX}")
        if self._items_left < 0:
            raise ValueError("it has more items than bytes")
        match item:
            case None | bool() | int():
                return item
            case _ if item is cbor2.undefined:
                return None
            case str():
                # A lone surrogate cannot be written as UTF-8.
                return self._counted(item.encode("utf-8", "replace").decode())
            case float():
                return item if math.isfinite(item) else None
            case bytes():
                return self._counted(base64.b64encode(item).decode())
            case datetime.datetime() | datetime.date():
                return item.isoformat()
            case dict():
                found = {str(self.of(key, depth + 1)): self.of(value, depth + 1) for key, value in item.items()}
                if len(found) < len(item):
                    raise ValueError("two of its keys are the same text")
                return found
            case list() | tuple() | set() | frozenset():
                return [self.of(one, depth + 1) for one in item]
            case cbor2.CBORTag():
                return self.of(item.value, depth + 1)
            case _:
                return self._counted(str(item).encode("utf-8", "replace").decode())

    def _counted(self, text: str) -> str:
        self._text_left -= len(text)
        if self._text_left < 0:
            raise ValueError("its texts come again and again")
        return text


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 120 else f"{text[:117]}..."
