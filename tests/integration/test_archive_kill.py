"""Kill -9 of an engine while it moves old events, targets and requests: at the end each row is there once."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from support.engine_world import SECOND, EngineWorld

from sinks import tables

ACTIONS, EVENTS_EACH, TARGETS_EACH, KILLS = 20, 6, 22, 8
DAY = 24 * 3600 * SECOND
KEYS = {
    "action_events": ("event_id",),
    "action_targets": ("action_id", "device_id"),
    "action_requests": ("action_id", "request_id"),
}

ENGINE = """
import sys
from actions import archive, archive_ended
from actions.store import DeltalakeStore
archive.PART_ROWS, archive_ended.ACTIONS_MAX, archive_ended.REQUESTS_MAX = 10, 3, 3
store = DeltalakeStore(sys.argv[1])
store.claim()
while store.archive(int(sys.argv[2])):
    print("a part", flush=True)
"""


def filled(root: Path) -> EngineWorld:
    """Events, targets for two parts and a bit, and a handled request for each action."""
    world = EngineWorld(root)
    at, names = world.now_us, [f"a{number}" for number in range(ACTIONS)]
    row = {"source": "status", "device_id": "d1", "state": "ACCEPTED", "attempt": 1, "log_id": "log", "partition": 1}
    events = []
    for number in range(ACTIONS * EVENTS_EACH):
        times = {"at": at + number, "recorded_at": at + number}
        events.append(
            {"event_id": f"e{number}", "action_id": names[number % ACTIONS], "offset": number, **row, **times}
        )
    world.insert(tables.ACTION_EVENTS, *events)
    state = {"phase": "ENDED", "ended_at": at, "targets": TARGETS_EACH, "requests_done": ["r"]}
    world.insert(tables.ACTION_STATE, *({"action_id": id_, **state} for id_ in names))
    target = {"attempt": 1, "state": "SUCCEEDED", "updated_at": at}
    ids = [(id_, f"d{number}") for id_ in names for number in range(TARGETS_EACH)]
    world.insert(tables.ACTION_TARGETS, *({"action_id": id_, "device_id": device, **target} for id_, device in ids))
    asked = {"request_id": "r", "kind": "pause", "by": "ann", "at": at}
    world.insert(tables.ACTION_REQUESTS, *({"action_id": id_, **asked} for id_ in names))
    return world


def keys(world: EngineWorld, name: str, key: tuple[str, ...]) -> Counter[tuple[str, ...]]:
    return Counter(tuple(row[column] for column in key) for row in world.rows(name))


def test_an_engine_killed_at_random_moments_moves_each_row_once(tmp_path: Path) -> None:
    world = filled(tmp_path)
    before = {name: keys(world, name, key) for name, key in KEYS.items()}
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    command = [sys.executable, "-c", ENGINE, str(tmp_path), str(world.now_us + 10 * DAY)]
    moved = []
    for _ in range(KILLS):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            parts = moments.randint(1, 3)
            while parts and process.stdout.readline() == b"a part\n":
                parts -= 1
            # Which step of the next parts the kill meets is random.
            time.sleep(moments.uniform(0, 0.05))
            process.kill()
        for name, key in KEYS.items():
            both = keys(world, name, key) | keys(world, f"{name}_archive", key)
            assert both == before[name], f"seed {seed}: a row of {name} is lost or doubled"
        moved.append(sum(len(world.rows(f"{name}_archive")) for name in KEYS))
    total = sum(map(len, before.values()))
    assert 0 < moved[0] <= moved[-1] < total, f"seed {seed}: the kills came during the move"
    assert subprocess.run(command, stdout=subprocess.PIPE, timeout=240, check=False).returncode == 0
    for name, key in KEYS.items():
        found = keys(world, f"{name}_archive", key)
        assert (found, world.rows(name)) == (before[name], []), f"seed {seed}: {name}"
