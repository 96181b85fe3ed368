"""`headwater jobs run all` as operators use it: a process, a real broker, devices over MQTT; Ctrl-C, and a second
start.

One test, because each start of the jobs costs a JVM: data flows, Ctrl-C interrupts it, a second start continues where
the first one ended, and another reader takes over a stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError
from support.bronze_check import compare, read_bronze, read_log
from support.jobs_process import JobsProcess
from support.programs import headwaterd

from broker_edge import Client, Row
from broker_edge.device import FleetSettings, RunningFleet
from broker_edge.device.fleet import device_ids
from broker_edge.torture.process import BrokerProcess
from sinks import tables
from sinks.rows import arrow_of

ROOT = Path(__file__).resolve().parents[2]
TELEMETRY = "devices/+/telemetry"
RECORDS, BATCH_MAX, LAG_MAX = 600, 100, 50
SERIES = [{"temperature_c": value / 10} for value in range(100)]
JOBS = {"telemetry", "status", "silver", "actions", "gaps", "quality", "maintenance"}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    headwaterd()
    with BrokerProcess(data_dir=tmp_path / "broker", log_file=tmp_path / "broker.txt") as process:
        process.start()
        yield process


class World:
    """The tables of one installation, and the contents of its broker."""

    def __init__(self, folder: Path, broker: BrokerProcess) -> None:
        self.root = folder / "tables"
        self.bronze = folder / "bronze"
        self.broker = broker
        self.server = "grpc://{}:{}".format(*broker.flight)
        self.config = folder / "pipelines.yaml"
        self.config.write_text(yaml.safe_dump(self._settings(folder)))
        tables.create_by_path(str(self.root))

    def _settings(self, folder: Path) -> dict[str, Any]:
        return {
            "servers": [self.server],
            "telemetry": {
                "table_path": str(self.bronze),
                "checkpoint": str(folder / "checkpoints" / "telemetry"),
                "max_offsets_per_trigger": BATCH_MAX,
            },
            "status": {"checkpoint": str(folder / "checkpoints" / "status")},
            "silver": {
                "root": str(self.root),
                "schemas": str(ROOT / "conf/schemas"),
                "rules": str(ROOT / "conf/quality"),
                "checkpoint": str(folder / "checkpoints" / "silver"),
                "trigger": "1 second",
            },
            "actions": {"root": str(self.root)},
            "jobs": {"lag_records_max": LAG_MAX, "retry_first_s": 0.1, "look_s": 0.1},
        }

    def publish(self, count: int) -> None:
        """Publishes readings, and one record that no schema accepts."""
        readings = [json.dumps({"seq": number, "temperature_c": 20.5}).encode() for number in range(count - 1)]
        with Client(self.server) as client:
            client.produce([Row(topic="devices/meter/telemetry", value=value) for value in [*readings, b"{not json"]])

    def insert(self, table: tables.FieldTable, *rows: Mapping[str, Any]) -> None:
        write_deltalake(tables.uri_of(self.root, table.name), arrow_of(rows, table), mode="append")

    def rows(self, name: str) -> list[dict[str, Any]]:
        try:
            return list(DeltaTable(tables.uri_of(self.root, name)).to_pyarrow_table().to_pylist())
        except TableNotFoundError:
            return []

    def targets(self, action_id: str) -> dict[str, str]:
        rows = self.rows(tables.ACTION_TARGETS.name)
        return {row["device_id"]: row["state"] for row in rows if row["action_id"] == action_id}

    def seen_devices(self) -> set[str]:
        return {row["device_id"] for row in self.rows(tables.DEVICE_STATE.name)}

    def wrong_in_bronze(self) -> dict[str, int]:
        """Differences between bronze and the log: empty if each telemetry record is in bronze once, as it was sent."""
        logged = read_log(self.broker.flight, class_name="telemetry")
        wanted = {place: one for place, one in logged.records.items() if one.topic.endswith("/telemetry")}
        return {
            str(fault): n for fault, n in compare(read_bronze(self.bronze), replace(logged, records=wanted), []).items()
        }

    def places(self, *names: str) -> list[tuple[Any, ...]]:
        rows = [row for name in names for row in self.rows(name) if row["topic"].endswith("/telemetry")]
        return sorted((row["log_id"], row["partition"], row["offset"]) for row in rows)

    def is_silver_whole(self) -> bool:
        """Whether each record of bronze is in silver or in quarantine once."""
        return self.places("silver_telemetry", "quarantine") == sorted(
            (place.log_id, place.partition, place.offset) for place, _ in read_bronze(self.bronze)
        )

    def is_finished(self, group: str) -> bool:
        """Whether a consumer group has committed everything that telemetry topics have in the log."""
        with Client(self.server) as client:
            heads = client.plan(dict.fromkeys(client.offsets(filters=TELEMETRY).partitions, 0), filters=TELEMETRY)
            committed = client.committed(group).partitions
        return all(
            number in committed and (committed[number].committed or 0) >= place.end
            for number, place in heads.partitions.items()
            if place.records
        )


@pytest.fixture
def world(tmp_path: Path, broker: BrokerProcess) -> World:
    return World(tmp_path, broker)


@pytest.mark.timeout(900)
def test_all_jobs_run_end_with_ctrl_c_go_on_without_doubling_and_name_who_fails(world: World, tmp_path: Path) -> None:
    fleet = FleetSettings(count=3, port=world.broker.mqtt[1], interval_s=0.5, connect_timeout_s=60)
    ids = device_ids(fleet)
    world.insert(tables.DEVICES, *({"device_id": id_} for id_ in ids))
    world.publish(RECORDS)
    with JobsProcess(tmp_path, world.config) as jobs:
        with RunningFleet(fleet, SERIES):
            jobs.start("all")
            everything_flows(world, jobs, ids)
            # Devices keep publishing, so some batch is always being planned or read.
            assert jobs.interrupt() == 0, jobs.last_words()
            assert "Traceback" not in jobs.talk()
        jobs.start("all")
        it_goes_on(world, jobs, ids)
        somebody_takes_telemetry_over(world, jobs)


def everything_flows(world: World, jobs: JobsProcess, ids: list[str]) -> None:
    world.insert(tables.ACTIONS, {"action_id": "a1", "name": "echo", "params": '{"text":"hi"}', "device_ids": ids})
    jobs.until(lambda: running(jobs) == JOBS, "jobs that run, all of them")
    jobs.until(lambda: lag_alerts(jobs)[:1] == [False], "alert of a lag above the limit")
    jobs.until(lambda: world.targets("a1") == dict.fromkeys(ids, "SUCCEEDED"), "end of the action on every device")
    jobs.until(lambda: world.seen_devices() >= set(ids), "state of every device")
    jobs.until(lambda: lag_alerts(jobs)[-1], "end of the lag")
    jobs.until(lambda: len(world.places("silver_telemetry")) >= RECORDS - 1, "row in silver for each reading")
    (bad,) = (row for row in world.rows("quarantine") if row["pipeline"] == "silver/telemetry")
    assert bad["reason"] == "the payload is not JSON, or has a key twice"


def it_goes_on(world: World, jobs: JobsProcess, ids: list[str]) -> None:
    world.publish(20)
    jobs.until(lambda: world.wrong_in_bronze() == {}, "bronze that has every record once")
    jobs.until(world.is_silver_whole, "silver that has every record of bronze once")
    jobs.until(lambda: world.is_finished("telemetry"), "consumer group at the end")
    assert world.targets("a1") == dict.fromkeys(ids, "SUCCEEDED"), "and no command is sent twice"
    assert not [alert for alert in jobs.alerts() if alert["kind"] == "stopped"]


def somebody_takes_telemetry_over(world: World, jobs: JobsProcess) -> None:
    with Client(world.server) as client:
        newer = client.committed("telemetry").reader_epoch + 1
        client.commit("telemetry", reader_epoch=newer)
    world.publish(20)
    assert jobs.wait() == 1, jobs.last_words()
    stopped = [alert for alert in jobs.alerts() if alert["kind"] == "stopped"]
    assert [alert["job"] for alert in stopped] == ["telemetry"]
    assert "another query reads with consumer group telemetry" in stopped[0]["sentence"]
    # Spark may still print a trace of its own behind it.
    ours = [line for line in jobs.talk().splitlines() if line.startswith("error: ")]
    assert ours[-1].startswith("error: telemetry: another query reads with consumer group telemetry")


def running(jobs: JobsProcess) -> set[str]:
    return {line["job"] for line in jobs.lines() if line.get("state") == "running"}


def lag_alerts(jobs: JobsProcess) -> list[bool]:
    """For each lag alert of telemetry, whether it reports the end of the lag."""
    return [alert["over"] for alert in jobs.alerts() if (alert["kind"], alert["job"]) == ("lag", "telemetry")]
