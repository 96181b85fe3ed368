"""How commands show what they found: JSON, a table on a terminal, tab-separated rows into a pipe; talk on stderr.

What comes from outside is escaped here, on a terminal and into a pipe alike; only `put` takes a line as it is.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from broker_edge.escape import json_line, shown, shown_lines


def say(text: str) -> None:
    """A line for the person at the terminal, never data."""
    print(shown(text), file=sys.stderr, flush=True)


def say_lines(text: str) -> None:
    """The same for several lines: help, the place of a mistake in a file, a traceback."""
    print(shown_lines(text), file=sys.stderr, flush=True)


def put(text: str) -> None:
    """A line of data, printable by now but for the tabs between its fields."""
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def put_fields(*fields: object) -> None:
    """A line of data: the fields with tabs between them."""
    put("\t".join(cell(field) for field in fields))


def put_json(value: Any) -> None:
    """One JSON document on one line."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "").replace("_", "")
    put(json_line(value, ascii_only=not encoding.startswith("utf")))


def put_rows(names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on a terminal; into a pipe, rows of tab-separated fields without a heading."""
    if not sys.stdout.isatty():
        for row in rows:
            put_fields(*row)
        return
    table = Table(*names, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(text_cell(field) for field in row))
    Console().print(table)


def payload_json(value: bytes) -> Mapping[str, str]:
    """`{"value": text}`, or `{"value_base64": …}` where the bytes are not UTF-8."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def payload_text(value: bytes) -> str:
    """The payload on one line: bytes that are not printable text are shown as escapes."""
    return shown(value.decode(errors="backslashreplace"))


def cell(field: object) -> str:
    """A field of a row."""
    return "-" if field is None else shown(str(field))


def text_cell(field: object) -> Text:
    """A field of a table: a plain string would be searched for Rich's own markup."""
    return Text(cell(field))
