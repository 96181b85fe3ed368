"""Reads a fleet's inventory from CSV: one row per device, checked completely before anything is written.

The columns of the file say what it decides: what has no column stays as it is in the table. Opens no table.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zoneinfo import ZoneInfo

from actions.engine.admission import can_be_a_level
from broker_edge.errors import SettingsError
from broker_edge.regular_file import read_regular_text

FILE_BYTES_MAX = 64 << 20
ROWS_MAX = 1_000_000
COLUMNS_MAX = 1_000
_COLUMNS = ("device_id", "time_zone", "groups", "log")
_LABEL = ("label.", "labels.")
_TOLD_MAX = 3
"""Maximum number of wrong lines that one message shows."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the inventory says about one device. None: it says nothing. An empty text or tuple removes the value."""

    device_id: str
    time_zone: str | None = None
    groups: tuple[str, ...] | None = None
    log: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels to set; an empty value removes the label. Labels that are not named stay."""


class _LineError(ValueError):
    pass


def read_inventory(path: Path) -> list[Wanted]:
    """The devices of a CSV file in its order. Raises SettingsError that names the lines."""
    try:
        size_bytes = path.stat().st_size
        if size_bytes > FILE_BYTES_MAX:
            raise SettingsError(f"{path} has {size_bytes:,} bytes, above the limit of {FILE_BYTES_MAX:,}: split it")
        text = read_regular_text(path, "utf-8-sig")
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 (byte {error.start:,}): save it as CSV UTF-8") from error
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        return _devices(str(path), rows)
    except csv.Error as error:
        raise SettingsError(f"{path}:{rows.line_num}: this is not CSV: {error}") from error


def checked_time_zone(name: str) -> str:
    """Returns the name; an empty one means that no time zone is given. Raises ValueError for an unknown time zone."""
    if not name:
        return name
    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{name!r} is not a time zone: write an IANA name such as Europe/Berlin") from error
    return name


def _devices(path: str, rows: Iterator[list[str]]) -> list[Wanted]:
    header = next(rows, None)
    if not header:
        raise SettingsError(f"{path} has no header row: its first line names the columns, such as device_id,groups")
    names = _header(path, header)
    found: list[Wanted] = []
    wrong: list[str] = []
    wrong_lines = 0
    lines: dict[str, int] = {}
    start = 2
    for row in rows:
        line, start = start, rows.line_num + 1  # type: ignore[attr-defined]
        if not row:
            continue
        if len(found) + wrong_lines >= ROWS_MAX:
            raise SettingsError(f"{path}:{line}: nothing was written: it has more than {ROWS_MAX:,} devices: split it")
        try:
            device = _device(names, row)
            if device.device_id in lines:
                raise _LineError(f"device {device.device_id} is in line {lines[device.device_id]} too")
            lines[device.device_id] = line
            found.append(device)
        except ValueError as error:
            wrong_lines += 1
            if len(wrong) < _TOLD_MAX:
                wrong.append(f"{path}:{line}: {error}")
    if wrong:
        more = f"; {wrong_lines - _TOLD_MAX} more lines are wrong" if wrong_lines > _TOLD_MAX else ""
        raise SettingsError(f"nothing was written: {'; '.join(wrong)}{more}")
    return found


def _header(path: str, header: Sequence[str]) -> list[str]:
    if len(header) > COLUMNS_MAX:
        raise SettingsError(f"{path}:1: it has {len(header):,} columns; the limit is {COLUMNS_MAX:,}: split it")
    names = [_column(path, at, name.strip()) for at, name in enumerate(header, start=1)]
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise SettingsError(f"{path}:1: column {twice} is there twice")
    if "device_id" not in names:
        raise SettingsError(f"{path}:1: there is no column device_id: it names the device of each row")
    return names


def _column(path: str, at: int, name: str) -> str:
    if name in _COLUMNS:
        return name
    for prefix in _LABEL:
        if name.startswith(prefix) and name != prefix:
            return "label." + name.removeprefix(prefix)
    near = difflib.get_close_matches(name.lower(), [*_COLUMNS, *(prefix.rstrip(".") for prefix in _LABEL)], 1, 0.6)
    meant = f"did you mean {near[0] if near[0] in _COLUMNS else 'label.<name>'}? " if near else ""
    raise SettingsError(
        f"{path}:1: column {at} is called {name!r}: {meant}Columns are {', '.join(_COLUMNS)} and label.<name>"
    )


def _device(names: Sequence[str], row: Sequence[str]) -> Wanted:
    if len(row) != len(names):
        raise _LineError(f"it has {len(row)} fields, and the header {len(names)}")
    cells = {name: cell.strip() for name, cell in zip(names, row, strict=True)}
    device_id = cells.pop("device_id")
    if not device_id:
        raise _LineError("device_id is empty")
    if not can_be_a_level(device_id):
        raise _LineError(
            f"device id {device_id!r} cannot be a level of a topic: it has /, +, # or control characters, "
            "or over 1,024 bytes"
        )
    groups = cells.get("groups")
    texts = None if groups is None else [one.strip() for one in groups.split(";")]
    time_zone = cells.get("time_zone")
    return Wanted(
        device_id=device_id,
        time_zone=None if time_zone is None else checked_time_zone(time_zone),
        groups=None if texts is None else tuple(dict.fromkeys(one for one in texts if one)),
        log=cells.get("log"),
        labels={name.removeprefix("label."): cell for name, cell in cells.items() if name.startswith("label.")},
    )
