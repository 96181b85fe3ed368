"""What `headwater actions show` prints: devices, groups of devices, one device, or CSV."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

from broker_edge.errors import NotFoundError
from broker_edge.escape import moment, shown
from headwater_cli._output import put, put_fields, put_json, put_rows, say

if TYPE_CHECKING:
    from actions.fleet_desk import FleetDesk

_DEVICES_MAX = 50
"""Up to this number of targets each is shown; above it, groups."""
_DEVICE_NAMES = ("device_id", "state", "attempt", "progress", "message", "result")
_EVENT_NAMES = ("at", "source", "state", "attempt", "message")
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""How a formula begins, also in the wide characters that some spreadsheets take for the same."""


def show_action(desk: FleetDesk, row: dict[str, Any], *, every: bool, json: bool) -> None:
    from actions.progress import groups, waits

    action_id, every = row["action_id"], every or (row["targets"] or 0) <= _DEVICES_MAX
    if not json:
        say(f"{row['phase']}: {row['message']}")
        if held := waits(desk, row):
            say(f"PENDING devices wait: {'; '.join(held)}")
    if every:
        targets = desk.targets(action_id)
        if json:
            put_json({**_plain(row), "devices": [_plain(target) for target in targets]})
        else:
            put_rows(_DEVICE_NAMES, [[target[name] for name in _DEVICE_NAMES] for target in targets])
        return
    found = groups(desk, action_id)
    if json:
        put_json({**_plain(row), "groups": found})
        return
    rows = [(one["state"], one["devices"], one["message"], _examples(one)) for one in found]
    put_rows(("state", "devices", "message", "for example"), rows)
    left = (row["targets"] or 0) - sum(one["devices"] for one in found)
    if left > 0:
        say(f"{left} more devices are in smaller groups")
    say("--devices or --csv shows every device, --device ID all about one")


def _examples(group: dict[str, Any]) -> str:
    more = ", …" if group["devices"] > len(group["examples"]) else ""
    return ", ".join(group["examples"]) + more


def show_device(desk: FleetDesk, row: dict[str, Any], device_id: str, *, json: bool) -> None:
    from actions.progress import device_of

    found = device_of(desk, row["action_id"], device_id)
    if found is None:
        raise NotFoundError(f"device {device_id} is not a target of action {row['action_id']}")
    target, events = found
    if json:
        put_json({"target": _plain(target), "events": [_plain(event) for event in events]})
        return
    for name, value in _plain(target).items():
        put_fields(name, _said(name, value))
    for event in events:
        put_fields("event", _moment(event["at"]), *(event[name] for name in _EVENT_NAMES[1:]))


def show_csv(desk: FleetDesk, action_id: str) -> None:
    from actions.progress import CSV_NAMES, csv_targets

    put(_line(CSV_NAMES))
    for target in csv_targets(desk, action_id):
        put(_line([_said(name, target[name]) for name in CSV_NAMES]))


def _said(name: str, value: Any) -> Any:
    """A column for people: times as text, waves from 1 as in `plan`."""
    if value is None:
        return None
    return _moment(value) if name.endswith("_at") else value + 1 if name == "wave" else value


def _line(values: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow([cell_of(value) for value in values])
    return text.getvalue()


def cell_of(value: Any) -> str:
    """Without control characters. A text from a device must not become a formula in a spreadsheet."""
    text = "" if value is None else shown(str(value))
    is_formula = isinstance(value, str) and text.lstrip().startswith(_FORMULA)
    return f"'{text}" if is_formula else text


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if value is not None}


def _moment(at_us: int | None) -> str | None:
    return None if at_us is None else moment(at_us, "milliseconds")
