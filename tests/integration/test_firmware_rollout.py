"""Firmware from a table row to devices with faults and back: every target ends as in the fleet's own log."""

from __future__ import annotations

import json
import os
from pathlib import Path

from support.programs import StartBroker
from support.rollout_world import UPDATE_EXPECTED, UPDATE_FAULTS, RolloutWorld, fixed_ports

from actions.fleet_desk import Order
from broker_edge import Client
from broker_edge.artifacts import SigningKey, push
from broker_edge.device import FleetSettings, RunningFleet
from broker_edge.device.faults import assign
from broker_edge.device.fleet import device_ids
from broker_edge.device.fleet_log import last_told
from broker_edge.device.simulated import Updates


def test_firmware_reaches_a_fleet_with_faults_and_every_target_ends_right(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    broker = start_broker(settings=fixed_ports())
    key = SigningKey.generate()
    image = tmp_path / "image"
    image.write_bytes(os.urandom(1 << 20))
    log = tmp_path / "fleet.jsonl"
    settings = FleetSettings(
        count=20,
        host=broker.mqtt[0],
        port=broker.mqtt[1],
        telemetry=False,
        updates=Updates(key.trust()),
        faults=tuple(UPDATE_FAULTS),
        log_path=log,
    )
    ids = device_ids(settings)
    faults = assign(ids, UPDATE_FAULTS)
    world = RolloutWorld(tmp_path, broker, {id_: str(faults.get(id_, "ok")) for id_ in ids}, seed=0)
    with Client(world.server) as client:
        manifest = push(client, image, "firmware", "2.0.0", key=key, chunk_size=64 * 1024).manifest
        # A version that devices must not install: its signing key is not trusted.
        foreign = push(client, image, "firmware", "3.0.0", key=SigningKey.generate(), chunk_size=64 * 1024).manifest
    for one in (manifest, foreign):
        world.desk.offer(json.loads(one.to_bytes()))
    ota = {"name": "", "type": "ota", "percentage": 100.0, "artifact_name": "firmware"}
    # Long enough for healthy devices, even on a machine that is several times slower.
    times = {"timeout_queued_s": 25, "timeout_delivered_s": 25, "timeout_in_progress_s": 40, "timeout_step_s": 25}
    with RunningFleet(settings, [{}]), world.running():
        world.desk.order(Order(**ota, artifact_version="2.0.0", **times), action_id="good")
        world.until_over("good", seconds=360)
        found = {row["device_id"]: row["state"] for row in world.desk.targets("good")}
        world.desk.order(
            Order(**{**ota, "percentage": None}, artifact_version="3.0.0", device_ids=ids[:1]), action_id="bad"
        )
        world.until_over("bad", seconds=240)
        (refused,) = world.desk.targets("bad")
    assert found == {id_: UPDATE_EXPECTED[kind] for id_, kind in world.devices.items()}
    told = last_told(log)
    ended = {
        id_: state for (id_, action_id, _), state in told.items() if action_id == "good" and state != "IN_PROGRESS"
    }
    gone = {id_ for id_, state in found.items() if state == "TIMED_OUT"}
    # A device that gets the withdrawal of a command that timed out answers CANCELLED.
    assert {ended.pop(id_, "CANCELLED") for id_ in gone} <= {"CANCELLED"}
    assert ended == {id_: state for id_, state in found.items() if id_ not in gone}
    assert refused["state"] == "REJECTED"
    assert "which is not trusted" in refused["message"]
