"""A rollout to a large fleet with faults, in waves of 1, 10 and 100 %, while engine, status reader and broker are
killed at random. Then a bad command, which an abort rule must stop within its wave.

    HEADWATERD=… python tests/bench/fleet.py [--devices 2000] [--faults 0.2] [--kills 12] [--image-kib 256] [--seed N]

With `--image-kib` it rolls out firmware of that size, with the faults of updates, and the bad one is an image with an
untrusted signature. Prints the states of the targets beside the fleet's own log, and exits with 1 if the two differ.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support.rollout_world import (
    EXPECTED,
    UPDATE_EXPECTED,
    RolloutWorld,
    begun,
    differences,
    fixed_ports,
    fleet_settings,
    kinds_of,
    running,
)

from actions.fleet_desk import Order
from broker_edge import Client
from broker_edge.artifacts import SigningKey, push
from broker_edge.device.simulated import Updates
from broker_edge.torture.process import BrokerProcess

WAVES = [
    {"percentage": 1, "success_percentage": 50},
    {"percentage": 10, "success_percentage": 50},
    {"percentage": 100},
]
BAD_WAVES = [{"percentage": 1, "error_percentage": 50, "min_reported": 5}, {"percentage": 100}]
CHUNK_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """The good and the bad rollout, and the expected outcome for each kind of device."""

    good: Mapping[str, Any]
    bad: Mapping[str, Any]
    expected: Mapping[str, str]
    able: frozenset[str] = frozenset()
    """The kinds of devices that execute a command once; an update is started again after a crash."""
    updates: Updates | None = None


def a_command() -> Wanted:
    return Wanted(
        good={"name": "echo"},
        bad={"name": "set-interval"},  # No device executes it: it lacks its param.
        expected=EXPECTED,
        able=frozenset({"ok", "fails", "stuck"}),
    )


def an_image(key: SigningKey) -> Wanted:
    ota = {"name": "", "type": "ota", "artifact_name": "firmware"}
    return Wanted(
        good=ota | {"artifact_version": "2.0.0"},
        bad=ota | {"artifact_version": "3.0.0"},
        expected=UPDATE_EXPECTED,
        updates=Updates(key.trust()),
    )


def offer_images(world: RolloutWorld, key: SigningKey, image: Path, kib: int) -> None:
    """Version 2.0.0, signed by a key that devices trust, and 3.0.0, whose key is not trusted."""
    image.write_bytes(os.urandom(kib << 10))
    with Client(world.server) as client:
        for version, signer in (("2.0.0", key), ("3.0.0", SigningKey.generate())):
            manifest = push(client, image, "firmware", version, key=signer, chunk_size=CHUNK_BYTES).manifest
            world.desk.offer(json.loads(manifest.to_bytes()))


def run(folder: Path, options: argparse.Namespace) -> list[str]:
    """Returns the errors found."""
    key = SigningKey.generate()
    wanted = an_image(key) if options.image_kib else a_command()
    log = folder / "fleet.jsonl"
    wrong: list[str] = []
    with BrokerProcess(data_dir=folder / "broker", settings=fixed_ports(), log_file=folder / "broker.txt") as broker:
        broker.start()
        settings = fleet_settings(
            options.devices,
            port=broker.mqtt[1],
            log=log,
            faults=options.faults,
            seed=options.seed,
            updates=wanted.updates,
        )
        devices = kinds_of(settings)
        world = RolloutWorld(folder, broker, devices, options.seed)
        limits = {f"timeout_{name}_s": options.timeout for name in ("queued", "delivered", "in_progress", "step")}
        if options.image_kib:
            offer_images(world, key, folder / "image", options.image_kib)
        began = time.monotonic()
        with running(settings), world.running():
            print(
                f"{len(devices)} devices, {options.faults:.0%} with faults, seed {options.seed}: connected", flush=True
            )
            world.desk.order(Order(**wanted.good, percentage=100.0, waves=WAVES, **limits), action_id="good")
            row = world.until_over("good", seconds=1_800, kills=options.kills, pause_s=4)
            print(f"{time.monotonic() - began:.0f} s: {row['message']}; killed {dict(world.kills)}", flush=True)
            states = {target["device_id"]: target["state"] for target in world.desk.targets("good")}
            differ = differences(log, "good", devices, states, wanted.expected)
            if differ:
                wrong.append(f"{len(differ)} targets ended in another state: {', '.join(differ[:5])}")
            world.desk.order(Order(**wanted.bad, percentage=100.0, waves=BAD_WAVES, **limits), action_id="bad")
            row = world.until_over("bad", seconds=600)
            print(f"bad: {row['message']}", flush=True)
            commands = world.commands()
    sent_bad = sum(1 for action_id, _, _ in commands if action_id == "bad")
    print(f"commands in the log: {len(commands)}, of the bad action {sent_bad}")
    if set(commands.values()) != {1}:
        wrong.append(f"a command is {max(commands.values())} times in the log")
    if sent_bad > max(5, round(options.devices * 0.01)):
        wrong.append(f"the bad action reached {sent_bad} devices, more than its first wave")
    return wrong + carried_out_wrongly(log, {id_ for id_, kind in devices.items() if kind in wanted.able})


def carried_out_wrongly(log: Path, able: set[str]) -> list[str]:
    """Commands that were executed twice, by other devices than `able`, or not at all."""
    wrong: list[str] = []
    done = begun(log)
    print(f"commands executed: {len(done)}")
    if done and set(done.values()) != {1}:
        wrong.append(f"a command was executed {max(done.values())} times")
    carried = {id_ for action_id, id_, _ in done if action_id == "good"}
    if carried != able:
        wrong.append(f"{len(carried ^ able)} devices differ between the fleet's own log and the expectation")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=2_000)
    parser.add_argument("--faults", type=float, default=0.2, help="share of the devices")
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--timeout", type=int, default=60, help="seconds")
    parser.add_argument("--image-kib", type=int, default=0, help="roll out firmware of this size; default: a command")
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
