"""Measures what a tick of the action engine costs while many targets are open: seconds, processor time, memory.

    python tests/bench/ticks.py [--devices 1000000] [--rounds 5] [--only CASE,CASE] [--tables] [--dir FOLDER]

Each case runs in a process of its own and prints the median of its rounds, and the resident memory of the process (now,
and its peak). Without `--tables` it is the pure tick and `apply`; with it, a whole turn of the job on real Delta tables
with a fake log, and the memory includes what the job loads from the tables. The cases:

- `reports`: 1,000 devices report progress. `everyone`: 100,000 devices report success at once (100,000 targets).
- `window`: every command waits for a maintenance window. `soak`: the second wave waits for the soak of the first.
- `rate`: all but a few commands wait for the rate. `idle`: all commands are sent, and nobody reports.
- `devices`: 10 rows of the table `devices` change.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from deltalake import DeltaTable, write_deltalake

from actions.collector import paused_collector
from actions.engine import (
    Action,
    Device,
    EngineState,
    Limits,
    Place,
    Report,
    Rollout,
    Selector,
    apply,
    record_places,
    tick,
)
from actions.job import ActionJob, Pace
from actions.store import DeltalakeStore
from broker_edge import Place as LogPlace
from broker_edge import Row
from sinks import tables
from sinks.rows import arrow_of

SECOND = 1_000_000
START_US = 1_800_000_000 * SECOND
"""A Friday, 08:00 UTC."""
WAVES = json.dumps([{"percentage": 1, "success_percentage": 50, "soak_s": 36_000}, {"percentage": 100}])
ROLLOUTS = {
    "window": Rollout(maintenance_window="Sun 01:00-02:00"),
    "soak": Rollout(waves=WAVES),
    "rate": Rollout(rate_per_minute=60, max_in_flight=100_000),
}
CASES = ("reports", "everyone", "window", "soak", "rate", "idle", "devices")
_ALL_AT_ONCE = 100_000
_REPORTING = 1_000
_CHANGED = 10


@dataclass(slots=True)
class Cost:
    """Seconds and seconds of processor time of one round."""

    wall_s: float
    cpu_s: float


def timed(step: Callable[[], object]) -> Cost:
    began, cpu = time.perf_counter(), time.process_time()
    step()
    return Cost(time.perf_counter() - began, time.process_time() - cpu)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


class Pure:
    """The engine alone: `tick`, `apply`, and the same for the places of what it published."""

    def __init__(self, case: str, count: int) -> None:
        self.case, self.now_us, self.chance = case, START_US, random.Random(1)
        self.ids = [f"device-{number:07}" for number in range(count)]
        self.devices = {id_: Device(id_, "default") for id_ in self.ids}
        rollout = ROLLOUTS.get(case, Rollout())
        self.actions = [Action("a1", "default", "command", "echo", "{}", Selector(percentage=100), rollout=rollout)]
        self.limits = Limits(publish_max=50_000)
        self.state = EngineState()
        self._offset = 0

    @paused_collector()  # As the job does.
    def turn(self, *reports: Report, after_s: int = 1) -> int:
        """Returns the number of published records."""
        self.now_us += after_s * SECOND
        decision = tick(self.state, self.actions, [], reports, self.devices, self.now_us, limits=self.limits)
        self.state = apply(self.state, decision)
        if decision.publishes:
            places = {}
            for publish in decision.publishes:
                self._offset += 1
                places[publish] = Place(1, self._offset)
            self.state = apply(self.state, record_places(self.state, places, self.now_us))
        return len(decision.publishes)

    def report(self, device_id: str, state: str) -> Report:
        self._offset += 1
        at = {"at_us": self.now_us, "recorded_us": self.now_us}
        said = {"boot": "b", "seq": self._offset, "progress": self._offset % 100}
        return Report("status", "log", 5, self._offset, device_id, "a1", 1, state, **at, **said)  # type: ignore[arg-type]

    def reports(self, ids: Sequence[str], state: str) -> list[Report]:
        return [self.report(id_, state) for id_ in ids]

    def begin(self) -> None:
        while self.turn() and self.case != "rate":
            pass
        if self.case == "soak":
            first = [id_ for id_, target in self.state.targets["a1"].items() if target.wave == 0]
            self.turn(*self.reports(first, "SUCCEEDED"))
        self.turn()

    def round(self) -> Cost:
        if self.case == "reports":
            found = self.reports(self.chance.sample(self.ids, _REPORTING), "IN_PROGRESS")
            return timed(lambda: self.turn(*found))
        if self.case == "everyone":
            before, found = self.state, self.reports(self.ids, "SUCCEEDED")
            cost = timed(lambda: self.turn(*found))
            self.state = before
            self.turn()  # The same again: the state before the reports needs its own index.
            return cost
        if self.case == "devices":
            changed = {id_: Device(id_, "default", {"n": str(self.now_us)}) for id_ in self.ids[:_CHANGED]}
            self.devices = {**self.devices, **changed}
        return timed(self.turn)


class PretendedLog:
    def __init__(self) -> None:
        self.published = 0

    name = None

    def log_id(self) -> str:
        return "log"

    def publish(self, rows: Sequence[Row]) -> list[LogPlace]:
        first, self.published = self.published, self.published + len(rows)
        return [LogPlace(1, first + number, False) for number in range(len(rows))]


class WithTables:
    """The job on Delta tables. The targets are written to the tables at once, as if they had been sent long ago, and
    the job loads them."""

    def __init__(self, case: str, count: int, root: Path) -> None:
        self.pure, self.root = Pure(case, 1), root
        self.case, self.count = case, count

    def _insert(self, table: tables.FieldTable, rows: Sequence[dict[str, object]]) -> None:
        write_deltalake(tables.uri_of(self.root, table.name), arrow_of(rows, table), mode="append")

    def begin(self) -> None:
        subprocess.run([sys.executable, __file__, "--fill", self.case, str(self.count), str(self.root)], check=True)
        self.ids = [f"device-{number:07}" for number in range(self.count)]
        self.chance, self.now_us, self._offset = random.Random(1), START_US + 100 * SECOND, 1
        began = time.perf_counter()
        self.job = ActionJob(
            DeltalakeStore(self.root), PretendedLog(), clock_us=lambda: self.now_us, pace=Pace(device_state_s=0)
        )
        self.job.turn()
        print(f"  (from the start to the end of the first turn: {time.perf_counter() - began:.1f} s)", flush=True)
        self._turn()

    def _turn(self) -> None:
        self.now_us += SECOND
        self.job.turn()

    def _report(self, ids: Sequence[str], state: str) -> None:
        rows = []
        for id_ in ids:
            self._offset += 1
            place = {"log_id": "log", "partition": 5, "offset": self._offset, "epoch": 1}
            said = {"source": "status", "action_id": "a1", "device_id": id_, "attempt": 1, "state": state}
            times = {"at": self.now_us, "recorded_at": self.now_us, "boot": "b", "seq": self._offset}
            rows.append({**place, **said, **times, "event_id": f"log/5/{self._offset}/1"})
        self._insert(tables.ACTION_EVENTS, rows)

    def round(self) -> Cost:
        if self.case == "reports":
            self._report(self.chance.sample(self.ids, _REPORTING), "IN_PROGRESS")
        if self.case == "everyone":
            self._report(self.ids, "IN_PROGRESS")
        if self.case == "devices":
            table = DeltaTable(tables.uri_of(self.root, "devices"))
            ids = ", ".join(f"'{id_}'" for id_ in self.ids[:_CHANGED])
            table.update({"updated_by": f"'{self.now_us}'"}, predicate=f"device_id IN ({ids})")
        return timed(self._turn)


def fill(case: str, count: int, root: Path) -> None:
    """Makes the tables of a case, in a process of its own: what it needs does not count as memory of the engine."""
    world = Pure(case, count)
    world.begin()
    tables.create_by_path(root)
    from actions.rows import states_table, targets_table

    def written(name: str, rows: object) -> None:
        write_deltalake(tables.uri_of(root, name), rows, mode="append")  # type: ignore[arg-type]

    for start in range(0, count, 100_000):
        some = [{"device_id": id_, "labels": {"site": "roof"}} for id_ in world.ids[start : start + 100_000]]
        written("devices", arrow_of(some, tables.DEVICES))
        found = list(world.state.targets["a1"].values())[start : start + 100_000]
        written("action_targets", targets_table(replace(one, updated_us=START_US) for one in found))
    action, rollout = world.actions[0], world.actions[0].rollout
    row = {"action_id": "a1", "name": "echo", "percentage": 100.0, "created_at": START_US, "waves": rollout.waves}
    row |= {"rate_per_minute": rollout.rate_per_minute, "max_in_flight": rollout.max_in_flight}
    row |= {"maintenance_window": rollout.maintenance_window}
    written("actions", arrow_of([row], tables.ACTIONS))
    from actions.rows import action_of
    from sinks.rows import rows_of

    (stored,) = rows_of(DeltaTable(tables.uri_of(root, "actions")).to_pyarrow_table())
    digest = action_of(stored, commit_version=0).digest
    assert action.action_id == "a1"
    written("action_state", states_table([replace(world.state.actions["a1"], digest=digest)]))


def measured(case: str, count: int, rounds: int, with_tables: bool, folder: Path | None) -> None:
    root = Path(tempfile.mkdtemp(prefix="ticks-", dir=folder)) / "tables"
    world = WithTables(case, count, root) if with_tables else Pure(case, count)
    try:
        world.begin()
        costs = [world.round() for _ in range(rounds)]
    finally:
        shutil.rmtree(root.parent)
    wall_s, cpu_s = (statistics.median(getattr(cost, name) for cost in costs) for name in ("wall_s", "cpu_s"))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    worst_s = max(cost.wall_s for cost in costs)
    print(
        f"{case:10} {count:9} {wall_s:8.3f} {cpu_s:8.3f} {worst_s:8.3f} {resident_mib():8.0f} {peak_mib:8.0f}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default=",".join(CASES), help="cases, separated by commas")
    parser.add_argument("--tables", action="store_true", help="a whole turn of the job, on real tables")
    parser.add_argument("--dir", type=Path, help="folder for the tables (default: a temporary one)")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--fill", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        fill(options.fill[0], int(options.fill[1]), Path(options.fill[2]))
        return 0
    if options.one:
        measured(options.one, options.devices, options.rounds, options.tables, options.dir)
        return 0
    print(f"{'case':10} {'targets':>9} {'median s':>8} {'cpu s':>8} {'worst s':>8} {'MiB':>8} {'peak MiB':>8}")
    for case in options.only.split(","):
        count = min(options.devices, _ALL_AT_ONCE) if case == "everyone" else options.devices
        command = [sys.executable, __file__, "--one", case, "--devices", str(count), "--rounds", str(options.rounds)]
        command += ["--tables"] if options.tables else []
        command += ["--dir", str(options.dir)] if options.dir else []
        subprocess.run(command, check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
