"""Escapes outside text for a terminal: topics, client ids, reasons, messages of devices must not control it.

Control characters (ESC, NUL, newlines, the C1 set), bidirectional overrides, lone surrogates and other characters
without a visible shape become Python escapes, or JSON escapes in JSON.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any


def shown(text: str) -> str:
    """The text on one line, safe for a terminal."""
    return text if text.isprintable() else "".join(_escaped(c) for c in text)


def shown_lines(text: str) -> str:
    """Like `shown`, for a text of several lines, which stay separate."""
    return "\n".join(shown(line) for line in text.split("\n"))


def json_line(value: Any, *, ascii_only: bool = False) -> str:
    """One JSON document on one line, safe for a terminal; a parser reads the same value."""
    text = json.dumps(value, ensure_ascii=ascii_only)
    # Characters that are not printable occur only within strings.
    return text if text.isprintable() else "".join(c if c.isprintable() else _json_escaped(c) for c in text)


def moment(at_us: int, timespec: str = "seconds") -> str:
    """Unix µs as ISO 8601 in UTC, or as a number if it is outside the calendar."""
    try:
        return datetime.fromtimestamp(at_us / 1_000_000, UTC).isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):
        return f"{at_us} µs"


class SafeFormatter(logging.Formatter):
    """Log lines whose messages stay on their line."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = shown(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return shown_lines(super().formatException(ei))


def _escaped(c: str) -> str:
    return c if c.isprintable() else c.encode("unicode_escape").decode()


def _json_escaped(c: str) -> str:
    code = ord(c)
    if code < 0x1_0000:
        return f"\\u{code:04x}"
    code -= 0x1_0000
    return f"\\u{0xD800 | code >> 10:04x}\\u{0xDC00 | code & 0x3FF:04x}"
