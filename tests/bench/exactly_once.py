"""Kills the telemetry job, its workers and its broker at each named point, and counts what bronze lacks or has twice.

    HEADWATERD=… python tests/bench/exactly_once.py [--rounds 10] [--writer files] [--seed N]

A round is a new log, table and checkpoint, each hurt once in a random order under load, and a comparison with the log
and with what the publishers were told. Prints a line a round and one JSON object at the end; exit code 1 with any
fault. A seed repeats the orders and the payloads, not the moments.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.bronze_check import Fault  # noqa: E402
from support.exactly_once import Hurt, KillRun  # noqa: E402

from broker_edge.torture.records import Recipe, chosen_seed  # noqa: E402


def main() -> int:
    options = _options()
    seed = chosen_seed() if options.seed is None else options.seed
    totals: dict[str, Counter[Fault]] = {writer: Counter() for writer in options.writer or ("files", "spark")}
    acked: Counter[str] = Counter()
    start = time.monotonic()
    for number in range(options.rounds):
        for writer in totals:
            faults, told = _round(writer, seed + number, options.folder)
            totals[writer] += faults
            acked[writer] += told
            print(
                f"round {number + 1} {writer}: {told:,} acknowledged, faults {dict(faults)}",
                file=sys.stderr,
                flush=True,
            )
    result = {
        "rounds": options.rounds,
        "seed": seed,
        "hurts": [hurt.meaning for hurt in Hurt],
        "acknowledged": dict(acked),
        "faults": {writer: {str(fault): count for fault, count in found.items()} for writer, found in totals.items()},
        "seconds": round(time.monotonic() - start),
    }
    print(json.dumps(result))
    return 1 if any(totals.values()) else 0


def _round(writer: str, seed: int, folder: str | None) -> tuple[Counter[Fault], int]:
    hurts = list(Hurt)
    random.Random(seed).shuffle(hurts)
    with tempfile.TemporaryDirectory(prefix="headwater-exactly-once-", dir=folder) as name:
        with KillRun(Path(name), writer=writer, recipe=Recipe(seed)) as run:
            for hurt in hurts:
                run.hurt(hurt)
            return run.finish(), run.acked


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--writer", action="append", choices=("files", "spark"), help="default: both; repeatable")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--folder", default=None, help="where the logs and tables go")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
