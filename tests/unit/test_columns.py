"""What `actions.columns` makes of a batch is what `actions.rows` makes of its rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actions.columns import device_states_in, devices_in, reports_in, targets_in
from actions.engine import DeviceState, Report, Target, TargetState
from actions.rows import device_of, device_state_of, device_states_table, target_of, targets_table
from sinks import tables
from sinks.rows import arrow_of, rows_of

TEXTS = st.text("ab\u00e9", max_size=3)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXTS,
    "str | None": st.none() | TEXTS,
    "int": st.integers(0, 3),
    "int | None": st.none() | st.integers(0, 3),
    "bool": st.booleans(),
    "TargetState": st.sampled_from(TargetState),
    "tuple[str, ...]": st.lists(TEXTS, max_size=2).map(tuple),
}


def some(kind: Any) -> st.SearchStrategy[Any]:
    fields = {field.name: VALUES.get(str(field.type), st.none() | TEXTS) for field in dataclasses.fields(kind)}
    return st.builds(kind, **fields)


def batches(table: pa.Table) -> list[pa.RecordBatch]:
    return table.to_batches(max_chunksize=3)


@given(st.lists(some(Target), max_size=8))
def test_targets_of_a_batch_are_those_of_its_rows(targets: list[Target]) -> None:
    table = targets_table(targets)
    found = [target for batch in batches(table) for target in targets_in(batch, str)]
    assert found == targets
    assert found == list(map(target_of, rows_of(table)))
    assert repr(found) == repr(targets)


@given(st.lists(some(DeviceState), max_size=8))
def test_device_states_of_a_batch_are_those_of_its_rows(facts: list[DeviceState]) -> None:
    table = device_states_table(facts)
    found = [fact for batch in batches(table) for fact in device_states_in(batch, str)]
    assert found == facts == list(map(device_state_of, rows_of(table)))


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "device_id": TEXTS,
                "tenant": TEXTS,
                "labels": st.dictionaries(TEXTS, TEXTS, max_size=2),
                "groups": st.lists(st.none() | TEXTS, max_size=2),
                "time_zone": TEXTS,
                "log": TEXTS,
                "retired_at": st.integers(0, 1),
            },
        ),
        max_size=8,
    )
)
def test_devices_of_a_batch_are_those_of_its_rows(rows: list[dict[str, Any]]) -> None:
    table = arrow_of(rows, tables.DEVICES)
    expected = [(device_of(row), row["retired_at"] is not None) for row in rows_of(table) if row["device_id"]]
    assert [one for batch in batches(table) for one in devices_in(batch)] == expected


def test_a_batch_of_an_older_table_is_read_without_its_newer_columns() -> None:
    target = Target("a1", "t", "d1", TargetState.QUEUED, 1, 2, 3)
    table = targets_table([target])
    older = table.drop_columns(["gives_way", "erred", "copies", "wave", "late", "given_up", "retry_at"])
    (found,) = (one for batch in batches(older) for one in targets_in(batch, str))
    assert repr(found) == repr(target), "0 and False are equal, but not to a table"
    assert targets_table([found]) == table


EVENT: dict[str, Any] = {
    "event_id": "e",
    "source": "status",
    "log_id": "l",
    "partition": 1,
    "offset": 2,
    "device_id": "d1",
    "state": "FAILED",
    "at": 3,
    "recorded_at": 4,
}


def reports_of(*rows: dict[str, Any], same_id: Callable[[str], str] = str) -> dict[Report, int]:
    table = arrow_of([EVENT | row for row in rows], tables.ACTION_EVENTS)
    versions = pa.array([row.get("_commit_version", 7) for row in rows], pa.int64())
    changes = pa.array([row.get("_change_type", "insert") for row in rows])
    feed = table.append_column("_commit_version", versions).append_column("_change_type", changes)
    return reports_in([feed, feed.slice(0, 0)], same_id)


def test_reports_are_read_with_the_version_that_added_them() -> None:
    more = {"action_id": "a1", "attempt": 2, "tenant": "t", "boot": "b", "seq": 5, "progress": 6, "message": "m"}
    more |= {"result": "r", "version": "1", "product": "p", "hardware": "h"}
    more |= {"command_partition": 8, "command_offset": 9}
    whole = Report("status", "l", 1, 2, "d1", "a1", 2, "FAILED", 3, 4, "t", "b", 5, 6, "m", "r", "1", "p", "h", 8, 9)
    short = Report("receipt", "l", 1, 2, "d1", "", 0, "FAILED", 3, 4)
    found = reports_of(more, {"source": "receipt", "_commit_version": 8})
    assert found == {whole: 7, short: 8}
    known = "".join(("d", "1"))
    assert all(report.device_id is known for report in reports_of(more, same_id=lambda _: known))


def test_only_rows_that_are_reports_are_read_and_others_are_named(caplog: pytest.LogCaptureFixture) -> None:
    wrong = [{name: None} for name in ("log_id", "partition", "offset", "device_id", "state", "at", "recorded_at")]
    old = [{"_change_type": "delete"}, {"_change_type": "update_preimage"}]
    rows = [{"source": "engine", "log_id": None}, *old, *wrong, {"source": "x"}, {"source": None}, {"offset": 5}]
    assert [report.offset for report in reports_of(*rows)] == [5]
    said = [record.getMessage() for record in caplog.records]
    assert [text.partition(" with ")[2] for text in said] == [
        *(f"no {name}: 'e'" for one in wrong for name in one),
        "the source 'x': 'e'",
        "the source None: 'e'",
    ]


def test_targets_of_a_batch_share_what_they_have_in_common() -> None:
    targets = [Target("a1", "t", f"d{number}", TargetState.QUEUED, 10**9, 10**9, 10**9) for number in range(2)]
    (batch,) = targets_table(targets).to_batches()
    known = {"d0": "d0"}
    first, second = targets_in(batch, lambda id_: known.get(id_, id_))
    assert first.action_id is second.action_id
    assert first.created_us is second.created_us is second.updated_us
    assert first.device_id is known["d0"]
    assert first.late is False, "one of two equal values of different types is not taken for the other"
