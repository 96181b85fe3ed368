"""What the fleet's console finds of one record in the tables, and what it says when it cannot know."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.fleet_page import insert

from broker_edge.errors import NotFoundError, UnavailableError
from fleet_console.brokers import Fleet, Seen, Watcher, status_of
from fleet_console.callers import Turned
from fleet_console.record_rows import ROWS_MAX
from fleet_console.settings import ConsoleMember, TablesSection
from fleet_console.tables import Tables
from fleet_console.traces import Traces
from sinks import tables
from sinks.rows import now_us

LOG = "log-a"
STATUS = {"version": "1", "log_id": LOG, "partitions": [{"name": "telemetry-0", "partition": 3}]}


class Admin:
    """Answers as a broker does."""

    address = "http://127.0.0.1:1"

    def __init__(self, told: Any) -> None:
        self.told, self.asked = told, list[str]()

    def trace(self, at: str) -> Any:
        self.asked.append(at)
        if isinstance(self.told, Exception):
            raise self.told
        return self.told


@pytest.fixture
def root(tmp_path: Path) -> Path:
    tables.create_by_path(tmp_path)
    return tmp_path


def traces(root: Path, *admins: Admin, log_ids: tuple[str, ...] = (LOG,), tenant: str = "default") -> Traces:
    """Of a console whose brokers have said their status."""
    fleet = Fleet(ConsoleMember(f"broker-{number}", admin) for number, admin in enumerate(admins))  # type: ignore[arg-type]
    for watcher, log_id in zip(watchers(fleet), log_ids, strict=True):
        watcher._seen = Seen(status=status_of({**STATUS, "log_id": log_id}))
    settings = TablesSection(root=str(root), bronze=str(root / "bronze_telemetry"), tenant=tenant)
    return Traces(fleet, Tables(settings))


def watchers(fleet: Fleet) -> list[Watcher]:
    return fleet._watchers


def told(**more: Any) -> dict[str, Any]:
    return {"partition": 3, "name": "telemetry-0", "state": "here", "record": None, **more}


def record(root: Path, offset: int, **more: Any) -> None:
    now = now_us()
    row = {"log_id": LOG, "partition": 3, "offset": offset, "epoch": 1, "topic": "t", "tenant": "default"}
    row |= {"key": b"k", "value": b"12345", "timestamp": now, "timestampType": 1, "qos": 1, "retain": False}
    row |= {"client_id": "c", "ingest_date": datetime.fromtimestamp(now / 1e6, UTC).date(), **more}
    insert(root, tables.BRONZE, row)


def bronze(found: dict[str, Any]) -> Any:
    return found["tables"]["bronze"]


def test_the_commit_is_the_one_that_added_the_file(root: Path) -> None:
    for offset in range(12):
        record(root, offset)
    asked = traces(root, Admin(told()))
    first = DeltaTable(str(root / "bronze_telemetry")).version() - 11
    for offset in (0, 5, 11):
        found = bronze(asked.answer(f"telemetry-0:{offset}", ""))
        (row,) = found["rows"]
        assert (row["topic"], row["client_id"], row["epoch"], min(row)) == ("t", "c", 1, "appended_us")
        assert (found["commit"]["version"], found["commit"]["operation"]) == (first + offset, "WRITE")
        assert abs(found["commit"]["at_us"] - now_us()) < 60_000_000


def test_after_a_compaction_it_is_the_compaction_and_without_its_log_unknown(root: Path) -> None:
    for offset in range(3):
        record(root, offset)
    table = DeltaTable(str(root / "bronze_telemetry"))
    table.optimize.compact()
    asked = traces(root, Admin(told()))
    found = bronze(asked.answer("telemetry-0:1", ""))
    assert (found["commit"]["version"], found["commit"]["operation"]) == (table.version(), "OPTIMIZE")
    table.create_checkpoint()
    for path in (root / "bronze_telemetry" / "_delta_log").glob("*.json"):
        path.unlink()
    found = bronze(traces(root, Admin(told())).answer("telemetry-0:1", ""))
    assert (len(found["rows"]), found["commit"]) == (1, None)


def test_a_record_of_another_log_partition_or_tenant_is_not_found(root: Path) -> None:
    record(root, 7, log_id="log-b")
    record(root, 7, partition=4)
    record(root, 7, tenant="acme")
    assert bronze(traces(root, Admin(told())).answer("telemetry-0:7", ""))["rows"] == []
    found = bronze(traces(root, Admin(told()), tenant="acme").answer("telemetry-0:7", ""))
    assert (len(found["rows"]), found["commit"] is not None) == (1, True)


def test_silver_quarantine_gaps_commands_and_reports_are_found(root: Path) -> None:
    now = now_us()
    place = {"log_id": LOG, "partition": 3, "offset": 7}
    day = datetime.fromtimestamp(now / 1e6, UTC).date()
    row = {**place, "epoch": 1, "tenant": "default", "device_id": "d1", "event_time": now, "topic": "t"}
    insert(root, tables.silver_table("silver_x", ()), {**row, "ingest_time": now, "ingest_date": day})
    insert(root, tables.silver_table("silver_y", ()), {**row, "offset": 8, "ingest_time": now, "ingest_date": day})
    insert(root, tables.QUARANTINE, {**place, "pipeline": "silver/x", "reason": "no JSON", "quarantined_at": now})
    gap = {"log_id": LOG, "partition": 3, "reason": "damage", "report_log_id": LOG, "recorded_at": now}
    for number, (start, end) in enumerate([(0, 7), (7, 8), (5, None), (8, 9)]):
        insert(root, tables.INGEST_GAPS, {**gap, "start": start, "end": end, "report_offset": number})
    target = {"action_id": "a", "device_id": "d1", "attempt": 1, "state": "SUCCEEDED", "updated_at": now}
    insert(root, tables.ACTION_TARGETS, {**place, **target})
    event = {"event_id": "e", "source": "status", "action_id": "a", "device_id": "d1", "state": "SUCCEEDED"}
    insert(root, tables.ACTION_EVENTS, {**place, **event, "at": now, "recorded_at": now})
    found = traces(root, Admin(told())).answer("telemetry-0:7", "")["tables"]
    assert [(one["table"], one["rows"][0]["device_id"], one["commit"]["version"]) for one in found["silver"]] == [
        ("silver_x", "d1", 0)
    ]
    assert [(one["pipeline"], one["reason"]) for one in found["quarantine"]] == [("silver/x", "no JSON")]
    assert sorted((one["start"], one["end"] or 0) for one in found["lost"]) == [(5, 0), (7, 8)]
    assert [(one["action_id"], one["state"]) for one in found["commands"]] == [("a", "SUCCEEDED")]
    assert [(one["source"], one["action_id"]) for one in found["reports"]] == [("status", "a")]


def test_the_quarantine_includes_its_archive_and_no_more_rows_than_promised(root: Path) -> None:
    row = {"log_id": LOG, "partition": 3, "offset": 7, "pipeline": "status", "quarantined_at": now_us()}
    insert(root, tables.QUARANTINE, {**row, "reason": "new"})
    insert(root, tables.QUARANTINE_ARCHIVE, {**row, "reason": "old"})
    asked = traces(root, Admin(told()))
    found = asked.answer("telemetry-0:7", "")["tables"]["quarantine"]
    assert [one["reason"] for one in found] == ["new", "old"]
    for table in (tables.QUARANTINE, tables.QUARANTINE_ARCHIVE):
        insert(root, table, *({**row, "reason": "many", "epoch": epoch} for epoch in range(ROWS_MAX)))
    assert len(asked.answer("telemetry-0:7", "")["tables"]["quarantine"]) == ROWS_MAX


def test_tables_that_do_not_exist_are_null(tmp_path: Path) -> None:
    found = traces(tmp_path, Admin(told())).answer("telemetry-0:7", "")["tables"]
    assert found == {
        **dict.fromkeys(("bronze", "quarantine", "lost", "commands", "reports")),
        "silver": [],
    }


def test_no_payload_of_the_broker_is_passed_on(root: Path) -> None:
    shown = {"topic": "t", "size": 3, "value": "c2VjcmV0", "headers": [["a", "b"]], "is_cut": False}
    found = traces(root, Admin(told(record=shown))).answer("telemetry-0:7", "")
    assert found["broker"]["trace"]["record"] == {"topic": "t", "size": 3, "is_hidden": True}
    assert "c2VjcmV0" not in str(found)


def test_a_broker_that_does_not_answer_leaves_what_the_tables_say(root: Path) -> None:
    record(root, 7)
    asked = traces(root, Admin(UnavailableError("no answer")))
    for at in ("telemetry-0:7", "3:7"):
        found = asked.answer(at, LOG)
        assert (found["broker"]["trouble"], found["broker"]["trace"]) == ("no answer", None)
        assert (found["partition"], len(bronze(found)["rows"])) == (3, 1)


def test_a_partition_that_the_broker_does_not_have_is_refused(root: Path) -> None:
    with pytest.raises(NotFoundError, match="no partition"):
        traces(root, Admin(NotFoundError("there is no partition x"))).answer("x:7", LOG)


@pytest.mark.parametrize(
    "at", ["", "telemetry-0", ":7", "telemetry-0:", "telemetry-0:-1", "a:b:1", f"a:{1 << 63}", "a:\u0663"]
)
def test_what_is_no_place_is_refused(root: Path, at: str) -> None:
    with pytest.raises(Turned, match="at is not PARTITION:OFFSET"):
        traces(root, Admin(told())).answer(at, LOG)


def test_the_log_must_be_named_where_there_is_not_just_one(root: Path) -> None:
    two = traces(root, Admin(told()), Admin(told()), log_ids=(LOG, "log-b"))
    with pytest.raises(Turned, match="the brokers have 2 logs") as refused:
        two.answer("telemetry-0:7", "")
    assert refused.value.status == 400
    assert two.answer("telemetry-0:7", "log-b")["broker"]["name"] == "broker-1"
    with pytest.raises(Turned, match="no broker has answered") as refused:
        traces(root, log_ids=()).answer("telemetry-0:7", "")
    assert refused.value.status == 503
    one = traces(root, Admin(told()), Admin(told()), log_ids=(LOG, LOG))
    assert one.answer("telemetry-0:7", "")["log_id"] == LOG


def test_a_log_without_a_broker_needs_the_number_of_the_partition(root: Path) -> None:
    record(root, 7, log_id="log-z")
    asked = traces(root, Admin(told()))
    assert len(bronze(asked.answer("3:7", "log-z"))["rows"]) == 1
    with pytest.raises(Turned, match="give the number instead"):
        asked.answer("telemetry-0:7", "log-z")
    with pytest.raises(Turned, match="give the number instead"):
        asked.answer(f"{1 << 31}:7", "log-z")


def test_a_log_id_is_only_text_in_sql(root: Path) -> None:
    odd = "a' OR '1' = '1"
    record(root, 7)
    record(root, 8, log_id=odd)
    asked = traces(root, Admin(told()))
    assert bronze(asked.answer("3:7", odd))["rows"] == []
    assert len(bronze(asked.answer("3:8", odd))["rows"]) == 1
