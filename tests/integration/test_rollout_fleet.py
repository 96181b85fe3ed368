"""A phased rollout to a small fleet with faults, while engine, status reader and broker are killed at random."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

from support.action_fold import fold_differences
from support.programs import StartBroker
from support.rollout_world import EXPECTED, FaultyFleet, RolloutWorld, fixed_ports, kinds

from pipelines.fleet_desk import Order

WAVES = [{"percentage": 3, "success_percentage": 50}, {"percentage": 10, "success_percentage": 50}, {"percentage": 100}]


def test_every_target_ends_right_and_an_abort_stops_a_bad_command_in_its_wave(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    seed = random.randrange(10**6)
    broker = start_broker(settings=fixed_ports())
    devices = kinds(100, faults=0.2, seed=seed)
    world = RolloutWorld(tmp_path, broker, devices, seed)
    everybody = {"percentage": 100.0, "timeout_queued_s": 20, "timeout_step_s": 20, "timeout_delivered_s": 20}
    with FaultyFleet(devices, broker.mqtt[1]) as fleet, world.running():
        world.desk.order(Order(name="work", waves=WAVES, **everybody), action_id="good")
        world.until_over("good", seconds=180, kills=5, pause_s=2)
        states = {row["device_id"]: row["state"] for row in world.desk.targets("good")}
        assert states == {id_: EXPECTED[kind] for id_, kind in devices.items()}, f"seed {seed}"

        bad = [{"percentage": 5, "error_percentage": 50, "min_reported": 2}, {"percentage": 100}]
        world.desk.order(Order(name="bad", waves=bad, **everybody), action_id="bad")
        row = world.until_over("bad", seconds=90)
        commands = world.commands()
        done = Counter(fleet.carried_out)
    assert row["stopped"].startswith("aborted: "), row
    assert 2 <= sum(1 for action_id, _, _ in commands if action_id == "bad") <= 5
    assert row["counts"]["CANCELLED"] >= 95
    # No command is in the log twice, none was carried out twice, and the fleet's own log has what the tables have.
    assert set(commands.values()) == {1}, f"seed {seed}"
    assert set(done.values()) == {1}, f"seed {seed}"
    present = {id_ for id_, kind in devices.items() if kind != "away"}
    assert {id_ for action_id, id_, _ in done if action_id == "good"} == present
    assert fold_differences(world.root) == [], f"seed {seed}"
    quarantined = (tmp_path / "tables" / "quarantine" / "_delta_log").glob("*.json")
    assert [path.name for path in quarantined] == [f"{0:020}.json"], "something was quarantined"
