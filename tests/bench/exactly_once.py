"""Kills the telemetry job, its workers and its broker at each named point, and counts missing and duplicate records in
bronze. Also kills engine, status reader and broker while devices execute actions, and compares targets with their
events.

    HEADWATERD=… python tests/bench/exactly_once.py [--rounds 10] [--part files] [--seed N] [--results FILE]

A round of `files` or `spark` (the writers of bronze) has a new log, table and checkpoint. Each process is killed once,
in random order and under load, and the table is compared with the log and with the acknowledgements of the publishers.
A round of `actions` is a rollout to 200 devices, a fifth of which have faults. Prints one JSON object per round and the
totals at the end; exit code 1 if there is any fault. Rounds that the results file already has, by part and seed, are
not run again. A seed repeats the order and the payloads, not the timing.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.action_fold import fold_differences  # noqa: E402
from support.exactly_once import Hurt, KillRun  # noqa: E402
from support.rollout_world import (  # noqa: E402
    EXPECTED,
    RolloutWorld,
    begun,
    fixed_ports,
    fleet_settings,
    kinds_of,
    running,
)

from actions.fleet_desk import Order  # noqa: E402
from broker_edge.torture.process import BrokerProcess  # noqa: E402
from broker_edge.torture.records import Recipe, chosen_seed  # noqa: E402

DEVICES = 200
FAULTY = 0.2
KILLS = 8

Found = dict[str, Any]


def bronze_round(writer: str, seed: int, folder: Path) -> Found:
    hurts = list(Hurt)
    random.Random(seed).shuffle(hurts)
    killed: list[str] = []
    with KillRun(folder, writer=writer, recipe=Recipe(seed)) as run:
        try:
            for hurt in hurts:
                run.hurt(hurt)
                killed.append(hurt.value)
            faults = run.finish()
        except AssertionError as error:
            # Not a fault of the table: the kill did not happen, or the job did not come back.
            return {"kills": killed, "stopped": f"after {killed}: {error}"}
        return {
            "kills": killed,
            "acknowledged": run.acked,
            "rows": run.rows,
            "faults": {str(fault): count for fault, count in faults.items()},
        }


def actions_round(seed: int, folder: Path) -> Found:
    log = folder / "fleet.jsonl"
    with BrokerProcess(data_dir=folder / "broker", settings=fixed_ports(), log_file=folder / "broker.txt") as broker:
        broker.start()
        fleet = fleet_settings(DEVICES, port=broker.mqtt[1], log=log, faults=FAULTY, seed=seed)
        devices = kinds_of(fleet)
        world = RolloutWorld(folder, broker, devices, seed)
        limits = {f"timeout_{name}_s": 20 for name in ("queued", "delivered", "step")}
        try:
            with running(fleet), world.running():
                world.desk.order(
                    Order(name="echo", percentage=100.0, retries=1, retry_backoff_s=1, **limits), action_id="good"
                )
                world.until_over("good", seconds=400, kills=KILLS, pause_s=3)
        except AssertionError as error:
            return {"kills": [*world.kills.elements()], "stopped": str(error)}
        states = {target["device_id"]: target["state"] for target in world.desk.targets("good")}
        faults = Counter(
            unlike_its_events=len(differences := fold_differences(world.root)),
            wrong_end=sum(states.get(id_) != EXPECTED[kind] for id_, kind in devices.items()),
            carried_out_twice=sum(count > 1 for count in begun(log).values()),
            command_twice=sum(count > 1 for count in world.commands().values()),
        )
    for sentence in differences[:10]:
        print(f"seed {seed}: {sentence}", file=sys.stderr)
    return {"kills": [*world.kills.elements()], "rows": len(states), "faults": +faults}


PARTS: Mapping[str, Callable[[int, Path], Found]] = {
    "files": lambda seed, folder: bronze_round("files", seed, folder),
    "spark": lambda seed, folder: bronze_round("spark", seed, folder),
    "actions": actions_round,
}


def main() -> int:
    options = _options()
    known = _known(options.results)
    rounds: list[Found] = []
    for number in range(options.rounds):
        for part in options.part or PARTS:
            seed = options.seed + number
            found = known.get((part, seed))
            if found is None:
                found = _round(part, seed, options.folder)
                _keep(found, options.results)
            rounds.append(found)
    print(json.dumps({"totals": totals(rounds)}))
    return 1 if any(one.get("faults") or "stopped" in one for one in rounds) else 0


def totals(rounds: Iterable[Found]) -> dict[str, Found]:
    """By part: rounds, kills by kind, acknowledged records, rows, faults, and incomplete rounds."""
    found: dict[str, Found] = {}
    for one in rounds:
        sums = found.setdefault(
            one["part"],
            {"rounds": 0, "kills": Counter(), "acknowledged": 0, "rows": 0, "faults": Counter(), "stopped": 0},
        )
        sums["rounds"] += 1
        sums["kills"].update(one["kills"])
        sums["acknowledged"] += one.get("acknowledged", 0)
        sums["rows"] += one.get("rows", 0)
        sums["faults"].update(one.get("faults", {}))
        sums["stopped"] += "stopped" in one
    return found


def _round(part: str, seed: int, folder: Path | None) -> Found:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="headwater-exactly-once-", dir=folder) as name:
        found = PARTS[part](seed, Path(name))
    return {"part": part, "seed": seed, **found, "seconds": round(time.monotonic() - start)}


def _keep(found: Found, results: Path | None) -> None:
    line = json.dumps(found)
    print(line, flush=True)
    if results is not None:
        with results.open("a") as file:
            file.write(line + "\n")


def _known(results: Path | None) -> dict[tuple[str, int], Found]:
    """Rounds that an earlier run completed."""
    if results is None or not results.exists():
        return {}
    lines = [json.loads(line) for line in results.read_text().splitlines() if line.startswith("{")]
    return {(line["part"], line["seed"]): line for line in lines if "part" in line and "stopped" not in line}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--part", action="append", choices=tuple(PARTS), help="default: all; repeatable")
    parser.add_argument(
        "--seed", type=int, default=chosen_seed(), help="seed of the first round; later rounds count up"
    )
    parser.add_argument("--results", type=Path, default=None, help="file to which each round is appended")
    parser.add_argument("--folder", type=Path, default=None, help="folder for logs and tables")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
