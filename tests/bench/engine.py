"""Measures a tick of the action engine with many targets in one action: the pure function alone, and with its tables.

    python tests/bench/engine.py [--devices 100000] [--dir FOLDER]

Prints a row per step: seconds of the pure tick, seconds of the whole turn (read tables, tick, commit, publish to a fake
log, commit the offsets), rows written. The log is a fake; the tables are real.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from deltalake import DeltaTable, write_deltalake

from actions.engine import Limits, tick
from actions.job import ActionJob
from actions.store import DeltalakeStore
from broker_edge import Place, Row
from sinks import tables
from sinks.rows import arrow_of, now_us


class PretendedLog:
    def __init__(self) -> None:
        self.published = 0

    name = None

    def log_id(self) -> str:
        return "log"

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        first, self.published = self.published, self.published + len(rows)
        return [Place(1, first + number, False) for number in range(len(rows))]


class Bench:
    def __init__(self, root: Path, devices: int) -> None:
        self.root, self.ids = root, [f"device-{number:06}" for number in range(devices)]
        tables.create_by_path(root)
        self._insert(tables.DEVICES, [{"device_id": id_, "labels": {"site": "roof"}} for id_ in self.ids])
        self._offset = 0
        self.limits = Limits()
        self.log = PretendedLog()
        self.job = self._start()

    def _start(self) -> ActionJob:
        return ActionJob(DeltalakeStore(self.root), self.log, limits=self.limits)

    def _insert(self, table: tables.FieldTable, rows: Sequence[dict[str, object]]) -> None:
        write_deltalake(tables.uri_of(self.root, table.name), arrow_of(rows, table), mode="append")

    def action(self, action_id: str, **fields: object) -> None:
        waves = json.dumps([{"percentage": 1}, {"percentage": 10}, {"percentage": 100}])
        row = {"action_id": action_id, "name": "echo", "percentage": 100.0, "created_at": now_us(), "waves": waves}
        self._insert(tables.ACTIONS, [{**row, **fields}])

    def report(self, action_id: str, ids: Sequence[str], state: str) -> None:
        rows = []
        for id_ in ids:
            self._offset += 1
            place = {"log_id": "log", "partition": 5, "offset": self._offset, "epoch": 1}
            said = {"source": "status", "action_id": action_id, "device_id": id_, "attempt": 1, "state": state}
            times = {"at": now_us(), "recorded_at": now_us(), "boot": "b", "seq": self._offset}
            rows.append({**place, **said, **times, "event_id": f"log/5/{self._offset}/1"})
        self._insert(tables.ACTION_EVENTS, rows)

    def step(self, what: str) -> None:
        began, cpu = time.perf_counter(), time.process_time()
        decision = self.job.turn()
        turn_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
        began = time.perf_counter()
        job = self.job
        actions = [row for rows in job._definitions.values() for row in rows]
        tick(job.state, actions, [], [], job._devices, now_us(), limits=job._limits)
        pure_s = time.perf_counter() - began
        rows, records = len(decision.target_updates), len(decision.publishes)
        print(f"{what:46} {turn_s:8.2f} {cpu_s:8.2f} {pure_s:9.2f} {rows:8} {records:8}", flush=True)

    def restart(self) -> float:
        began = time.perf_counter()
        self.job = self._start()
        return time.perf_counter() - began

    def run(self) -> None:
        print(f"{'step':46} {'turn s':>8} {'cpu s':>8} {'idle tick':>9} {'rows':>8} {'records':>8}")
        self.step("nothing")
        self.action("one-wave", waves=None)
        self.step(f"an action for {len(self.ids)} devices")
        self.step("nothing new, the next commands are sent")
        began, turns = time.perf_counter(), 1
        while self.job.turn().publishes:
            turns += 1
        print(f"the others sent in {turns} turns: {time.perf_counter() - began:.2f} s")
        self.step("all are sent, a turn that checks them")
        self.step("all are sent, a turn without work")
        some = random.Random(1).sample(self.ids, min(2_000, len(self.ids)))
        self.report("one-wave", some, "IN_PROGRESS")
        self.step(f"{len(some)} report progress")
        self.report("one-wave", self.ids, "SUCCEEDED")
        self.step("all report success")
        self.action("waves")
        self.step("an action in waves of 1, 10, 100 %")
        targets = self.job.state.targets["waves"]
        for wave in (0, 1):
            self.report("waves", [id_ for id_, target in targets.items() if target.wave == wave], "SUCCEEDED")
            self.step(f"wave {wave + 1} succeeds, the next begins")
        print(f"restart with running actions: {self.restart():.2f} s")
        self.step("first turn after the restart")
        files = len(DeltaTable(tables.uri_of(self.root, "action_targets")).file_uris())
        print(f"files of action_targets: {files}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--dir", type=Path, help="folder for the tables (default: a temporary one)")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="engine-", dir=options.dir))
    try:
        Bench(folder / "tables", options.devices).run()
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
