"""A fleet for the pages of its console: `headwater console` as a process, and tables with something for every page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deltalake import write_deltalake

from sinks import tables
from sinks.rows import arrow_of, now_us

SECOND_US = 1_000_000
VIEWS = {"Brokers": "b", "Rollouts": "o", "Devices": "d", "Quality": "q", "Trace": "r"}
"""Name of a page to its key after `g`."""
ROLLOUT = "firmware-2.1.0"
WAITING = "firmware-2.2.0"
NO_SPACE = "no space left on the device"
_FINAL = {"SUCCEEDED", "FAILED", "REJECTED", "TIMED_OUT", "CANCELLED", "SKIPPED", "REMOVED"}


def insert(root: Path, table: tables.FieldTable, *rows: dict[str, Any]) -> None:
    write_deltalake(tables.uri_of(root, table.name), arrow_of(rows, table), mode="append")


def some_life(root: Path) -> None:
    """Something for every page: two rollouts in waves, one that failed at some devices, devices of two versions, a rule
    that was broken, a record in quarantine and a gap."""
    tables.create_by_path(root)
    states = ["SUCCEEDED"] * 6 + ["FAILED"] * 2 + ["IN_PROGRESS"] * 2 + ["PENDING"] * 10
    rollout(root, ROLLOUT, [(f"press-{number}", state) for number, state in enumerate(states)], waves=2)
    rollout(root, WAITING, [(f"mixer-{number}", "PENDING") for number in range(4)], waves=2, phase="WAITING_APPROVAL")
    for number in range(20):
        status = "FAILED" if states[number] == "FAILED" else "SUCCEEDED"
        device(root, f"press-{number}", version="2.1.0" if number < 6 else "2.0.9", status=status)
    now = now_us()
    checked = {"message": "telemetry", "source": "batch", "column": "temperature", "on_fail": "quarantine", "at": now}
    insert(root, tables.DQ_RESULTS, {**checked, "rule": "in_range", "success": False, "checked": 900, "failed": 3})
    quarantine(root, "the payload is not JSON")
    gap = {"log_id": "log-a", "partition": 2, "partition_name": "telemetry-2", "start": 4_711, "end": 4_800}
    report = {"report_log_id": "log-a", "report_offset": 1, "reported_at": now, "recorded_at": now}
    insert(root, tables.INGEST_GAPS, {**gap, **report, "reason": "damage"})
    records(root, 7)


def rollout(
    root: Path,
    action_id: str,
    targets: Sequence[tuple[str, str]],
    *,
    waves: int = 1,
    phase: str = "RUNNING",
    message: str = "wave 1 is open",
    failure: str = NO_SPACE,
    by: str = "ann",
) -> None:
    """An action as its user has ordered it, and as the engine leaves it."""
    now = now_us()
    action = {"artifact_name": "firmware", "artifact_version": action_id[-5:], "type": "ota", "name": "update"}
    insert(root, tables.ACTIONS, {"action_id": action_id, **action, "created_by": by, "created_at": now})
    counts: dict[str, int] = {}
    rows = []
    for number, (device_id, state) in enumerate(targets):
        counts[state] = counts.get(state, 0) + 1
        sent = now - 60 * SECOND_US
        row = {"action_id": action_id, "device_id": device_id, "attempt": 1, "state": state, "updated_at": now}
        row |= {"wave": number * waves // len(targets), "message": failure if state == "FAILED" else None}
        if state != "PENDING":
            row |= {"queued_at": sent, "delivered_at": sent + SECOND_US, "started_at": sent + 3 * SECOND_US}
            row |= {"log_id": "log-a", "partition": 5, "offset": number}
        if state in _FINAL:
            row["finished_at"] = sent + 30 * SECOND_US
        rows.append(row)
    open_ = sum(number for state, number in counts.items() if state not in _FINAL)
    progress = {"targets": len(rows), "open": open_, "counts": counts, "wave": 0, "waves": waves, "message": message}
    times = {"started_at": now, "updated_at": now}
    insert(root, tables.ACTION_STATE, {"action_id": action_id, "phase": phase, "digest": "d", **progress, **times})
    insert(root, tables.ACTION_TARGETS, *rows)


def device(root: Path, device_id: str, *, version: str, label: str = "roof", status: str = "SUCCEEDED") -> None:
    now = now_us()
    described = {"device_id": device_id, "labels": {"site": label}, "groups": ["presses"], "created_at": now}
    insert(root, tables.DEVICES, described)
    reported = {"version": version, "product": "press", "hardware": "rev-b", "last_seen_at": now, "log_id": "log-a"}
    last = {"last_action_id": ROLLOUT, "last_status": status, "partition": 1, "offset": 1, "updated_at": now}
    insert(root, tables.DEVICE_STATE, {"device_id": device_id, **reported, **last})


def records(root: Path, offset: int, *, topic: str = "devices/press-0/telemetry") -> None:
    """A record of log-a in bronze, and its row in silver."""
    now = now_us()
    place = {"log_id": "log-a", "partition": 2, "offset": offset, "epoch": 1, "topic": topic, "tenant": "default"}
    place |= {"ingest_date": datetime.fromtimestamp(now / SECOND_US, UTC).date()}
    raw = {"key": b"press-0", "device_id": "press-0", "value": b"{}", "timestamp": now, "timestampType": 1}
    insert(root, tables.BRONZE, {**place, **raw, "qos": 1, "retain": False, "client_id": "press-0"})
    row = {**place, "device_id": "press-0", "event_time": now, "ingest_time": now}
    insert(root, tables.silver_table("silver_presses", ()), row)


def quarantine(root: Path, reason: str) -> None:
    place = {"log_id": "log-a", "partition": 2, "offset": 7, "quarantined_at": now_us()}
    insert(root, tables.QUARANTINE, {"pipeline": "silver/telemetry", "reason": reason, **place})
