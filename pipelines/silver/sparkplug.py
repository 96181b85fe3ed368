"""Reads Sparkplug B payloads according to the protobuf message of the specification (Eclipse Sparkplug 3.0.0, 6.4).

A handwritten reader for the few fields needed: no generated code, and no allocation sized by a peer's claim. Data sets,
templates, metadata and properties are skipped; a metric of these types has a null value. A metric with only an alias
(its name was in a birth certificate, which is another record) is kept apart from those with names, because the number
has another meaning at each edge node.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Iterator
from typing import Any

from broker_edge.escape import shown as escaped

METRICS_MAX = 10_000
_SHOWN_MAX = 100
"""Characters of a metric's name that an error shows."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

# Field numbers of Payload.
_TIMESTAMP, _METRICS, _SEQ, _UUID, _BODY = 1, 2, 3, 4, 5
# Field numbers of Metric.
_NAME, _ALIAS, _DATATYPE, _IS_NULL = 1, 2, 4, 7
_INT, _LONG, _FLOAT, _DOUBLE, _BOOLEAN, _STRING, _BYTES = 10, 11, 12, 13, 14, 15, 16

# Data types whose numbers are two's complement in an unsigned field, with their width in bits.
_SIGNED_BITS = {1: 8, 2: 16, 3: 32, 4: 64}
# Arrays of fixed-width numbers in `bytes_value`: the struct letter of an element.
_ARRAYS = {22: "b", 23: "h", 24: "i", 25: "q", 26: "B", 27: "H", 28: "I", 29: "Q", 30: "f", 31: "d", 34: "Q"}

Field = tuple[int, int, Any]


class SparkplugError(ValueError):
    """Why bytes are not a Sparkplug B payload."""


class RepeatedMetricError(ValueError):
    """A payload has a metric more than once, for example one with stored readings from a time without connection."""


class SparkplugLimitError(ValueError):
    """A payload has more values than allowed."""


def read_sparkplug(payload: bytes, *, values_max: int = 1_000_000) -> dict[str, Any]:
    """`{"timestamp", "seq", "uuid", "body", "metrics": {name: value}, "aliases": {number: value}}`; each key except
    `metrics` is present only if the payload has it.

    Values are of types that JSON has; bytes are base64, and alias numbers are strings. Raises SparkplugError,
    RepeatedMetricError if only one of several values of a metric could be kept, or SparkplugLimitError if the metrics
    and the elements of their arrays are more than `values_max`.
    """
    found: dict[str, Any] = {"metrics": {}}
    count, left = 0, values_max
    for number, wire, value in _fields(payload):
        if number == _METRICS and wire == _LENGTH:
            count += 1
            if count > METRICS_MAX:
                raise SparkplugError(f"it has more than {METRICS_MAX} metrics")
            left -= _add_metric(found, value, left)
        elif number in (_TIMESTAMP, _SEQ) and wire == _VARINT:
            found["timestamp" if number == _TIMESTAMP else "seq"] = value
        elif number == _UUID and wire == _LENGTH:
            found["uuid"] = _text(value)
        elif number == _BODY and wire == _LENGTH:
            found["body"] = base64.b64encode(value).decode()
    return found


def _add_metric(found: dict[str, Any], message: bytes, left: int) -> int:
    """Adds a metric and returns how many values it has; refuses more than `left`."""
    values: dict[int, Any] = {}
    for number, wire, value in _fields(message):
        if wire != _WIRES.get(number, wire):
            raise SparkplugError(f"field {number} of a metric has wire type {wire}")
        values[number] = value
    # Some encoders write an empty name instead of none.
    if not values.get(_NAME) and _ALIAS in values:
        place, key = "aliases", str(values[_ALIAS])
        shown = f"with alias {key}"
    elif _NAME in values:
        place, key = "metrics", _text(values[_NAME])
        shown = key
    else:
        raise SparkplugError("a metric has neither name nor alias")
    # Counted before they are made: each element of an array takes a byte at least, and many times that in memory.
    count = max(1, _elements(values))
    if count > left:
        raise SparkplugLimitError
    kept = found.setdefault(place, {})
    if key in kept:
        raise RepeatedMetricError(f"it has the metric {escaped(shown[:_SHOWN_MAX])} twice")
    kept[key] = None if values.get(_IS_NULL) else _value(values)
    return count


def _elements(values: dict[int, Any]) -> int:
    letter = _ARRAYS.get(values.get(_DATATYPE, 0))
    return len(values.get(_BYTES, b"")) // struct.calcsize(letter) if letter is not None else 0


_WIRES = {
    _NAME: _LENGTH,
    _ALIAS: _VARINT,
    _DATATYPE: _VARINT,
    _IS_NULL: _VARINT,
    _INT: _VARINT,
    _LONG: _VARINT,
    _FLOAT: _FIXED32,
    _DOUBLE: _FIXED64,
    _BOOLEAN: _VARINT,
    _STRING: _LENGTH,
    _BYTES: _LENGTH,
}


def _value(values: dict[int, Any]) -> Any:
    kind = values.get(_DATATYPE, 0)
    for number in (_INT, _LONG):
        if number in values:
            return _integer(values[number], kind)
    if _FLOAT in values:
        return _finite(struct.unpack("<f", values[_FLOAT])[0])
    if _DOUBLE in values:
        return _finite(struct.unpack("<d", values[_DOUBLE])[0])
    if _BOOLEAN in values:
        return bool(values[_BOOLEAN])
    if _STRING in values:
        return _text(values[_STRING])
    if _BYTES in values:
        return _bytes(values[_BYTES], kind)
    return None


def _integer(value: int, kind: int) -> int:
    bits = _SIGNED_BITS.get(kind)
    if bits is None:
        return value
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _bytes(value: bytes, kind: int) -> Any:
    letter = _ARRAYS.get(kind)
    if letter is None:
        return base64.b64encode(value).decode()
    if len(value) % struct.calcsize(letter):
        raise SparkplugError(f"an array of data type {kind} has {len(value)} bytes")
    return [_finite(one) for (one,) in struct.iter_unpack(f"<{letter}", value)]


def _finite(value: Any) -> Any:
    """Null for NaN and infinity, which JSON does not have and which are not readings."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise SparkplugError("a text is not UTF-8") from error


def _fields(message: bytes) -> Iterator[Field]:
    """The fields of a protobuf message: number, wire type, and the value as a number or bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise SparkplugError("field number 0 does not exist in protobuf")
        if wire == _VARINT:
            value, at = _varint(message, at)
            yield number, wire, value
            continue
        if wire == _LENGTH:
            length, at = _varint(message, at)
        elif wire in (_FIXED64, _FIXED32):
            length = 8 if wire == _FIXED64 else 4
        else:
            raise SparkplugError(f"wire type {wire} does not exist in protobuf")
        if length > len(message) - at:
            raise SparkplugError(f"it ends within field {number}")
        yield number, wire, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise SparkplugError("it ends within a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise SparkplugError("a number is longer than 64 bits")
