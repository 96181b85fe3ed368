"""Writes the audit of actions for `headwater actions export`: JSON lines, or a CSV file for each kind of row.

A file gets its name once it is complete.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from broker_edge.draft import open_draft
from broker_edge.errors import ConfigError
from broker_edge.escape import json_line
from headwater_cli._output import say
from headwater_cli._show import cell_of

if TYPE_CHECKING:
    from actions.export import Export
    from broker_edge.fields import FieldTable

_PART = ".part"


def write_json(export: Export, path: Path | None) -> None:
    """One line for each row, with its kind as `row`; times are Unix µs, and null is left out."""
    with _opened(path) as file:
        for kind, row in export:
            given = {name: value for name, value in row.items() if value is not None}
            file.write(json_line({"row": kind, **given}, ascii_only=True) + "\n")
    _tell(export)


def write_csv(export: Export, folder: Path) -> None:
    """A file `<kind>.csv` for each kind, with all columns of its table; times are text in UTC."""
    from actions.export import KINDS

    _make(folder)
    with ExitStack() as files:
        writers = {}
        for kind, table in KINDS.items():
            writers[kind] = csv.writer(files.enter_context(_opened(folder / f"{kind}.csv")), lineterminator="\n")
            writers[kind].writerow(table.names)
        for kind, row in export:
            writers[kind].writerow(_cells(row, KINDS[kind]))
    _tell(export)


def _cells(row: Mapping[str, Any], table: FieldTable) -> Iterator[str]:
    for field in table.fields:
        value = row.get(field.name)
        if value is not None and field.type == "timestamp":
            value = _moment(value)
        elif isinstance(value, list | dict):
            value = json.dumps(value, sort_keys=True)
        yield cell_of(value)


def _moment(at_us: int) -> str:
    """Exact to the microsecond, in UTC."""
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at_us)).isoformat(timespec="microseconds")
    except OverflowError:
        return f"{at_us} µs"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_used = any(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"cannot write to the folder {folder}: {error.strerror}") from error
    if is_used:
        raise ConfigError(f"the folder {folder} is not empty: give another one with --csv")


@contextmanager
def _opened(path: Path | None) -> Iterator[IO[str]]:
    if path is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    part = path.with_name(path.name + _PART)
    try:
        file = open_draft(part, text=True)
    except OSError as error:
        raise ConfigError(f"cannot write the file {path}: {error.strerror}") from error
    try:
        with file:
            yield file
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    part.replace(path)


def _tell(export: Export) -> None:
    from actions.export import KINDS

    numbers = [(kind, export.written[kind]) for kind in KINDS]
    say("wrote " + ", ".join(f"{number} {kind}{'' if number == 1 else 's'}" for kind, number in numbers))
