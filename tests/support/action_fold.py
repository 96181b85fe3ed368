"""Computes the expected state of each target from `action_events`, without the engine, and compares it with
`action_targets`.

For commands only: a device's final status ends its target. Firmware also needs proof of a version, which only the
engine judges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from sinks.rows import rows_of
from sinks.tables import uri_of

_SAID_LAST = frozenset({"SUCCEEDED", "FAILED", "REJECTED", "CANCELLED"})
_OPEN = ("DELIVERED", "ACCEPTED", "IN_PROGRESS")
"""Order of the states that a device or its broker can report of an open target."""
_BY_PEOPLE = frozenset({"PENDING", "QUEUED", "CANCELLING", "CANCELLED", "SKIPPED", "REMOVED"})
"""Decided by requests, rules and log offsets, for which the events have no row per target."""

Place = tuple[str, int, int]


@dataclass(slots=True)
class _Said:
    """The reports about one attempt."""

    last: list[tuple[Place, str]] = field(default_factory=list)
    open: set[str] = field(default_factory=set)
    timed_out: bool = False


def fold_differences(root: Path | str) -> list[str]:
    """`differences` of the tables under `root`."""
    return differences(_rows(root, "action_events"), _rows(root, "action_targets"))


def differences(events: list[dict[str, Any]], targets: list[dict[str, Any]]) -> list[str]:
    """A sentence for each duplicate event, and for each target whose state does not follow from its events."""
    doubled = [id_ for id_, count in Counter(event["event_id"] for event in events).items() if count > 1]
    said: dict[tuple[str, str, int], _Said] = defaultdict(_Said)
    for event in _in_turn(events):
        if event["device_id"] is None or event["attempt"] is None:
            continue
        one = said[event["action_id"], event["device_id"], event["attempt"]]
        if event["source"] == "engine":
            one.timed_out |= event["state"] == "TIMED_OUT"
        elif event["state"] in _SAID_LAST:
            one.last.append(((event["log_id"], event["partition"], event["offset"]), event["state"]))
        elif event["state"] in _OPEN:
            one.open.add(event["state"])
    wrong = [f"event {id_} is there twice" for id_ in doubled]
    for target in targets:
        key = (target["action_id"], target["device_id"], target["attempt"])
        earlier = [said[(*key[:2], attempt)] for attempt in range(1, target["attempt"])]
        if target["late"] and any(what == "SUCCEEDED" for one in earlier for _, what in one.last):
            continue  # Another attempt, which had been given up, succeeded and made this one unnecessary.
        problem = _problem(target, said.get(key) or _Said())
        if problem is not None:
            wrong.append(f"{'/'.join(map(str, key))} is {target['state']}, and {problem}")
    return wrong


def _in_turn(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By offset within a partition; across partitions and logs as they were recorded."""
    recorded: dict[tuple[str, int], int] = {}
    ranked = []
    for event in sorted(events, key=lambda one: (one["log_id"] or "", one["partition"] or 0, one["offset"] or 0)):
        place = (event["log_id"] or "", event["partition"] or 0)
        recorded[place] = max(recorded.get(place, 0), event["recorded_at"] or 0)
        ranked.append((recorded[place], *place, event))
    ranked.sort(key=lambda rank: rank[:-1])  # Stable: offsets stay in order.
    return [rank[-1] for rank in ranked]


def _problem(target: dict[str, Any], said: _Said) -> str | None:
    state = target["state"]
    if said.timed_out and not any(what == "SUCCEEDED" for _, what in said.last):
        # A different final status may have arrived just before it, or too late.
        allowed = {"TIMED_OUT", *(what for _, what in said.last[:1])}
        return None if state in allowed else "the engine reported a timeout"
    if said.last:
        succeeded = [one for one in said.last if one[1] == "SUCCEEDED"]
        place, what = succeeded[0] if said.timed_out else said.last[0]
        if state != what:
            return f"the device reported {what} at {place}"
        decided = (target["report_log_id"], target["report_partition"], target["report_offset"])
        return None if decided == place else f"decided by {decided}, but the device first reported it at {place}"
    if state in _BY_PEOPLE:
        return None
    newest = max(said.open, key=_OPEN.index, default=None)
    return None if state == newest else f"the furthest reported state is {newest}"


def _rows(root: Path | str, name: str) -> list[dict[str, Any]]:
    return list(rows_of(DeltaTable(uri_of(root, name)).to_pyarrow_table()))
