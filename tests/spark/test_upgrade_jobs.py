"""The jobs continue from the checkpoints and tables of 583ec94, at the broker that continues from its log.

In the fixture (tests/fixtures/upgrade/make.py) the last batch of the telemetry job is written but not committed. It
also has a status job that one message stops at every start, an ended action, and an action whose command waits in a
device's session.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.compute as pc
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession
from support.programs import headwaterd
from support.upgrade import Folder, UpgradeBroker, unpack

from actions.job import ActionJob
from actions.store import DeltalakeStore
from broker_edge import Client, Credentials
from pipelines.jobs.alerts import Alert
from pipelines.jobs.kinds import StreamJob
from pipelines.jobs.runner import LogScreen, Runner
from pipelines.settings import JobsSettings, Settings, SilverSettings, TelemetrySettings
from pipelines.silver.job import start_silver
from pipelines.status import StatusSettings, start_status
from pipelines.telemetry import start_telemetry
from sinks import tables
from sinks.bronze import make_bronze
from sinks.devices import DevicePublisher
from sinks.rows import rows_of
from sinks.table import Table
from sources.schema import spark_schema

Place = tuple[str, int, int]
PLACE = ("log_id", "partition", "offset")
TURNS_MAX = 6


@pytest.fixture
def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UpgradeBroker]:
    with UpgradeBroker(headwaterd(), unpack(tmp_path)) as started:
        monkeypatch.setenv("UPGRADE_ROOT", started.folder.passwords["root"])
        yield started


def in_the_log(broker: UpgradeBroker, filters: str) -> dict[Place, bytes]:
    """The records under a filter, by position."""
    found: dict[Place, bytes] = {}
    with Client(broker.server, credentials=Credentials(user="root", password="env:UPGRADE_ROOT")) as root:
        for number, one in root.offsets(filters=filters).partitions.items():
            for batch in root.fetch(number, one.log_start, one.high_watermark, filters=filters):
                for row in batch.to_pylist():
                    found[(row["log_id"], row["partition"], row["offset"])] = row["value"]
    return found


def places_in(table: Path) -> list[Place]:
    columns = DeltaTable(str(table)).to_pyarrow_table(columns=list(PLACE))
    return sorted(zip(*(columns.column(name).to_pylist() for name in PLACE), strict=True))


def rows(folder: Folder, table: tables.FieldTable) -> list[dict[str, Any]]:
    return list(rows_of(DeltaTable(tables.uri_of(str(folder.tables), table.name)).to_pyarrow_table()))


def test_the_telemetry_job_goes_on_with_no_row_missing_and_none_twice(
    broker: UpgradeBroker, spark: SparkSession
) -> None:
    folder = broker.folder
    before = places_in(folder.bronze)
    telemetry = TelemetrySettings(table_path=str(folder.bronze), checkpoint=str(folder.checkpoint("telemetry")))
    settings = Settings(servers=[broker.server], telemetry=telemetry)
    query = start_telemetry(spark, settings, available_now=True)
    query.awaitTermination()
    assert query.exception() is None
    there = in_the_log(broker, "devices/+/telemetry")
    assert 0 < len(before) < len(there), "the fixture has rows on both sides of the upgrade"
    assert places_in(folder.bronze) == sorted(there)
    table = DeltaTable(str(folder.bronze))
    found = {tuple(row[name] for name in PLACE): row for row in table.to_pyarrow_table().to_pylist()}
    assert {place: row["value"] for place, row in found.items()} == there
    assert {row["device_id"] for place, row in found.items() if place in before} == {None}
    assert {row["device_id"] for place, row in found.items() if place not in before} == {"pump-11", "pump-12"}
    assert [field.name for field in table.schema().fields] == list(tables.BRONZE.names)
    assert [field.metadata["comment"] for field in table.schema().fields] == [
        one.meaning for one in tables.BRONZE.fields
    ]
    assert table.metadata().description == tables.BRONZE.meaning
    assert table.metadata().configuration["delta.dataSkippingStatsColumns"].endswith("client_id,device_id")
    # The statistics of new files are used, and files without them are read.
    skipped = spark.read.format("delta").load(str(folder.bronze)).where("device_id = 'pump-11'")
    assert skipped.count() == sum(row["device_id"] == "pump-11" for row in found.values())


def test_a_running_silver_stream_goes_on_when_bronze_gets_its_new_columns(spark: SparkSession, tmp_path: Path) -> None:
    folder = unpack(tmp_path / "old")
    schema = {"name": "pump", "topics": ["devices/+/telemetry"], "format": "json", "device_level": 1}
    fields = [{"name": "seq", "type": "bigint", "required": True}]
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "pump.yaml").write_text(yaml.safe_dump(schema | {"fields": fields}))
    silver = SilverSettings(
        schemas=str(tmp_path / "schemas"), rules=None, root=str(tmp_path / "t"), checkpoint=str(tmp_path / "checkpoint")
    )
    telemetry = TelemetrySettings(table_path=str(folder.bronze))
    settings = Settings(silver=silver.model_copy(update={"trigger": "0 seconds"}), telemetry=telemetry)
    runner = Runner(
        [StreamJob("silver", lambda: start_silver(spark, settings))],
        JobsSettings(retry_first_s=0.1, look_s=0.1),
        screen := Alerts(),
    )
    bronze = Table.at(folder.bronze)
    before = places_in(folder.bronze)
    is_new = False

    def stop(seconds: float) -> bool:
        nonlocal is_new
        time.sleep(seconds)
        assert time.monotonic() < deadline, screen.said
        if not list((tmp_path / "t" / "silver_pump" / "_delta_log").glob("*.json")):
            return False
        done = sorted(places_in(tmp_path / "t" / "silver_pump") + places_in(tmp_path / "t" / "quarantine"))
        if not is_new and done == before:
            make_bronze(spark, bronze, spark_schema(include_headers=True))
            copy_as_new_rows(folder.bronze, 1_000_000)
            is_new = True
        return is_new and done == places_in(folder.bronze)

    deadline = time.monotonic() + 120
    runner.run(stop)
    assert len(places_in(folder.bronze)) == 2 * len(before) > 0
    text = "the table that it reads has new columns: it goes on with them at the same offset"
    assert screen.said == [f"silver failed and restarts in 0.1 s: {text}"]


class Alerts(LogScreen):
    """Keeps the alerts of a run."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def alert(self, alert: Alert) -> None:
        self.said.append(alert.sentence)


def copy_as_new_rows(table: Path, offset: int) -> None:
    """Appends every row again at a later offset, with the columns of this version."""
    rows = DeltaTable(str(table)).to_pyarrow_table()
    at = rows.schema.get_field_index("offset")
    rows = rows.set_column(at, "offset", pc.add(rows.column("offset"), offset))
    at = rows.schema.get_field_index("device_id")
    rows = rows.set_column(at, "device_id", rows.column("key").cast("string"))
    write_deltalake(str(table), rows, mode="append")


def test_the_status_job_leaves_the_message_behind_that_had_stopped_it_and_the_open_action_ends(
    broker: UpgradeBroker, spark: SparkSession
) -> None:
    folder = broker.folder
    run_status(broker, spark)
    (stopped_it,) = [row for row in rows(folder, tables.QUARANTINE) if row["topic"] == "devices/pump-12/status"]
    assert b"ud800" in stopped_it["value"]
    assert online_of(folder, "pump-12") == 1, "the valid report of the same batch"

    before = {row["action_id"]: row for row in rows(folder, tables.ACTION_STATE)}
    assert (before["done"]["phase"], before["open"]["phase"]) == ("ENDED", "RUNNING")
    with broker.connect("pump-7", "pump-7") as pump:
        assert pump.connack.session_present
        deliveries = pump.deliveries(6)
        (command,) = [json.loads(one.payload) for one in deliveries if one.topic == "devices/pump-7/actions"]
        assert command["action_id"] == "open"
        said = {"action_id": "open", "attempt": command["attempt"], "state": "SUCCEEDED", "boot": "b2", "seq": 1}
        assert pump.published("devices/pump-7/status", json.dumps(said).encode()) == 0
        pump.leave()
    after = turns_until_ended(broker, spark, "open")
    assert after["open"]["counts"] == {"SUCCEEDED": 1}
    # Columns that are newer than the row are null.
    assert after["done"] == {**dict.fromkeys(after["done"]), **before["done"]}
    events = [
        tuple(row[name] for name in PLACE) for row in rows(folder, tables.ACTION_EVENTS) if row["source"] == "status"
    ]
    assert len(events) == len(set(events))


def run_status(broker: UpgradeBroker, spark: SparkSession) -> None:
    """Runs the status job until it has read everything."""
    folder = broker.folder
    settings = StatusSettings((broker.server,), str(folder.tables), str(folder.checkpoint("status")))
    query = start_status(spark, settings, available_now=True)
    query.awaitTermination()
    assert query.exception() is None


def online_of(folder: Folder, device: str) -> int:
    said = [row for row in rows(folder, tables.ACTION_EVENTS) if row["device_id"] == device]
    return sum(row["state"] == "ONLINE" for row in said)


def turns_until_ended(broker: UpgradeBroker, spark: SparkSession, action_id: str) -> dict[str, dict[str, Any]]:
    """Runs turns of the engine with the status job between them; returns `action_state` by action."""
    folder = broker.folder
    for _ in range(TURNS_MAX):
        # Only the engine has credentials: the jobs of the fixture read as anybody may.
        with mock.patch.dict(os.environ, broker.engine_environment()):
            publisher = DevicePublisher(broker.server)
            publisher.log_id()
        job = ActionJob(DeltalakeStore(str(folder.tables)), publisher)
        job.turn()
        job.close()
        publisher.close()
        states = {row["action_id"]: row for row in rows(folder, tables.ACTION_STATE)}
        if states[action_id]["phase"] == "ENDED":
            return states
        run_status(broker, spark)
    raise AssertionError(f"{action_id} has not ended: {states[action_id]}")
