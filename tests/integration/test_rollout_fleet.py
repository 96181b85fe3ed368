"""A phased rollout to a small fleet with faults, while engine, status reader and broker are killed at random."""

from __future__ import annotations

import random
from pathlib import Path

from deltalake import DeltaTable
from support.action_fold import fold_differences
from support.programs import StartBroker
from support.rollout_world import (
    RolloutWorld,
    begun,
    differences,
    fixed_ports,
    fleet_settings,
    kinds_of,
    running,
)

from actions.fleet_desk import Order

WAVES = [{"percentage": 3, "success_percentage": 50}, {"percentage": 10, "success_percentage": 50}, {"percentage": 100}]


def test_every_target_ends_right_and_an_abort_stops_a_bad_command_in_its_wave(
    tmp_path: Path, start_broker: StartBroker
) -> None:
    seed = random.randrange(10**6)
    broker = start_broker(settings=fixed_ports())
    log = tmp_path / "fleet.jsonl"
    settings = fleet_settings(100, port=broker.mqtt[1], log=log, faults=0.2, seed=seed)
    devices = kinds_of(settings)
    world = RolloutWorld(tmp_path, broker, devices, seed)
    everybody = {"percentage": 100.0, "timeout_queued_s": 40, "timeout_step_s": 40, "timeout_delivered_s": 40}
    with running(settings), world.running():
        world.desk.order(Order(name="echo", waves=WAVES, **everybody), action_id="good")
        world.until_over("good", seconds=500, kills=5, pause_s=2)
        states = {row["device_id"]: row["state"] for row in world.desk.targets("good")}
        assert differences(log, "good", devices, states) == [], f"seed {seed}"

        # No device executes it, because it lacks its param.
        bad = [{"percentage": 5, "error_percentage": 50, "min_reported": 2}, {"percentage": 100}]
        world.desk.order(Order(name="set-interval", waves=bad, **everybody), action_id="bad")
        row = world.until_over("bad", seconds=240)
        commands = world.commands()
    done = begun(log)
    assert row["stopped"].startswith("aborted: "), row
    assert 2 <= sum(1 for action_id, _, _ in commands if action_id == "bad") <= 5
    assert row["counts"]["CANCELLED"] >= 95
    # No command is in the log twice, none was executed twice, and the fleet's own log matches the tables.
    assert set(commands.values()) == {1}, f"seed {seed}"
    assert set(done.values()) == {1}, f"seed {seed}"
    able = {id_ for id_, kind in devices.items() if kind in ("ok", "fails", "stuck")}
    assert {id_ for action_id, id_, _ in done if action_id == "good"} == able
    assert fold_differences(world.root) == [], f"seed {seed}"
    quarantined = DeltaTable(str(tmp_path / "tables" / "quarantine")).to_pyarrow_table().to_pylist()
    assert quarantined == [], "something was quarantined"
