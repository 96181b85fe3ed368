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
from collections.abc import Callable
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
    """One CBOR item as JSON. Byte strings become base64, keys that are no text become text, NaN becomes null."""
    source = io.BytesIO(payload)
    try:
        item = cbor2.CBORDecoder(source).decode()
    except (cbor2.CBORDecodeError, ValueError, TypeError, RecursionError, OverflowError, MemoryError) as error:
        raise PayloadError(f"the payload is not CBOR: {_short(error)}") from error
    if source.read(1):
        raise PayloadError("the payload is not CBOR: something follows its first item")
    try:
        return json.dumps(_plain(item, 0), ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise PayloadError(f"the payload is CBOR that JSON has no words for: {_short(error)}") from error


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


def _plain(item: Any, depth: int) -> Any:
    if depth > _DEPTH_MAX:
        raise ValueError(f"it is nested deeper than {_DEPTH_MAX}")
    match item:
        case None | bool() | int():
            return item
        case _ if item is cbor2.undefined:
            return None
        case str():
            # A lone surrogate cannot be written as UTF-8.
            return item.encode("utf-8", "replace").decode()
        case float():
            return item if math.isfinite(item) else None
        case bytes():
            return base64.b64encode(item).decode()
        case datetime.datetime() | datetime.date():
            return item.isoformat()
        case dict():
            return {str(_plain(key, depth + 1)): _plain(value, depth + 1) for key, value in item.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(one, depth + 1) for one in item]
        case cbor2.CBORTag():
            return _plain(item.value, depth + 1)
        case _:
            return str(item)


def _short(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= 120 else f"{text[:117]}..."
