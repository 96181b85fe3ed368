"""A killed process: whatever was acknowledged is in the log once, at its offset, with its bytes (invariants I1, I3).

Sessions come back with it: they may be given a record again, and skip none. What they were given before the kill is in
the log after it (I2).
"""

from __future__ import annotations

import random

from support.crash_cycles import CrashCycles
from support.load_records import Recipe, publishers
from support.log_check import LogCheck
from support.mqtt_witness import witnesses


def test_acked_record_survives_kill_9(tmp_path, broker_on, seed, cycles, note):
    recipe, sources = Recipe(seed), publishers(8)
    broker = broker_on(tmp_path / "data", {"log.segment_bytes": "2MiB"})
    check = LogCheck(recipe, sources)
    runs = CrashCycles(
        broker,
        check,
        recipe,
        sources,
        crash=lambda _: broker.kill(),
        moments=random.Random(seed),
        witnesses=witnesses(),
    )
    try:
        broker.start()
        for number in range(cycles):
            runs.run(number)
        runs.finish()
    finally:
        note(check.report)
    assert check.report.clean, check.report.details()
    assert check.report.acked >= cycles, check.report.details()
