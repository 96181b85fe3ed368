"""Measures what a rollout writes to `action_targets`, against the size of its rows.

    python tests/bench/engine_bytes.py [DEVICES] [COMMITS]

The real store writes to a folder of its own. Each device has nine steps (owed, queued, delivered, accepted, begun,
three times progress, succeeded), and each commit has the devices that made a step in its share of the time. Prints
JSON:
`written` (data, change data and log, in bytes), `rows` (the same rows as one table), and their ratio.
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import write_deltalake

from actions.engine import Decision, Target, TargetState
from actions.store import DeltalakeStore
from actions.table_store import Versions
from sinks import tables
from sinks.tables import uri_of

START_US = 1_800_000_000_000_000
ROLLOUT_S = 8 * 3600
LOG = "0b7f2c1e-1111-4222-8333-444455556666"
STEPS = ("owed", "QUEUED", "DELIVERED", "ACCEPTED", "IN_PROGRESS", "25", "50", "75", "SUCCEEDED")


def changed(target: Target, step: str, number: int, now_us: int) -> Target:
    told = {"since_us": now_us, "updated_us": now_us}
    if step == "owed":
        return replace(target, outbox="command", sent_us=now_us, **told)
    if step == "QUEUED":
        place = {"log_id": LOG, "partition": number % 8, "offset": 3 * number}
        return replace(target, state=TargetState.QUEUED, outbox=None, queued_us=now_us, **place, **told)
    report = {"boot": "boot-1", "seq": number, "report_log_id": LOG, "report_partition": number % 8}
    told |= {**report, "report_offset": 9 * number}
    if step.isdigit():
        return replace(target, progress=int(step), message=f"{step} percent are written", **told)
    finished_us = now_us if step == "SUCCEEDED" else None
    return replace(target, state=TargetState(step), finished_us=finished_us, **told)


def steps_of(devices: int, commits: int, seed: int) -> list[dict[int, list[str]]]:
    """By commit: the steps of each device. Devices begin one after the other, in the order of their ids."""
    chance = random.Random(seed)
    found: list[dict[int, list[str]]] = [{} for _ in range(commits)]
    for number in range(devices):
        at = number * 0.8 * commits / devices
        for step in STEPS:
            found[min(commits - 1, int(at))].setdefault(number, []).append(step)
            at += 0.0 if step == "owed" else chance.uniform(0.002, 0.03) * commits
    return found


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def measured(root: Path, devices: int, commits: int) -> dict[str, float]:
    tables.create_by_path(root / "tables")
    store = DeltalakeStore(root / "tables")
    store.claim()
    first = {"created_us": START_US, "since_us": START_US, "updated_us": START_US}
    targets = [Target("a1", "default", f"device-{n:06}", TargetState.PENDING, **first) for n in range(devices)]
    store.commit(Decision(target_updates=tuple(targets)), Versions(), new=frozenset({"a1"}))
    took_s = []
    for count, changes in enumerate(steps_of(devices, commits, seed=1)):
        now_us = START_US + ROLLOUT_S * 1_000_000 * count // commits
        for number, steps in changes.items():
            for step in steps:
                targets[number] = changed(targets[number], step, number, now_us)
        if changes:
            began = time.perf_counter()
            store.commit(Decision(target_updates=tuple(targets[n] for n in changes)), Versions(reports=count))
            took_s.append(time.perf_counter() - began)
    folder = Path(uri_of(root / "tables", "action_targets"))
    write_deltalake(root / "rows", store._current("action_targets").to_pyarrow_table())
    written, rows = size_of(folder), size_of(root / "rows")
    middle_ms = 1e3 * sorted(took_s)[len(took_s) // 2]
    return {"commits": len(took_s), "written": written, "rows": rows, "ratio": written / rows, "commit_ms": middle_ms}


def main() -> None:
    given = [int(word) for word in sys.argv[1:3]]
    devices, commits = [*given, *(10_000, 60)[len(given) :]]
    with TemporaryDirectory(prefix="headwater-bytes-") as folder:
        print(json.dumps({"devices": devices, **measured(Path(folder), devices, commits)}))


if __name__ == "__main__":
    main()
