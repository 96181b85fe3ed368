"""The telemetry job and its broker, killed at named points under load: every acknowledged record is in bronze once
(I10).

Each kill costs a start of the job, so the usual run has two of them. HEADWATER_KILLS=all, which `make test-long` sets,
has every one. `tests/bench/exactly_once.py` does the same many times, and with Spark's native sink. Tests that need a
broker that waits on demand are in test_telemetry_job: one kills the job while its tasks read.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from support.bronze_check import BronzePlace, Content, Fault, LoggedRecords, compare
from support.exactly_once import Hurt, KillRun
from support.programs import headwaterd

from broker_edge.torture.load import LoadResult, Place, Published
from broker_edge.torture.records import Publisher, Recipe, chosen_seed, publishers

HURTS = tuple(Hurt) if os.environ.get("HEADWATER_KILLS") == "all" else (Hurt.COMMITTED, Hurt.BROKER)


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(chosen_seed())


@pytest.mark.timeout(1800)
def test_acknowledged_records_are_in_bronze_once_whatever_is_killed(recipe: Recipe, tmp_path: Path) -> None:
    headwaterd()
    with KillRun(tmp_path, writer="files", recipe=recipe) as run:
        for hurt in HURTS:
            run.hurt(hurt)
        assert run.finish() == {}, f"seed {recipe.seed}"
        assert run.acked > 0


def test_control_the_comparison_finds_each_fault(recipe: Recipe) -> None:
    """Negative control: effects that the kills must not have would be detected."""
    (publisher,) = publishers(1, protocols=(5,), control=False)
    result = told_places(recipe, publisher, count=4)
    records = {
        BronzePlace("log-a", 3, offset): Content(1, publisher.topic, recipe.payload(result.name(one, offset)))
        for one in result.connections
        for offset in one.acked
    }
    log = LoggedRecords("log-a", {"telemetry-0": 3}, records)
    rows = sorted(records.items())
    assert compare(rows, log, [result]) == {}
    place, content = rows[-1]
    assert compare(rows[:-1], log, [result]) == {Fault.MISSING: 1, Fault.UNREAD: 1}
    assert compare([*rows, rows[0]], log, [result]) == {Fault.DOUBLED: 1}
    assert compare([*rows, (replace(place, offset=9), content)], log, [result]) == {Fault.UNEXPECTED: 1}
    assert compare([*rows[:-1], (place, replace(content, epoch=2))], log, [result]) == {Fault.EPOCH: 1}
    # Different from the log, and from what was sent.
    assert compare([*rows[:-1], (place, replace(content, value=b"?"))], log, [result]) == {Fault.CHANGED: 2}


def told_places(recipe: Recipe, publisher: Publisher, *, count: int) -> LoadResult:
    """A load whose records were acknowledged at offsets equal to their sequence numbers."""
    acked: dict[int, Place | None] = {sequence: Place("telemetry-0", sequence) for sequence in range(count)}
    return LoadResult(1, recipe, (Published(publisher, sent=count, acked=acked),))
