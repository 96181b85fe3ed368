"""Handwritten Sparkplug B payloads in protobuf encoding, which `pipelines.silver.sparkplug` must read."""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def double(value: float) -> bytes:
    """The value of a metric of data type 10."""
    return varint(13 << 3 | 1) + struct.pack("<d", value)


def metric(name: str | None, datatype: int, value: bytes, *, alias: int | None = None) -> bytes:
    named = block(1, name.encode()) if name is not None else b""
    named += number(2, alias) if alias is not None else b""
    return block(2, named + number(4, datatype) + value)


def reading(value: float | bool | None, *, name: str | None = None, alias: int | None = None) -> bytes:
    """A metric of the matching data type: Boolean, Int64 or Double; without a value a null Double."""
    match value:
        case None:
            return metric(name, 10, number(7, 1), alias=alias)
        case bool():
            return metric(name, 11, number(14, int(value)), alias=alias)
        case int():
            return metric(name, 4, number(11, value & 0xFFFF_FFFF_FFFF_FFFF), alias=alias)
        case _:
            return metric(name, 10, double(value), alias=alias)
