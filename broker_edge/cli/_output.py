"""How commands show what they found: JSON, a table on a terminal, tab-separated rows into a pipe; talk on stderr."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table


def say(text: str) -> None:
    """A line for the person at the terminal, never data."""
    print(text, file=sys.stderr, flush=True)


def put(text: str) -> None:
    """A line of data."""
    print(text, flush=True)


def put_json(value: Any) -> None:
    """One JSON document on one line."""
    put(json.dumps(value, ensure_ascii=False))


def put_rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on a terminal; into a pipe, rows of tab-separated fields without a heading."""
    if not sys.stdout.isatty():
        for row in rows:
            put("\t".join(_text(field) for field in row))
        return
    table = Table(*names, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(_text(field) for field in row))
    Console().print(table)


def payload_json(value: bytes) -> Mapping[str, str]:
    """`{"value": text}`, or `{"value_base64": …}` where the bytes are not UTF-8."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def payload_text(value: bytes) -> str:
    """The payload on one line: bytes that are not printable text are shown as escapes."""
    text = value.decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _text(field: object) -> str:
    return "-" if field is None else str(field)
