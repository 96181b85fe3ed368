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

ACTIONS, EVENTS_EACH, KILLS = 20, 30, 6
DAY = 24 * 3600 * SECOND
LIVE, OLD = "action_events", "action_events_archive"

ENGINE = """
import sys
from actions import archive
from actions.store import DeltalakeStore
archive.PART_ROWS = 10
store = DeltalakeStore(sys.argv[1])
store.claim()
while store.archive(int(sys.argv[2])):
    print("a part", flush=True)
"""


def test_an_engine_killed_at_random_moments_moves_each_event_once(tmp_path: Path) -> None:
    world = EngineWorld(tmp_path)
    row = {"source": "status", "device_id": "d1", "state": "ACCEPTED", "attempt": 1, "log_id": "log", "partition": 1}
    rows = []
    for number in range(ACTIONS * EVENTS_EACH):
        at = {"at": world.now_us + number, "recorded_at": world.now_us + number}
        rows.append({"event_id": f"e{number}", "action_id": f"a{number % ACTIONS}", "offset": number, **row, **at})
    world.insert(tables.ACTION_EVENTS, *rows)
    before_us = world.now_us + 10 * DAY
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    command = [sys.executable, "-c", ENGINE, str(tmp_path), str(before_us)]
    moved = []
    for _ in range(KILLS):
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(moments.randint(1, 3)):
                assert process.stdout.readline() == b"a part\n", f"seed {seed}"
            # Which step of the next parts the kill meets is random.
            time.sleep(moments.uniform(0, 0.2))
            process.kill()
        live, old = ({one["event_id"] for one in world.rows(name)} for name in (LIVE, OLD))
        assert len(live | old) == len(rows), f"seed {seed}: an event is lost"
        moved.append(len(old))
    assert 0 < moved[0] <= moved[-1] < len(rows), f"seed {seed}: the kills came during the move"
    assert subprocess.run(command, stdout=subprocess.PIPE, timeout=240, check=False).returncode == 0
    found = Counter(one["event_id"] for one in world.rows(OLD))
    assert (len(found), set(found.values()), world.rows(LIVE)) == (len(rows), {1}, []), f"seed {seed}"
