"""How far an action is, for people: its devices in groups, one device with its events, all of them for a file.

The groups are made in SQL, so that 100,000 targets cost no loop in Python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actions.engine.windows import is_open
from actions.fleet_desk import FleetDesk
from actions.rows import action_of
from broker_edge.escape import moment
from sinks.rows import now_us
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


def waits(desk: FleetDesk, row: Mapping[str, Any]) -> list[str]:
    """For what the PENDING targets of the action in this row of `action_state` wait, as far as the action itself says
    it. Why single devices wait, such as for a route, is in their messages."""
    pending = [cell for cell in desk.waves(row["action_id"]) if cell["state"] == "PENDING"]
    stored = desk.stored(row["action_id"]) if pending else None
    if stored is None:
        return []
    rollout, now = action_of(stored, commit_version=0).rollout, now_us()
    later = sum(cell["number"] for cell in pending if (cell["wave"] or 0) > (row["wave"] or 0))
    found = [f"{later} for a later wave"] if later else []
    if later == sum(cell["number"] for cell in pending):
        return found
    if rollout.not_before_us is not None and rollout.not_before_us > now:
        found.append(f"until {moment(rollout.not_before_us)}")
    if rollout.maintenance_window is not None:
        zones = {one["time_zone"] or "UTC" for one in desk.query("devices", "SELECT DISTINCT time_zone FROM devices")}
        closed = sorted(zone for zone in zones if not is_open(rollout.maintenance_window, zone, now))
        if closed:
            more = ", …" if len(closed) > _EXAMPLES else ""
            where = ", ".join(closed[:_EXAMPLES]) + more
            found.append(f"for the window {rollout.maintenance_window}, which is closed now in {where}")
    if rollout.rate_per_minute is not None:
        found.append(f"for the rate of {rollout.rate_per_minute} a minute")
    if rollout.max_in_flight is not None:
        found.append(f"for others, as at most {rollout.max_in_flight} work at once")
    if rollout.depends_on:
        found.append(f"for {', '.join(rollout.depends_on)}")
    return found


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
