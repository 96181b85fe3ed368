"""Random hostile values from a seed that failures print; HEADWATER_POISON_SEED selects another one."""

from __future__ import annotations

import os
import random
from typing import Any

SEED = int(os.environ.get("HEADWATER_POISON_SEED", "15"))

TEXTS = (
    "", "a", "\ud800", "\udfff", "\x00", "a\x00b", "\x1b[2J", "\r\n", "\u202e", "\u2028", "é" * 50, "🙂", "\ufffe",
    "'", '"', "\\", "'; DROP TABLE x; --", "NaN", "1" * 5_000, "a/1", "a/" + "9" * 20, "null", "x" * 70_000,
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1, 10**40, 10**999,
    253_402_300_799_000_000, 253_402_300_800_000_000, 0.5, 1e308, 5e-324, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip


def junk(chance: random.Random, depth: int = 0) -> Any:
    """A JSON value; sometimes a deep one."""
    kind = chance.randrange(9)
    if kind == 0 and depth == 0:
        found: Any = 0
        for _ in range(chance.choice((50, 99, 100, 101, 300, 900))):
            found = [found] if chance.random() < 0.5 else {"x": found}
        return found
    if kind <= 2:
        return chance.choice(TEXTS)
    if kind <= 4:
        return chance.choice(NUMBERS)
    if kind == 5:
        return chance.choice((None, True, False))
    if depth > 3:
        return []
    if kind <= 7:
        return {chance.choice((*FIELDS, *TEXTS[:12])): junk(chance, depth + 1) for _ in range(chance.randrange(5))}
    return [junk(chance, depth + 1) for _ in range(chance.randrange(5))]


FIELDS = (
    "action_id", "attempt", "state", "result", "seq", "boot", "progress", "message", "version", "ts", "id", "sequence",
    "timestamp", "errors", "client_id", "idempotency_key", "partition", "offset", "log_id", "start", "end", "reason",
    "group", "name", "time_us",
)  # fmt: skip
_BYTES = (
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\\u0000", b"9" * 5_000, b"1e999", b"-", b"NaN", b"[" * 2_000,
    b'"', b"{", b"}", b",", b":", b"null", b"\xef\xbb\xbf", b"\xfe\xff",
)  # fmt: skip


def mutated(chance: random.Random, value: bytes) -> bytes:
    """`value` with one to four changes."""
    found = bytearray(value)
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(found) + 1)
        match chance.randrange(4):
            case 0:
                found[at : at + chance.randrange(6)] = b""
            case 1:
                found[at:at] = chance.choice(_BYTES)
            case 2 if found:
                found[at % len(found)] = chance.randrange(256)
            case _:
                found[at : at + 1] = chance.choice(_BYTES)
    return bytes(found)
