"""Measures what the engine writes for a rollout of eight hours, against the size of its rows.

    python tests/bench/engine_bytes.py [DEVICES] [COMMITS]

The real store writes to a folder of its own, by a clock that is moved. Each device has nine steps (owed, queued,
delivered, accepted, begun, three times progress, succeeded), each commit has the devices that made a step in its share
of the eight hours, and each step but the first two is a report, which a commit of `action_events` has. Prints JSON:
`written` (by table: data, change data and log, in bytes), `rows` (by table: its rows at the end, written once), the
ratio of their sums, and that of `action_events` left out.

`action_events` is appended to in parts of 200 commits that are put together, because this writer reads the list of all
files before each append, for hours in the end. The service that appends in production does not.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from deltalake import DeltaTable, write_deltalake

from actions.engine import ActionPhase, ActionState, Decision, DeviceState, Target, TargetState
from actions.store import DeltalakeStore
from actions.table_store import Versions
from sinks import tables
from sinks.few_rows import writer_properties
from sinks.rows import arrow_of

START_US = 1_800_000_000_000_000
ROLLOUT_S = 8 * 3600
LOG = "0b7f2c1e-1111-4222-8333-444455556666"
STEPS = ("owed", "QUEUED", "DELIVERED", "ACCEPTED", "IN_PROGRESS", "25", "50", "75", "SUCCEEDED")
PART_COMMITS = 200
CHECKPOINT_COMMITS = 1000
"""As `delta.checkpointInterval` of the table says."""
MEASURED = ("action_targets", "action_state", "action_journal", "device_state", "action_events")


def boot_of(number: int) -> str:
    return f"{random.Random(number).getrandbits(64):016x}"


def changed(target: Target, step: str, number: int, now_us: int) -> Target:
    told = {"since_us": now_us, "updated_us": now_us}
    if step == "owed":
        return replace(target, outbox="command", sent_us=now_us, **told)
    if step == "QUEUED":
        place = {"log_id": LOG, "partition": number % 8, "offset": 3 * number}
        return replace(target, state=TargetState.QUEUED, outbox=None, queued_us=now_us, **place, **told)
    report = {"boot": boot_of(number), "seq": number, "report_log_id": LOG, "report_partition": number % 8}
    told |= {**report, "report_offset": 9 * number}
    if step.isdigit():
        return replace(target, progress=int(step), message=f"{step} percent are written", **told)
    finished_us = now_us if step == "SUCCEEDED" else None
    return replace(target, state=TargetState(step), finished_us=finished_us, **told)


def event(number: int, step: str, position: int, now_us: int) -> dict[str, object]:
    """The row that the status job writes for a report."""
    return {
        "event_id": f"{LOG}/{number % 8}/{position}",
        "source": "status",
        "action_id": "a1",
        "device_id": f"device-{number:06}",
        "attempt": 1,
        "state": "IN_PROGRESS" if step.isdigit() else step,
        "boot": boot_of(number),
        "seq": position,
        "progress": int(step) if step.isdigit() else None,
        "message": f"{step} percent are written" if step.isdigit() else None,
        "version": "1.0.0",
        "log_id": LOG,
        "partition": number % 8,
        "offset": position,
        "epoch": 1,
        # No two devices report in the same microsecond.
        "device_time": now_us - 1_000_000 + position * 7_919 % 999_983,
        "at": now_us - position * 104_729 % 999_979,
        "recorded_at": now_us,
    }


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


class Events:
    """The table `action_events`: files, commits and checkpoints as if each append had gone to it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.version = folder, 0
        self.part: DeltaTable | None = None
        self.part_folder = folder.with_name("events-part")
        self.empty = folder.with_name("events-empty")
        shutil.copytree(folder, self.empty)

    def append(self, rows: list[dict[str, object]]) -> None:
        values = arrow_of(rows, tables.ACTION_EVENTS)
        if self.part is None:
            shutil.copytree(self.empty, self.part_folder)
            self.part = DeltaTable(self.part_folder)
        properties = writer_properties(self.part, values)
        write_deltalake(self.part, values, mode="append", writer_properties=properties)
        if self.part.version() == PART_COMMITS:
            self.put_together()

    def put_together(self) -> None:
        """Moves the files and commits of the part to the table."""
        if self.part is None:
            return
        for commit in range(1, self.part.version() + 1):
            name = Path("_delta_log") / f"{commit:020}.json"
            (self.part_folder / name).rename(self.folder / "_delta_log" / f"{self.version + commit:020}.json")
        for file in self.part_folder.glob("*.parquet"):
            file.rename(self.folder / file.name)
        shutil.rmtree(self.part_folder)
        before, self.version, self.part = self.version, self.version + self.part.version(), None
        if self.version // CHECKPOINT_COMMITS > before // CHECKPOINT_COMMITS:
            DeltaTable(self.folder).create_checkpoint()


class Rollout:
    """The state of an engine in the eight hours."""

    def __init__(self, root: Path, devices: int) -> None:
        self.root, self.now_us = root, START_US
        tables.create_by_path(root)
        self.store = DeltalakeStore(root, steady_s=lambda: self.now_us / 1e6)
        self.store.claim()
        first = {"created_us": START_US, "since_us": START_US, "updated_us": START_US}
        self.targets = [Target("a1", "default", f"device-{n:06}", TargetState.PENDING, **first) for n in range(devices)]
        self.counts = Counter({"PENDING": devices})
        self.facts: dict[str, DeviceState] = {}
        self.events = Events(root / "action_events")
        self.reports = 0
        decision = Decision(target_updates=tuple(self.targets), state_updates=(self.state(),))
        self.store.commit(decision, Versions(), new=frozenset({"a1"}))

    def state(self) -> ActionState:
        return ActionState(
            action_id="a1",
            tenant="default",
            phase=ActionPhase.ENDED if self.counts["SUCCEEDED"] == len(self.targets) else ActionPhase.RUNNING,
            digest="0" * 32,
            targets=len(self.targets),
            open=len(self.targets) - self.counts["SUCCEEDED"],
            counts={state: number for state, number in self.counts.items() if number},
            message="",
            started_us=START_US,
            ended_us=None,
            updated_us=self.now_us,
        )

    def turn(self, changes: dict[int, list[str]]) -> None:
        """The commit of the status job, and that of the engine."""
        rows = []
        for number, steps in changes.items():
            before = self.targets[number]
            for step in steps:
                now_us = self.now_us - number * 15_485_863 % 999_961
                self.targets[number] = changed(self.targets[number], step, number, now_us)
                if step not in STEPS[:2]:
                    self.reports += 1
                    rows.append(event(number, step, self.reports, self.now_us))
                    id_ = before.device_id
                    self.facts[id_] = DeviceState(
                        id_, "default", self.now_us, LOG, number % 8, self.reports, boot_of(number), "1.0.0"
                    )
            self.counts.subtract([before.state.value])
            self.counts.update([self.targets[number].state.value])
        if rows:
            self.events.append(rows)
        facts = tuple(self.facts.values())
        self.facts.clear()
        updates = tuple(self.targets[number] for number in changes)
        decision = Decision(target_updates=updates, state_updates=(self.state(),), device_updates=facts)
        self.store.commit(decision, Versions(reports=self.reports))
        self.store.settle()


def measured(root: Path, devices: int, commits: int) -> dict[str, object]:
    rollout = Rollout(root / "tables", devices)
    took_s = []
    for count, changes in enumerate(steps_of(devices, commits, seed=1)):
        rollout.now_us = START_US + ROLLOUT_S * 1_000_000 * count // commits
        if changes:
            began = time.perf_counter()
            rollout.turn(changes)
            took_s.append(time.perf_counter() - began)
            if len(took_s) % 1000 == 0:
                print(f"{len(took_s)} of {commits} commits", file=sys.stderr)
    rollout.store.settle(now=True)
    rollout.events.put_together()
    written, rows = {}, {}
    for name in MEASURED:
        folder = root / "tables" / name
        written[name] = size_of(folder)
        write_deltalake(root / "rows" / name, DeltaTable(folder).to_pyarrow_table())
        rows[name] = size_of(root / "rows" / name)
    without = {name: sum(part.values()) - part["action_events"] for name, part in (("w", written), ("r", rows))}
    return {
        "commits": len(took_s),
        "written": written,
        "rows": rows,
        "ratio": round(sum(written.values()) / sum(rows.values()), 1),
        "ratio_without_events": round(without["w"] / without["r"], 1),
        "turn_ms": round(1e3 * sorted(took_s)[len(took_s) // 2], 1),
    }


def main() -> None:
    given = [int(word) for word in sys.argv[1:3]]
    devices, commits = [*given, *(10_000, 60)[len(given) :]]
    with TemporaryDirectory(prefix="headwater-bytes-") as folder:
        print(json.dumps({"devices": devices, **measured(Path(folder), devices, commits)}))


if __name__ == "__main__":
    main()
