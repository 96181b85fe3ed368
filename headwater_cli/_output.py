"""Output of commands: JSON, a table on a terminal, tab-separated rows in a pipe; messages on stderr.

Text from outside is escaped here, for terminals and pipes alike; only `put` takes a line unchanged.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker_edge.escape import json_line, shown, shown_lines

if TYPE_CHECKING:
    from rich.text import Text

_ID_CELLS_MAX = 36


def say(text: str) -> None:
    """Prints a line for the user to stderr, never data."""
    print(shown(text), file=sys.stderr, flush=True)


def say_lines(text: str) -> None:
    """Prints several lines to stderr: help, a position in a file, a traceback."""
    print(shown_lines(text), file=sys.stderr, flush=True)


def put(text: str) -> None:
    """Prints a line of data; the caller has made it printable except for tabs between fields."""
    try:
        print(text, flush=True)
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)


def put_fields(*fields: object) -> None:
    """Prints a line of data: the fields separated by tabs."""
    put("\t".join(cell(field) for field in fields))


def put_json(value: Any) -> None:
    """Prints one JSON document on one line."""
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "").replace("_", "")
    put(json_line(value, ascii_only=not encoding.startswith("utf")))


def put_rows(names: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str | None = None) -> None:
    """Prints a table on a terminal, long values on several lines; in a pipe, tab-separated lines, the first with the
    names. Without rows it only says `empty` on stderr, if given."""
    if not rows and empty is not None:
        say(empty)
        return
    if not sys.stdout.isatty():
        for row in (names, *rows):
            put_fields(*row)
        return
    from rich import box  # It takes longer to load than many commands to run.
    from rich.console import Console
    from rich.table import Table

    cells = [[text_cell(field) for field in row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD)
    for place, name in enumerate(names):
        # People copy the id in the first column: it stays on one line if the others can give way.
        least = max((row[place].cell_len for row in cells), default=0) if place == 0 else 0
        table.add_column(name, overflow="fold", min_width=min(least, _ID_CELLS_MAX))
    for row in cells:
        table.add_row(*row)
    Console().print(table)


def payload_json(value: bytes) -> Mapping[str, str]:
    """`{"value": text}`, or `{"value_base64": …}` if the bytes are not UTF-8."""
    try:
        return {"value": value.decode()}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(value).decode()}


def payload_text(value: bytes) -> str:
    """The payload on one line; bytes that are not printable text become escapes."""
    return shown(value.decode(errors="backslashreplace"))


def cell(field: object) -> str:
    """A field of a row."""
    return "-" if field is None else shown(str(field))


def text_cell(field: object) -> Text:
    """A field of a table. A plain string would be parsed for Rich's own markup."""
    from rich.text import Text

    return Text(cell(field))
