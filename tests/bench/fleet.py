"""A rollout to a large fleet with faults, in waves of 1, 10 and 100 %, while engine, status reader and broker are
killed at random; then a bad command that an abort rule has to stop within its wave.

    HEADWATERD=… python tests/bench/fleet.py [--devices 2000] [--faults 0.2] [--kills 12] [--seed N]

Prints what became of the targets, beside what the fleet's own log says, and exits 1 when the two differ.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.rollout_world import (
    RolloutWorld,
    begun,
    differences,
    fixed_ports,
    fleet_settings,
    kinds_of,
    running,
)

from broker_edge.torture.process import BrokerProcess
from pipelines.fleet_desk import Order

WAVES = [
    {"percentage": 1, "success_percentage": 50},
    {"percentage": 10, "success_percentage": 50},
    {"percentage": 100},
]


def run(folder: Path, options: argparse.Namespace) -> list[str]:
    """What was wrong."""
    log = folder / "fleet.jsonl"
    wrong: list[str] = []
    with BrokerProcess(data_dir=folder / "broker", settings=fixed_ports(), log_file=folder / "broker.txt") as broker:
        broker.start()
        settings = fleet_settings(
            options.devices, port=broker.mqtt[1], log=log, faults=options.faults, seed=options.seed
        )
        devices = kinds_of(settings)
        world = RolloutWorld(folder, broker, devices, options.seed)
        limits = {f"timeout_{name}_s": options.timeout for name in ("queued", "delivered", "step")}
        began = time.monotonic()
        with running(settings), world.running():
            print(
                f"{len(devices)} devices, {options.faults:.0%} with faults, seed {options.seed}: connected", flush=True
            )
            world.desk.order(Order(name="echo", percentage=100.0, waves=WAVES, **limits), action_id="good")
            row = world.until_over("good", seconds=1_800, kills=options.kills, pause_s=4)
            print(f"{time.monotonic() - began:.0f} s: {row['message']}; killed {dict(world.kills)}", flush=True)
            states = {target["device_id"]: target["state"] for target in world.desk.targets("good")}
            differ = differences(log, "good", devices, states)
            if differ:
                wrong.append(f"{len(differ)} targets ended in another state: {', '.join(differ[:5])}")
            bad = [{"percentage": 1, "error_percentage": 50, "min_reported": 5}, {"percentage": 100}]
            world.desk.order(Order(name="set-interval", percentage=100.0, waves=bad, **limits), action_id="bad")
            row = world.until_over("bad", seconds=600)
            print(f"bad: {row['message']}", flush=True)
            commands = world.commands()
    done = begun(log)
    sent_bad = sum(1 for action_id, _, _ in commands if action_id == "bad")
    print(f"commands in the log: {len(commands)}, of the bad action {sent_bad}; carried out: {len(done)}")
    if set(commands.values()) != {1} or set(done.values()) != {1}:
        wrong.append(f"doubled: {max(commands.values())} times in the log, {max(done.values())} times carried out")
    if sent_bad > max(5, round(options.devices * 0.01)):
        wrong.append(f"the bad action reached {sent_bad} devices, more than its first wave")
    able = {id_ for id_, kind in devices.items() if kind in ("ok", "fails", "stuck")}
    carried = {id_ for action_id, id_, _ in done if action_id == "good"}
    if carried != able:
        wrong.append(f"{len(carried ^ able)} devices differ between the fleet's own log and what was asked of it")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2_000)
    parser.add_argument("--faults", type=float, default=0.2, help="share of the devices")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--timeout", type=int, default=60, help="seconds")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fleet-"))
    try:
        wrong = run(folder, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for sentence in wrong:
        print(f"WRONG: {sentence}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
