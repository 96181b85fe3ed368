"""Converts rows of the action tables to the engine's values and back. Opens no table.

A column `…_at` of a table is a field `…_us` of a value: a timestamp in UTC as Unix microseconds.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from operator import attrgetter
from typing import Any

import pyarrow as pa

from actions.engine import (
    Action,
    ActionPhase,
    ActionState,
    Artifact,
    AuditEvent,
    Device,
    DeviceState,
    DeviceTable,
    Ota,
    Quarantined,
    Request,
    Rollout,
    Selector,
    Target,
    TargetState,
    Timeouts,
)
from actions.engine.json_fields import in_short
from sinks.rows import Row, arrow_of
from sinks.tables import (
    ACTION_EVENTS,
    ACTION_STATE,
    ACTION_TARGETS,
    DEFAULT_TENANT,
    DEVICE_STATE,
    QUARANTINE,
    FieldTable,
)


def action_of(row: Row, *, commit_version: int) -> Action:
    """Missing columns, as in a table of an older version, count as null."""
    get = row.get
    return Action(
        action_id=get("action_id") or "",
        tenant=get("tenant") or DEFAULT_TENANT,
        type=get("type") or "command",
        name=get("name") or (get("artifact_name") or "" if get("type") == "ota" else ""),
        params=get("params") or "{}",
        selector=selector_of(row),
        timeouts=Timeouts(*(get(f"timeout_{name}_s") for name in ("queued", "delivered", "in_progress", "step"))),
        deadline_us=get("deadline"),
        created_by=get("created_by") or "",
        confirmed_by=get("confirmed_by"),
        created_us=get("created_at") or 0,
        commit_version=commit_version,
        rollout=_rollout_of(row),
        ota=Ota(
            artifact_name=get("artifact_name"),
            artifact_version=get("artifact_version"),
            mode=get("mode") or "forced",
            supersede=bool(get("supersede")),
            requires_versions=_texts(get("requires_versions")),
            target_version=get("target_version"),
        ),
    )


def selector_of(row: Row) -> Selector:
    """The criteria of a row of `actions` or `selectors`."""
    get = row.get
    return Selector(
        device_ids=_texts(get("device_ids")),
        labels=get("labels"),
        percentage=get("percentage"),
        groups=_texts(get("groups")),
        label_expression=get("label_expression"),
        reported_expression=get("reported_expression"),
        saved=get("selector"),
    )


def _rollout_of(row: Row) -> Rollout:
    backoff_s = row.get("retry_backoff_s")
    return Rollout(
        membership=row.get("membership") or "static",
        waves=row.get("waves"),
        needs_approval=bool(row.get("needs_approval")),
        rate_per_minute=row.get("rate_per_minute"),
        max_in_flight=row.get("max_in_flight"),
        abort_percentage=row.get("abort_percentage"),
        abort_min_reported=row.get("abort_min_reported"),
        not_before_us=row.get("not_before"),
        maintenance_window=row.get("maintenance_window"),
        retries=row.get("retries") or 0,
        retry_backoff_s=Rollout().retry_backoff_s if backoff_s is None else backoff_s,
        priority=row.get("priority") or 0,
        depends_on=_texts(row.get("depends_on")) or (),
    )


def _texts(values: list[str | None] | None) -> tuple[str, ...] | None:
    return tuple(value or "" for value in values) if values is not None else None


def request_of(row: Row, *, committed_us: int) -> Request:
    """`committed_us` replaces a missing `at`."""
    return Request(
        request_id=row["request_id"] or "",
        tenant=row["tenant"] or DEFAULT_TENANT,
        action_id=row["action_id"] or "",
        kind=row["kind"] or "",
        device_id=row["device_id"],
        by=row["by"] or "",
        confirmed_by=row.get("confirmed_by"),
        at_us=row["at"] if row["at"] is not None else committed_us,
        reason=row["reason"] or "",
        wave=row.get("wave"),
    )


def shared_labels(labels: Mapping[str, str] | None) -> Mapping[str, str]:
    return _labels(tuple((labels or {}).items()))


@functools.lru_cache(maxsize=4_096)
def _labels(items: tuple[tuple[str, str], ...]) -> Mapping[str, str]:
    """Devices with the same labels share them: a dictionary for each of a million devices takes 200 MB."""
    return dict(items)


_NOBODY: Mapping[str, str] = {}


def device_of(row: Row) -> Device:
    return Device(
        device_id=row["device_id"] or "",
        tenant=sys.intern(row["tenant"] or DEFAULT_TENANT),
        labels=shared_labels(row["labels"]),
        groups=_texts(row.get("groups")) or (),
        time_zone=row.get("time_zone"),
        log=row.get("log") or None,
    )


def devices_of(rows: Iterable[Row], owners: Mapping[str, str] = _NOBODY) -> DeviceTable:
    """The devices in use, by id. A retired device counts as gone, like one whose row was deleted. Of several rows with
    one id, one of the tenant in `owners` counts, and of these the one that was created first (without a time: last),
    whatever the order of the rows."""

    def rank(row: Row) -> tuple[bool, float, str]:
        return (tenant_of(row) != owners.get(row["device_id"], tenant_of(row)), *_rank(row))

    used, retired = dict[str, Row](), set[str]()
    for row in rows:
        id_ = row["device_id"]
        if not id_:
            continue
        if row.get("retired_at") is not None:
            retired.add(id_)
        elif id_ not in used or rank(row) < rank(used[id_]):
            used[id_] = row
    return DeviceTable({id_: device_of(row) for id_, row in used.items()}, retired=frozenset(retired - used.keys()))


def tenant_of(row: Row) -> str:
    return row["tenant"] or DEFAULT_TENANT


def _rank(row: Row) -> tuple[float, str]:
    created_us = row.get("created_at")
    return (math.inf if created_us is None else created_us, repr(sorted(row.items())))


def artifact_of(row: Row) -> Artifact:
    ids = row["device_ids"]
    withdrawn = None
    if row.get("withdrawn_at") is not None:
        withdrawn = ": ".join(text for text in (row.get("withdrawn_by") or "somebody", row.get("reason")) if text)
    return Artifact(
        name=row["name"] or "",
        version=row["version"] or "",
        tenant=row["tenant"] or DEFAULT_TENANT,
        sha256=row["sha256"] or "",
        size_bytes=row["size_bytes"] or 0,
        signature=row["signature"],
        key_id=row["key_id"],
        labels=row["labels"],
        device_ids=frozenset(ids) if ids is not None else None,
        withdrawn=withdrawn,
    )


TARGET_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("late", "forced", "leaving", "claimed", "erred"), False),
    **dict.fromkeys(("given_up", "wave"), 0),
    "copies": (),
    "tenant": DEFAULT_TENANT,
}
"""What null means in a field of a target: a row of an older version has nulls in newer columns."""
_SHARED = ("action_id", "tenant", "outbox", "mode", "log_id", "receipt_log_id", "report_log_id")


def target_of(row: Row) -> Target:
    fields: dict[str, Any] = {name: row.get(column) for name, column in columns_of(Target)}
    fields |= {name: default for name, default in TARGET_DEFAULTS.items() if fields[name] is None}
    # One text for all targets of an action, not one for each row.
    fields |= {name: sys.intern(text) for name in _SHARED if (text := fields[name]) is not None}
    return Target(**{**fields, "state": TargetState(row["state"]), "copies": tuple(fields["copies"])})


def state_of(row: Row) -> ActionState:
    fields: dict[str, Any] = {name: row.get(column) for name, column in columns_of(ActionState)}
    fields["phase"] = ActionPhase(row["phase"])
    fields["requests_done"] = tuple(row["requests_done"] or ())
    fields["tenant"] = fields["tenant"] or DEFAULT_TENANT
    # Null in a row of an older version.
    fields |= {"counts": fields["counts"] or {}, "sent": fields["sent"] or {}, "forced": bool(fields["forced"])}
    for name, usual in (("wave", 0), ("waves", 1), ("approved", -1)):
        fields[name] = usual if fields[name] is None else fields[name]
    return ActionState(**fields)


def device_state_of(row: Row) -> DeviceState:
    fields: dict[str, Any] = {name: row.get(column) for name, column in columns_of(DeviceState)}
    fields["tenant"] = DEFAULT_TENANT if fields["tenant"] is None else fields["tenant"]
    return DeviceState(**fields)


def targets_table(targets: Iterable[Target]) -> pa.Table:
    return _table(list(targets), Target, ACTION_TARGETS)


def states_table(states: Iterable[ActionState]) -> pa.Table:
    return _table(list(states), ActionState, ACTION_STATE)


def device_states_table(facts: Iterable[DeviceState]) -> pa.Table:
    return _table(list(facts), DeviceState, DEVICE_STATE)


def events_table(events: Iterable[AuditEvent], *, recorded_us: int) -> pa.Table:
    rows = [
        {
            "event_id": event.event_id,
            "tenant": event.tenant,
            "source": "engine",
            "action_id": event.action_id,
            "device_id": event.device_id,
            "attempt": event.attempt,
            "state": event.state,
            "request_id": event.request_id,
            "message": event.message,
            "at": event.at_us,
            "recorded_at": recorded_us,
        }
        for event in events
    ]
    return arrow_of(rows, ACTION_EVENTS)


def quarantine_table(entries: Iterable[Quarantined], *, quarantined_us: int) -> pa.Table:
    """One row per record; a record about several actions may have several reasons."""
    of_place: dict[tuple[str, int, int], list[Quarantined]] = {}
    for entry in entries:
        of_place.setdefault(entry.report.place, []).append(entry)
    rows = [
        {
            "tenant": entry.report.tenant,
            "pipeline": "actions",
            "reason": in_short([one.reason for one in of_one]),
            "topic": "$receipts" if entry.report.source == "receipt" else f"devices/{entry.report.device_id}/status",
            "key": entry.report.device_id.encode(),
            "log_id": entry.report.log_id,
            "partition": entry.report.partition,
            "offset": entry.report.offset,
            "at": entry.report.at_us,
            "quarantined_at": quarantined_us,
        }
        for of_one in of_place.values()
        for entry in of_one[:1]
    ]
    return arrow_of(rows, QUARANTINE)


@functools.lru_cache
def columns_of(kind: Any) -> tuple[tuple[str, str], ...]:
    """(field, column) pairs."""
    names = [field.name for field in dataclasses.fields(kind)]
    return tuple((name, f"{name.removesuffix('_us')}_at" if name.endswith("_us") else name) for name in names)


def _table(values: Sequence[Any], kind: Any, table: FieldTable) -> pa.Table:
    """Builds columns: an action may have a hundred thousand targets, and one dictionary per row takes seconds."""
    names = {column: name for name, column in columns_of(kind)}
    columns = []
    for field in table.arrow_schema():
        found = list(map(attrgetter(names[field.name]), values))
        if found and isinstance(found[0], Enum):
            found = [one.value for one in found]
        elif field.name == "copies":
            found = [list(one) or None for one in found]  # Null is easier to look for than an empty list.
        elif pa.types.is_map(field.type):
            found = [list(one.items()) for one in found]
        columns.append(pa.array(found, field.type))
    return pa.Table.from_arrays(columns, schema=table.arrow_schema())
