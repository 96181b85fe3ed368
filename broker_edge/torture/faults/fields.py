"""The positions of fields in the files: from docs/format.md, not from the broker's code, so that both are checked."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

SEGMENT_HEADER_BYTES = 4096
BATCH_HEADER_BYTES = 64
ENTRY_BYTES = 20

# Name, first byte, number of bytes.
_SEGMENT = (
    ("magic", 0, 8),
    ("format", 8, 4),
    ("checksum", 12, 4),
    ("log id", 16, 16),
    ("partition", 32, 4),
    ("class", 36, 1),
    ("recycled", 37, 1),
    ("base offset", 40, 8),
    ("epoch", 48, 8),
    ("time", 56, 8),
    ("secret", 64, 8),
)
_BATCH = (
    ("length", 0, 4),
    ("checksum", 4, 4),
    ("base offset", 8, 8),
    ("epoch", 16, 8),
    ("base time", 24, 8),
    ("records", 32, 4),
    ("topics", 36, 2),
    ("client ids", 38, 2),
    ("codec", 40, 1),
    ("flags", 41, 1),
    ("reserved", 42, 2),
    ("topic table size", 44, 4),
    ("client table size", 48, 4),
    ("extensions size", 52, 4),
    ("payloads size", 56, 4),
    ("uncompressed size", 60, 4),
)
_INDEX = (
    ("magic", 0, 8),
    ("format", 8, 4),
    ("checksum", 12, 4),
    ("log id", 16, 16),
    ("partition", 32, 4),
    ("checksum of the last batch", 36, 4),
    ("base offset", 40, 8),
    ("next offset", 48, 8),
    ("end position", 56, 8),
    ("position of the last batch", 64, 8),
    ("time of the first record", 72, 8),
    ("counts", 80, 24),
)
_MARK = (
    ("magic", 0, 8),
    ("base offset", 8, 8),
    ("position", 16, 8),
    ("next offset", 24, 8),
    ("epoch", 32, 8),
    ("kind", 40, 8),
    ("checksum", 48, 4),
)


@dataclass(frozen=True, slots=True)
class Field:
    """A range of bytes of a file, and their meaning."""

    name: str
    at: int
    size: int


def segment_fields(content: bytes) -> list[Field]:
    """The header of a segment."""
    return [Field(f"segment {name}", at, size) for name, at, size in _SEGMENT]


def batch_fields(content: bytes) -> list[Field]:
    """Every field and section of every batch of a complete segment."""
    return [field for start, size in _batches(content) for field in _fields_of_batch(content, start, size)]


def index_fields(content: bytes) -> list[Field]:
    """The head of an index and its tables."""
    tables = [Field("index tables", 104, len(content) - 104)] if len(content) > 104 else []
    return [*(Field(f"index {name}", at, size) for name, at, size in _INDEX), *tables]


def mark_fields(content: bytes) -> list[Field]:
    """The mark of a partition."""
    return [Field(f"mark {name}", at, size) for name, at, size in _MARK]


def _batches(content: bytes) -> Iterator[tuple[int, int]]:
    at = SEGMENT_HEADER_BYTES
    while at + BATCH_HEADER_BYTES <= len(content):
        (length,) = struct.unpack_from("<I", content, at)
        if length == 0:
            return
        yield at, length + 4
        at += length + 4


def _fields_of_batch(content: bytes, start: int, size: int) -> Iterator[Field]:
    for name, at, length in _BATCH:
        yield Field(f"batch {name}", start + at, length)
    (records,) = struct.unpack_from("<I", content, start + 32)
    topics, clients, extensions, payloads = struct.unpack_from("<IIII", content, start + 44)
    at = start + BATCH_HEADER_BYTES
    sections = (
        ("topic table", topics),
        ("client table", clients),
        ("entries", records * ENTRY_BYTES),
        ("extensions", extensions),
        ("payloads", payloads),
    )
    for name, length in sections:
        if length:
            yield Field(f"batch {name}", at, length)
        at += length
    assert at == start + size, "docs/format.md and this file disagree"
