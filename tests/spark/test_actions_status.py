"""The status job: reports of devices reach `action_events` once, whatever is replayed; Spark and deltalake share the
tables."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from support.flight_server import FlightServer

from actions.event_log import EventLog
from actions.job import ActionJob
from actions.reading import GroupReader
from actions.status_batch import StatusBatches
from actions.status_rows import parse
from actions.store import DeltalakeStore
from broker_edge import Client, Row
from pipelines.status import StatusSettings, start_status
from sinks import tables
from sinks.devices import DevicePublisher, Fleet
from sinks.rows import arrow_of


class World:
    def __init__(self, folder: Path, spark: SparkSession, server: FlightServer) -> None:
        self.spark, self.server = spark, server
        self.root = str(folder / "tables")
        self.checkpoint = str(folder / "checkpoint")
        self.others: tuple[str, ...] = ()
        """Further brokers."""
        tables.create_by_path(self.root)

    def status(self, device_id: str, **fields: Any) -> None:
        body = {"action_id": "a1", "attempt": 1, "state": "SUCCEEDED", "boot": "b1", "seq": 1, **fields}
        self.raw(f"devices/{device_id}/status", json.dumps(body).encode())

    def raw(self, topic: str, value: bytes) -> None:
        with Client(self.server.location) as client:
            client.produce([Row(topic=topic, value=value)])

    @property
    def settings(self) -> StatusSettings:
        return StatusSettings(
            servers=(self.server.location, *self.others),
            root=self.root,
            checkpoint=self.checkpoint,
            uplink_topic="/tenants/{tenant}/devices/{id}/action/status",
        )

    def run(self) -> None:
        query = start_status(self.spark, self.settings, available_now=True)
        assert query.awaitTermination(300)
        assert query.exception() is None

    def rows(self, name: str) -> list[dict[str, Any]]:
        frame = self.spark.read.format("delta").load(tables.uri_of(self.root, name))
        return [row.asDict() for row in frame.collect()]

    def sql(self, text: str) -> None:
        for name in tables.TABLES:
            text = text.replace(f"{{{name}}}", f"delta.`{tables.uri_of(self.root, name)}`")
        self.spark.sql(text)


@pytest.fixture
def world(tmp_path: Path, spark: SparkSession, flight_server: FlightServer) -> World:
    return World(tmp_path, spark, flight_server)


def test_statuses_arrive_once_across_batches_and_bad_ones_are_quarantined(world: World) -> None:
    world.status("d1")
    world.raw("devices/d2/status", b"not json")
    world.run()
    world.status("d3", state="FAILED")
    response = {"id": "a1", "sequence": 1, "timestamp": 5, "state": "Completed", "progress": 100, "errors": []}
    world.raw("/tenants/demo/devices/d4/action/status", json.dumps([response]).encode())
    world.run()
    world.run()
    events = world.rows("action_events")
    found = sorted((row["device_id"], row["state"]) for row in events)
    assert found == [("d1", "SUCCEEDED"), ("d3", "FAILED"), ("d4", "SUCCEEDED")]
    (bad,) = world.rows("quarantine")
    assert bad["reason"].startswith("the payload is not JSON")
    assert (bad["topic"], bytes(bad["value"])) == ("devices/d2/status", b"not json")


def test_the_group_says_that_all_reports_have_been_read(world: World) -> None:
    """The engine lets nothing time out before that: also not when only ordinary traffic follows, which makes no batch,
    and in a run that ends as well as in one that goes on."""
    with Client(world.server.location) as client:
        reader = GroupReader(client, world.settings.consumer_group)
        world.status("d1")
        world.run()
        assert reader.look().unfollowed is None
        assert reader.look().is_read
        client.produce([Row(topic=f"devices/d{number}/telemetry", value=b"{}") for number in range(500)])
        assert reader.look().is_read
        world.run()
        world.status("d2")
        assert not reader.look().is_read
        query = start_status(world.spark, world.settings)
        try:
            query.processAllAvailable()
            client.produce([Row(topic=f"devices/d{number}/telemetry", value=b"{}") for number in range(500)])
            query.processAllAvailable()
            # A batch counts as finished when the next one is planned.
            deadline = time.monotonic() + 60
            while not reader.look().is_read:
                assert time.monotonic() < deadline, "the group does not follow a query without new reports"
                time.sleep(0.1)
        finally:
            query.stop()
    assert sorted(row["device_id"] for row in world.rows("action_events")) == ["d1", "d2"]


def test_replayed_batch_adds_no_rows(world: World) -> None:
    """The commit of the checkpoint is lost after the rows were written, as after a kill between the two."""
    world.status("d1")
    world.raw("devices/d2/status", b"not json")
    world.run()
    for part in ("commits",):
        shutil.rmtree(Path(world.checkpoint) / part)
    world.run()
    assert (len(world.rows("action_events")), len(world.rows("quarantine"))) == (1, 1)


def test_new_checkpoint_goes_on_behind_what_the_table_has(world: World) -> None:
    world.status("d1")
    world.raw("devices/d1/status", b"not json")
    world.run()
    shutil.rmtree(world.checkpoint)
    world.status("d1", seq=2)
    world.run()
    assert sorted(row["seq"] for row in world.rows("action_events")) == [1, 2]
    assert len(world.rows("quarantine")) == 1


POISON = (
    ("devices/x/status", b'{"action_id":"a","attempt":1,"state":"SUCCEEDED","result":"\\ud800"}'),
    ("/tenants/demo/devices/x/action/status", b'[{"id":"a/00000000001' + b"9" * 9 + b'","state":"Completed"}]'),
    ("/tenants/demo/devices/x/action/status", b'[{"id":"a/00000000001' + b"9" * 4_989 + b'","state":"Completed"}]'),
)


def test_poison_among_honest_reports_is_quarantined_and_the_job_stays_up(world: World) -> None:
    world.status("d1")
    for topic, value in POISON:
        world.raw(topic, value)
    world.status("d2")
    query = start_status(world.spark, world.settings)
    try:
        query.processAllAvailable()
        world.status("d3")
        # Spark may end this call with the batch before, if that was just about to end.
        query.processAllAvailable()
        query.processAllAvailable()
        assert query.isActive
    finally:
        query.stop()
    assert sorted(row["device_id"] for row in world.rows("action_events")) == ["d1", "d2", "d3"]
    bad = world.rows("quarantine")
    assert sorted((row["topic"], bytes(row["value"])) for row in bad) == sorted(POISON)


def test_a_checkpoint_that_an_older_version_left_stuck_goes_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """583ec94 planned the batch, wrote its quarantine, and failed on its events at every start."""

    def as_before(self: StatusBatches, records: Any, *, recorded_us: int, query_id: str, batch_id: int) -> None:
        log = EventLog(world.root)
        bad = [record for record in records if record["value"] == b"not json"]
        found = parse(bad, tenant="default", recorded_us=recorded_us).quarantine
        log.append([], found, query_id=query_id, batch_id=batch_id)
        arrow_of([{"result": json.dumps("\ud800", ensure_ascii=False)}], tables.ACTION_EVENTS)

    world.status("d1")
    world.raw("devices/x/status", b"not json")
    for topic, value in POISON:
        world.raw(topic, value)
    world.status("d2")
    with monkeypatch.context() as before:
        before.setattr(StatusBatches, "write", as_before)
        for _ in range(2):
            query = start_status(world.spark, world.settings, available_now=True)
            with pytest.raises(StreamingQueryException, match="surrogates not allowed"):
                query.awaitTermination(60)
    left = {name: sorted(Path(world.checkpoint, name).glob("[0-9]*")) for name in ("offsets", "commits")}
    assert ([path.name for path in left["offsets"]], left["commits"]) == (["0"], [])
    world.run()
    assert sorted(row["device_id"] for row in world.rows("action_events")) == ["d1", "d2"]
    bad = world.rows("quarantine")
    wanted = [*POISON, ("devices/x/status", b"not json")]
    assert sorted((row["topic"], bytes(row["value"])) for row in bad) == sorted(wanted)
    world.status("d3")
    world.run()
    assert len(world.rows("action_events")) == 3


def test_control_without_transactions_a_replay_doubles_rows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the replay test: it can fail."""
    world.status("d1")
    world.run()
    shutil.rmtree(Path(world.checkpoint) / "commits")
    monkeypatch.setattr(EventLog, "places", lambda self: {})
    append = EventLog.append

    def forgetful(self: EventLog, *rows: Any, query_id: str, batch_id: int) -> None:
        append(self, *rows, query_id="another", batch_id=batch_id)

    monkeypatch.setattr(EventLog, "append", forgetful)
    world.run()
    assert len(world.rows("action_events")) == 2


def test_action_inserted_by_sql_ends_in_tables_that_spark_reads(world: World) -> None:
    """A user inserts with Spark, giving only some columns; engine and status job respond; Spark reads the change
    feed."""
    world.sql(
        "INSERT INTO {devices} (device_id, labels) VALUES ('d1', map('site', 'roof')), ('d2', map('site', 'cellar'))"
    )
    world.sql(
        "INSERT INTO {actions} (action_id, name, params, labels) "
        "VALUES ('a1', 'echo', '{\"text\":\"hi\"}', map('site', 'roof'))"
    )
    publisher = DevicePublisher(world.server.location)
    job = ActionJob(DeltalakeStore(world.root), publisher)
    job.turn()
    (target,) = world.rows("action_targets")
    assert (target["device_id"], target["state"]) == ("d1", "QUEUED")
    world.status("d1", result={"text": "hi"})
    world.run()
    job.turn()
    (target,) = world.rows("action_targets")
    assert (target["state"], target["result"]) == ("SUCCEEDED", '{"text": "hi"}')
    (state,) = world.rows("action_state")
    assert (state["phase"], state["counts"]) == ("ENDED", {"SUCCEEDED": 1})
    feed = (
        world.spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", 1)
        .load(tables.uri_of(world.root, "action_targets"))
    )
    changes = [(row["_change_type"], row["state"]) for row in feed.orderBy("_commit_version", "_change_type").collect()]
    assert changes[0] == ("insert", "PENDING")
    assert changes[-1] == ("update_preimage", "QUEUED") or changes[-1] == ("update_postimage", "SUCCEEDED")
    assert ("update_postimage", "SUCCEEDED") in changes
    publisher.close()


def test_tables_can_be_made_by_name_or_get_names_over_their_paths(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.spark.sql("CREATE DATABASE IF NOT EXISTS fleet")
    world.spark.sql("CREATE DATABASE IF NOT EXISTS named")
    # Two tables contain every type between them, and creating one in Spark takes a second.
    few = {name: tables.TABLES[name] for name in ("devices", "quarantine")}
    monkeypatch.setattr(tables, "TABLES", few)
    for _ in range(2):
        tables.create_by_name(world.spark, "fleet")
        tables.create_by_name(world.spark, "named", root=world.root)
    world.spark.sql("INSERT INTO named.devices (device_id) VALUES ('d1')")
    assert [row["device_id"] for row in world.rows("devices")] == ["d1"]
    for name in few:
        assert world.spark.table(f"fleet.{name}").schema == world.spark.table(f"named.{name}").schema


def test_ddl_of_every_table_means_the_same_to_spark_and_arrow(world: World) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema
    from pyspark.sql.types import StructType

    for table in tables.TABLES.values():
        declared = StructType.fromDDL(table.ddl())
        assert [(field.name, field.dataType) for field in declared] == [
            (field.name, field.dataType) for field in from_arrow_schema(table.arrow_schema())
        ]


def test_one_query_reads_the_statuses_and_receipts_of_two_brokers(world: World) -> None:
    """A device of each broker; the receipts name the commands by log id, partition and offset."""
    with FlightServer() as other:
        servers = (world.server, other)
        world.others = (other.location,)
        ids = {server.log.log_id: id_ for server, id_ in zip(servers, ("d1", "d2"), strict=True)}
        rows = [{"device_id": id_, "log": log_id} for log_id, id_ in ids.items()]
        write_deltalake(tables.uri_of(world.root, "devices"), arrow_of(rows, tables.DEVICES), mode="append")
        world.sql("INSERT INTO {actions} (action_id, name, percentage) VALUES ('a1', 'echo', 100.0)")
        fleet = Fleet([server.location for server in servers])
        job = ActionJob(DeltalakeStore(world.root), fleet.publishers)
        job.turn()
        targets = {row["log_id"]: row for row in world.rows("action_targets")}
        assert {log_id: (row["device_id"], row["state"]) for log_id, row in targets.items()} == {
            log_id: (id_, "QUEUED") for log_id, id_ in ids.items()
        }
        for server in servers:
            receipt(server, targets[server.log.log_id])
        body = {"action_id": "a1", "attempt": 1, "state": "SUCCEEDED", "boot": "b1", "seq": 2}
        other.log.append("devices/d2/status", json.dumps(body).encode())
        world.run()
        job.turn()
        job.close()
        fleet.close()
        assert {row["device_id"]: row["state"] for row in world.rows("action_targets")} == {
            "d1": "DELIVERED",
            "d2": "SUCCEEDED",
        }
        assert {(row["log_id"], row["device_id"], row["source"]) for row in world.rows("action_events")} == {
            *((log_id, id_, "receipt") for log_id, id_ in ids.items()),
            (other.log.log_id, "d2", "status"),
        }


def receipt(server: FlightServer, target: dict[str, Any]) -> None:
    """As the broker appends it when the device acknowledges the command."""
    place = {"partition": target["partition"], "offset": target["offset"]}
    body = {"client_id": target["device_id"], "idempotency_key": f"a1/{target['device_id']}/1", **place}
    server.log.append("$receipts", json.dumps(body).encode())
