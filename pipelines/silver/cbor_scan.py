"""Counts the items of CBOR without making them: a million empty arrays take a megabyte, and a hundred in memory.

Reads heads only. It judges nothing else: `silver.payloads` decodes the payload and says what is wrong with it.
"""

from __future__ import annotations

_ARGUMENT_BYTES = {24: 1, 25: 2, 26: 4, 27: 8}
_BYTES, _TEXT = 2, 3


def is_over(payload: bytes, items_max: int) -> bool:
    """Whether the payload has more than `items_max` items: numbers, texts, arrays, maps, tags and ends of those of
    unknown length. False where it is not CBOR, at the latest at the place where it ceases to be."""
    at = count = 0
    end = len(payload)
    while at < end:
        count += 1
        if count > items_max:
            return True
        major, low = payload[at] >> 5, payload[at] & 31
        at += 1
        if low < 24:
            argument = low
        elif low in _ARGUMENT_BYTES:
            size = _ARGUMENT_BYTES[low]
            argument = int.from_bytes(payload[at : at + size], "big")
            at += size
        elif low == 31:
            continue  # Of unknown length: its parts and its end are items.
        else:
            return False
        if major in (_BYTES, _TEXT):
            at += argument
    return False
