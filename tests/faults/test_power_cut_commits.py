"""A power cut under tables that deltalake writes: it writes data files and their commit in one call, and syncs neither.

The repair at the start of a job (`sinks.torn_commits`) makes such a table complete again. What a job has synced stays.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from broker_edge.sync import sync_file, sync_file_system, sync_folders
from broker_edge.torture.loop_image import LoopImage
from sinks.torn_commits import repair_table

pytestmark = pytest.mark.usefixtures("machine_starts_again")
CUTS = int(os.environ.get("HEADWATER_POWER_CUTS", "2")) * 5
STEPS = 6
Rows = dict[int, int]


@pytest.fixture
def image(loop_image: Callable[[int], LoopImage]) -> LoopImage:
    return loop_image(24)


def append(table: Path, rows: Rows) -> None:
    write_deltalake(str(table), _arrow(rows), mode="append")


def merge(table: Path, rows: Rows) -> None:
    """As the action engine writes its state."""
    found = DeltaTable(str(table)).merge(_arrow(rows), "t.id = s.id", source_alias="s", target_alias="t")
    found.when_matched_update_all().when_not_matched_insert_all().execute()


def read(table: Path) -> Rows:
    return {row["id"]: row["n"] for row in DeltaTable(str(table)).to_pyarrow_table().to_pylist()}


def _arrow(rows: Rows) -> pa.Table:
    return pa.table({"id": pa.array(list(rows), pa.int64()), "n": pa.array(list(rows.values()), pa.int64())})


def test_a_commit_on_disk_without_its_data_file_is_taken_back(image: LoopImage) -> None:
    table = image.mount_point / "t"
    append(table, {0: 0})
    sync_file_system(table)
    append(table, {1: 1})
    # What a sync of another program may write first.
    commit = table / "_delta_log" / f"{1:020}.json"
    sync_file(commit)
    sync_folders(commit.parent, up_to=commit)
    image.cut_power()
    image.power_on()
    with pytest.raises((DeltaError, OSError, pa.ArrowException)):  # The control: without the repair nobody can read it.
        read(table)
    assert repair_table(str(table)) == 1
    assert read(table) == {0: 0}
    append(table, {1: 1})
    assert read(table) == {0: 0, 1: 1}


def test_after_any_cut_a_table_has_all_that_was_synced_and_is_complete(image: LoopImage) -> None:
    torn = 0
    for seed in range(CUTS):
        moments = random.Random(seed)
        table = image.mount_point / f"t{seed}"
        append(table, {0: -1})
        sync_file_system(table)
        states, synced = [{0: -1}], 0
        for step in range(STEPS):
            rows = {moments.randrange(8): step, 8 + step: step}
            if moments.random() < 0.5:
                merge(table, rows)
                states.append(states[-1] | rows)
            else:
                append(table, {100 + step: step})
                states.append(states[-1] | {100 + step: step})
            if moments.random() < 0.3:
                sync_file_system(table)
                synced = len(states) - 1
        # As the system may do at any time: some files and, with the first of them, the names of all files.
        for path in sorted(path for path in table.rglob("*") if path.is_file()):
            if moments.random() < 0.5:
                sync_file(path)
        image.write_some_back(moments, share=0.7)
        image.cut_power()
        image.power_on()
        torn += repair_table(str(table))
        assert read(table) in states[synced:], f"seed {seed}"
    assert torn, "no cut has torn a commit, so this test shows nothing"
