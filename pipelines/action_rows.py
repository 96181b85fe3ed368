"""Rows of the action tables to the engine's values and back. Shapes only: no table is opened here.

A column `…_at` of a table is a field `…_us` of a value: a timestamp in UTC, as Unix microseconds.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from pipelines.engine import (
    Action,
    ActionPhase,
    ActionState,
    AuditEvent,
    Device,
    Quarantined,
    Report,
    Request,
    Selector,
    Target,
    TargetState,
    Timeouts,
)
from pipelines.tables import ACTION_EVENTS, ACTION_STATE, ACTION_TARGETS, DEFAULT_TENANT, QUARANTINE, Table

Row = Mapping[str, Any]


def now_us() -> int:
    return time.time_ns() // 1_000


def rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows as dictionaries: timestamps as Unix microseconds, maps as dictionaries."""
    maps = []
    for index, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            column = table.column(index).cast(pa.timestamp("us", "UTC")).cast(pa.int64())
            table = table.set_column(index, field.name, column)
        elif pa.types.is_map(field.type):
            maps.append(field.name)
    for row in table.to_pylist():
        for name in maps:
            if row[name] is not None:
                row[name] = dict(row[name])
        yield row


def arrow_of(rows: Iterable[Row], table: Table) -> pa.Table:
    """The rows in the schema of `table`; columns that a row lacks are null."""
    schema = table.arrow_schema()
    taken = list(rows)
    columns = []
    for field in schema:
        values = [row.get(field.name) for row in taken]
        if pa.types.is_map(field.type):
            values = [list(value.items()) if value is not None else None for value in values]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=schema)


def action_of(row: Row, *, commit_version: int) -> Action:
    ids, labels = row["device_ids"], row["labels"]
    return Action(
        action_id=row["action_id"] or "",
        tenant=row["tenant"] or DEFAULT_TENANT,
        type=row["type"] or "command",
        name=row["name"] or "",
        params=row["params"] or "{}",
        selector=Selector(
            device_ids=tuple(id_ or "" for id_ in ids) if ids is not None else None,
            labels=labels,
            percentage=row["percentage"],
        ),
        timeouts=Timeouts(row["timeout_queued_s"], row["timeout_delivered_s"], row["timeout_in_progress_s"]),
        deadline_us=row["deadline"],
        created_by=row["created_by"] or "",
        created_us=row["created_at"] or 0,
        commit_version=commit_version,
    )


def request_of(row: Row, *, committed_us: int) -> Request:
    """`committed_us` stands in for a missing `at`."""
    return Request(
        request_id=row["request_id"] or "",
        tenant=row["tenant"] or DEFAULT_TENANT,
        action_id=row["action_id"] or "",
        kind=row["kind"] or "",
        device_id=row["device_id"],
        by=row["by"] or "",
        at_us=row["at"] if row["at"] is not None else committed_us,
        reason=row["reason"] or "",
    )


def device_of(row: Row) -> Device:
    return Device(device_id=row["device_id"] or "", tenant=row["tenant"] or DEFAULT_TENANT, labels=row["labels"] or {})


def report_of(row: Row) -> Report:
    return Report(
        source=row["source"],
        log_id=row["log_id"],
        partition=row["partition"],
        offset=row["offset"],
        device_id=row["device_id"],
        action_id=row["action_id"],
        attempt=row["attempt"],
        state=row["state"],
        at_us=row["at"],
        recorded_us=row["recorded_at"],
        tenant=row["tenant"] or DEFAULT_TENANT,
        boot=row["boot"],
        seq=row["seq"],
        progress=row["progress"],
        message=row["message"],
        result=row["result"],
        command_partition=row["command_partition"],
        command_offset=row["command_offset"],
    )


def target_of(row: Row) -> Target:
    fields = {name: row[_column(name)] for name in _names(Target)}
    return Target(**{**fields, "state": TargetState(row["state"]), "late": bool(row["late"])})


def state_of(row: Row) -> ActionState:
    fields = {name: row[_column(name)] for name in _names(ActionState)}
    fields["phase"] = ActionPhase(row["phase"])
    fields["counts"] = row["counts"] or {}
    fields["requests_done"] = tuple(row["requests_done"] or ())
    return ActionState(**fields)


def targets_table(targets: Iterable[Target]) -> pa.Table:
    return arrow_of((_row(target) for target in targets), ACTION_TARGETS)


def states_table(states: Iterable[ActionState]) -> pa.Table:
    return arrow_of((_row(state) for state in states), ACTION_STATE)


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
    rows = [
        {
            "tenant": entry.report.tenant,
            "pipeline": "actions",
            "reason": entry.reason,
            "topic": "$receipts" if entry.report.source == "receipt" else f"devices/{entry.report.device_id}/status",
            "key": entry.report.device_id.encode(),
            "log_id": entry.report.log_id,
            "partition": entry.report.partition,
            "offset": entry.report.offset,
            "at": entry.report.at_us,
            "quarantined_at": quarantined_us,
        }
        for entry in entries
    ]
    return arrow_of(rows, QUARANTINE)


def _names(kind: type[Target] | type[ActionState]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _column(name: str) -> str:
    return f"{name.removesuffix('_us')}_at" if name.endswith("_us") else name


def _row(value: Target | ActionState) -> dict[str, Any]:
    return {_column(name): getattr(value, name) for name in _names(type(value))}
