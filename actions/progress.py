"""How far an action is, for people: its devices in groups, one device with its events, all of them for a file.

The groups are made in SQL, so that 100,000 targets cost no loop in Python.
"""

from __future__ import annotations

from typing import Any

from actions.fleet_desk import FleetDesk
from sinks.sql_text import literal

GROUPS_MAX = 100
_EXAMPLES = 3

CSV_NAMES = (
    "device_id",
    "state",
    "attempt",
    "wave",
    "progress",
    "message",
    "result",
    "late",
    "created_at",
    "queued_at",
    "delivered_at",
    "accepted_at",
    "started_at",
    "finished_at",
    "updated_at",
)


def groups(desk: FleetDesk, action_id: str) -> list[dict[str, Any]]:
    """The targets by state and message, the largest groups first, at most `GROUPS_MAX`: `state`, `message`, `devices`
    (their number) and up to 3 ids as `examples`."""
    rows = desk.history.targets(
        f"action_id = {literal(action_id)}",
        "SELECT state, message, device_id, number FROM (SELECT state, message, device_id, "
        "row_number() OVER (PARTITION BY state, message ORDER BY device_id) AS place, "
        "count(*) OVER (PARTITION BY state, message) AS number "
        f"FROM targets) AS ranked WHERE place <= {_EXAMPLES} "
        f"ORDER BY number DESC, state, message, place LIMIT {GROUPS_MAX * _EXAMPLES}",
    )
    found: dict[tuple[str, str | None], dict[str, Any]] = {}
    for row in rows:
        key = (row["state"], row["message"])
        new = {"state": row["state"], "message": row["message"], "devices": row["number"], "examples": []}
        found.setdefault(key, new)["examples"].append(row["device_id"])
    return list(found.values())[:GROUPS_MAX]


def device_of(desk: FleetDesk, action_id: str, device_id: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
    """The target's row and its events by time; None if the action does not have this device."""
    where = f"action_id = {literal(action_id)} AND device_id = {literal(device_id)}"
    targets = desk.history.targets(where)
    if not targets:
        return None
    return targets[0], sorted(desk.events(where), key=lambda row: (row["at"], row["recorded_at"]))


def csv_targets(desk: FleetDesk, action_id: str) -> list[dict[str, Any]]:
    """The columns `CSV_NAMES` of all targets, by device id."""
    select = f"SELECT {', '.join(CSV_NAMES)} FROM targets ORDER BY device_id"
    return desk.history.targets(f"action_id = {literal(action_id)}", select)
