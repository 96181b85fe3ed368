"""Measures the turn of the engine with one late report about an action that has ended, against a complete load.

    python tests/bench/late_report.py [TARGETS]

Prints JSON: for both the rows of `action_targets` that were converted, and the milliseconds of the turn.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.engine_world import EngineWorld

from actions.engine import ActionPhase, ActionState, Target, TargetState
from actions.job import ActionJob
from actions.rows import states_table, targets_table
from actions.store import DeltalakeStore
from actions.table_reader import TableReader
from actions.table_store import Loaded

COUNT = [0]


def filled(root: Path, targets: int) -> EngineWorld:
    """`a1` has ended with all of its devices timed out."""
    world = EngineWorld(root)
    now_us = world.now_us
    ids = [f"device-{number:06}" for number in range(targets)]
    rows = [Target("a1", "default", id_, TargetState.TIMED_OUT, now_us, now_us, now_us, log_id="log") for id_ in ids]
    counts = {"TIMED_OUT": targets}
    state = ActionState("a1", "default", ActionPhase.ENDED, "x", targets, 0, counts, "", now_us, now_us, now_us)
    world.action("a1")
    world.table("action_targets").merge(targets_table(rows), "false", "s", "t").when_not_matched_insert_all().execute()
    world.table("action_state").merge(states_table([state]), "false", "s", "t").when_not_matched_insert_all().execute()
    return world


def measured(job: ActionJob, world: EngineWorld, device_id: str) -> dict[str, Any]:
    world.passes(7200)
    job.turn()
    assert not job.state.actions, "the engine has forgotten it"
    world.status(device_id, "SUCCEEDED")
    COUNT[0], start = 0, time.perf_counter()
    job.turn()
    return {"rows": COUNT[0], "ms": round(1000 * (time.perf_counter() - start))}


def main(targets: int = 100_000) -> None:
    read = TableReader.values

    def counted(reader: TableReader, name: str, *arguments: Any, **named: Any) -> list[Any]:
        found = read(reader, name, *arguments, **named)
        COUNT[0] += len(found)
        return found

    TableReader.values = counted  # type: ignore[method-assign]
    with TemporaryDirectory() as folder:
        world = filled(Path(folder), targets)
        job = world.job()
        job.turn()
        some = [measured(job, world, f"device-{number:06}") for number in (7, 8, 9)]
        late, DeltalakeStore.load_late = DeltalakeStore.load_late, lambda *_: Loaded((), (), (), frozenset())  # type: ignore[method-assign]
        all_ = [measured(job, world, f"device-{number:06}") for number in (17, 18, 19)]
        DeltalakeStore.load_late = late  # type: ignore[method-assign]
        print(json.dumps({"targets": targets, "lookup": some, "complete load": all_}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
