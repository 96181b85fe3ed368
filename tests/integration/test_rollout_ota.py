"""An OTA from the table to running firmware: a rollout in waves to simulated devices, some of them with faults."""

from __future__ import annotations

import json
import os
from pathlib import Path

from support.programs import StartBroker
from support.rollout_world import RolloutWorld, fixed_ports

from actions.fleet_desk import Order
from broker_edge import Client
from broker_edge.artifacts import SigningKey, push
from broker_edge.artifacts.manifest import manifest_topic
from broker_edge.device import FleetSettings, RunningFleet
from broker_edge.device.faults import assign, parse
from broker_edge.device.fleet import device_ids
from broker_edge.device.fleet_log import last_told
from broker_edge.device.simulated import Updates

FAULTS = "offline=5%,silent=5%,refuses=5%,fails=5%,wrong-checksum=5%,crash@install=5%,interrupted=5%"
ENDS = {
    "offline": "TIMED_OUT",
    "silent": "TIMED_OUT",
    "refuses": "REJECTED",
    "fails": "FAILED",
    "wrong-checksum": "FAILED",
}
"""Final states of updates with a permanent fault; the others succeed."""
WAVES = [{"percentage": 10, "success_percentage": 0}, {"percentage": 100}]


def test_update_ends_as_each_device_has_it_and_success_means_that_the_version_runs(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    broker, key = start_broker(settings=fixed_ports()), SigningKey.generate()
    image = tmp_path / "image"
    image.write_bytes(os.urandom(200_000))
    shares = tuple(parse(FAULTS))
    settings = FleetSettings(
        count=40,
        port=broker.mqtt[1],
        interval_s=60,
        telemetry=False,
        connect_timeout_s=60,
        faults=shares,
        updates=Updates(trust=key.trust()),
        log_path=tmp_path / "fleet.jsonl",
    )
    ids = device_ids(settings)
    faults = assign(ids, shares, seed=settings.seed)
    world = RolloutWorld(tmp_path, broker, dict.fromkeys(ids, "simulated"), seed=0)
    with Client(world.server) as client:
        push(client, image, "pump", "2.0", key=key, chunk_size=16 * 1024)
        topic = manifest_topic("pump", "2.0")
        (partition,) = client.offsets(filters=topic).partitions.items()
        rows = client.fetch(partition[0], partition[1].log_start, partition[1].high_watermark, filters=topic)
        world.desk.offer(json.loads(rows.to_table().column("value").to_pylist()[-1]))
    order = Order(
        name="pump-2.0",
        type="ota",
        artifact_name="pump",
        artifact_version="2.0",
        percentage=100.0,
        waves=WAVES,
        timeout_queued_s=30,
        timeout_delivered_s=30,
    )
    with RunningFleet(settings, [{"x": 1}]), world.running():
        world.desk.order(order, action_id="ota")
        world.until_over("ota", seconds=400)
        targets = {row["device_id"]: row for row in world.desk.targets("ota")}
    expected = {id_: ENDS.get(faults[id_].name, "SUCCEEDED") if id_ in faults else "SUCCEEDED" for id_ in ids}
    assert {id_: row["state"] for id_, row in targets.items()} == expected
    told = {device_id: state for (device_id, _, _), state in last_told(tmp_path / "fleet.jsonl").items()}
    ended = {id_: state for id_, state in expected.items() if state != "TIMED_OUT"}
    assert {id_: told[id_] for id_ in ended} == ended, "the fleet's own log says otherwise"
    with_version = {
        row["device_id"]: row["version"] for row in world.desk._query("device_state", "SELECT * FROM device_state")
    }
    assert all(with_version[id_] == "2.0" for id_, state in expected.items() if state == "SUCCEEDED")
    assert {with_version[id_] for id_, state in expected.items() if state == "FAILED"} <= {"1.0.0"}
    assert {row["mode"] for row in targets.values()} == {"forced"}
