"""The comparison of targets with their events, on which the kill runs rely, finds each difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from support.action_fold import fold_differences

from sinks.rows import arrow_of
from sinks.tables import ACTION_EVENTS, ACTION_TARGETS, FieldTable, create_by_path, uri_of

PLACE = {"report_log_id": "log", "report_partition": 5}


def insert(root: Path, table: FieldTable, *rows: dict[str, Any]) -> None:
    write_deltalake(uri_of(root, table.name), arrow_of(rows, table), mode="append")


def status(offset: int, state: str, *, attempt: int = 1) -> dict[str, Any]:
    place = {"log_id": "log", "partition": 5, "offset": offset}
    common = {"event_id": f"log/5/{offset}", "action_id": "a1", "device_id": "d1", "attempt": attempt}
    return {"source": "status", "state": state, **common, **place}


def time_is_over(*, attempt: int = 1) -> dict[str, Any]:
    id_ = f"engine/a1/d1/{attempt}/TIMED_OUT"
    common = {"action_id": "a1", "device_id": "d1", "attempt": attempt}
    return {"event_id": id_, "source": "engine", "state": "TIMED_OUT", **common}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    create_by_path(tmp_path, tables=(ACTION_EVENTS, ACTION_TARGETS))
    return tmp_path


@pytest.mark.parametrize(
    ("events", "target"),
    [
        ([], {"state": "PENDING"}),
        ([status(1, "IN_PROGRESS"), status(0, "ACCEPTED")], {"state": "IN_PROGRESS"}),
        # The first final status counts, with its position in the log.
        ([status(1, "SUCCEEDED"), status(2, "FAILED")], {"state": "SUCCEEDED", **PLACE, "report_offset": 1}),
        ([status(1, "IN_PROGRESS"), time_is_over()], {"state": "TIMED_OUT"}),
        # A late success replaces a timeout.
        ([time_is_over(), status(1, "SUCCEEDED")], {"state": "SUCCEEDED", **PLACE, "report_offset": 1}),
        # It may also arrive when the next attempt is due, and makes that attempt unnecessary.
        ([time_is_over(), status(1, "SUCCEEDED")], {"state": "SUCCEEDED", "attempt": 2, "late": True}),
        # Otherwise a report on an older attempt changes nothing.
        ([status(1, "FAILED"), status(2, "ACCEPTED", attempt=2)], {"state": "ACCEPTED", "attempt": 2}),
    ],
)
def test_a_target_that_is_what_its_events_say_is_well(
    root: Path, events: list[dict[str, Any]], target: dict[str, Any]
) -> None:
    if events:
        insert(root, ACTION_EVENTS, *events)
    insert(root, ACTION_TARGETS, {"action_id": "a1", "device_id": "d1", "attempt": 1, **target})
    assert fold_differences(root) == []


@pytest.mark.parametrize(
    ("events", "target", "says"),
    [
        ([status(1, "SUCCEEDED")], {"state": "QUEUED"}, "the device reported SUCCEEDED"),
        ([status(1, "IN_PROGRESS")], {"state": "DELIVERED"}, "the furthest reported state is IN_PROGRESS"),
        ([], {"state": "SUCCEEDED"}, "the furthest reported state is None"),
        ([time_is_over()], {"state": "QUEUED"}, "the engine reported a timeout"),
        ([time_is_over(), status(1, "SUCCEEDED")], {"state": "TIMED_OUT"}, "the device reported SUCCEEDED"),
        (
            [status(1, "FAILED"), status(2, "FAILED")],
            {"state": "FAILED", **PLACE, "report_offset": 2},
            "but the device first reported it",
        ),
        ([status(1, "ACCEPTED"), status(1, "ACCEPTED")], {"state": "ACCEPTED"}, "event log/5/1 is there twice"),
    ],
)
def test_control_each_difference_is_found(
    root: Path, events: list[dict[str, Any]], target: dict[str, Any], says: str
) -> None:
    if events:
        insert(root, ACTION_EVENTS, *events)
    insert(root, ACTION_TARGETS, {"action_id": "a1", "device_id": "d1", "attempt": 1, **target})
    (found,) = fold_differences(root)
    assert says in found
