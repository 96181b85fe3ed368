"""Text from outside for a terminal: topics, client ids, reasons, messages of devices. Nothing of it may steer one.

Control characters (ESC, NUL, newlines, the C1 set), bidirectional overrides, lone surrogates and whatever else has no
shape of its own is shown as an escape of Python, in JSON as one of JSON.
"""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any


def shown(text: str) -> str:
    """The text on one line, as a terminal may have it."""
    return text if text.isprintable() else "".join(_escaped(c) for c in text)


def shown_lines(text: str) -> str:
    """The same for a text of several lines, which stay lines."""
    return "\n".join(shown(line) for line in text.split("\n"))


def json_line(value: Any, *, ascii_only: bool = False) -> str:
    """One JSON document on one line, as a terminal may have it; it means the same to whoever parses it."""
    text = json.dumps(value, ensure_ascii=ascii_only)
    # What is not printable stands within strings only.
    return text if text.isprintable() else "".join(c if c.isprintable() else _json_escaped(c) for c in text)


def moment(at_us: int, timespec: str = "seconds") -> str:
    """Unix µs as ISO 8601 in UTC, or as the number where it is no time of the calendar."""
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
