"""A commit of a few rows is small, keeps the statistics that its table names, and reads the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sinks.few_rows import FEW, writer_properties
from sinks.rows import arrow_of
from sinks.tables import ACTION_EVENTS

NAMED = {"delta.dataSkippingStatsColumns": "action_id,`partition`"}
BARE = {"delta.dataSkippingNumIndexedCols": "0"}


def rows(count: int) -> pa.Table:
    """As the status job writes them."""
    return arrow_of(
        [
            {
                "event_id": f"0b7f2c1e-1111-4222-8333-444455556666/{number % 8}/{number}",
                "source": "status",
                "action_id": "a1",
                "device_id": f"device-{number:06}",
                "attempt": 1,
                "state": "IN_PROGRESS",
                "progress": number % 100,
                "message": f"{number % 100} percent are written",
                "log_id": "0b7f2c1e-1111-4222-8333-444455556666",
                "partition": number % 8,
                "offset": number,
                "recorded_at": 1_800_000_000_000_000 + number,
            }
            for number in range(count)
        ],
        ACTION_EVENTS,
    )


def appended(path: Path, settings: Mapping[str, str | None], count: int, *, is_usual: bool = False) -> DeltaTable:
    table = DeltaTable.create(str(path), schema=ACTION_EVENTS.arrow_schema(), configuration=settings)
    how = None if is_usual else writer_properties(table, rows(count))
    write_deltalake(table, rows(count), mode="append", writer_properties=how)
    return table


def size_of(table: DeltaTable) -> int:
    return sum(Path(uri.removeprefix("file://")).stat().st_size for uri in table.file_uris())


@pytest.mark.parametrize("settings", [NAMED, BARE, {}], ids=["named", "bare", "all"])
def test_a_file_of_few_rows_is_smaller_and_reads_the_same(tmp_path: Path, settings: Mapping[str, str | None]) -> None:
    small, usual = appended(tmp_path / "s", settings, 20), appended(tmp_path / "u", settings, 20, is_usual=True)
    assert size_of(small) < 0.8 * size_of(usual)
    assert small.to_pyarrow_table() == usual.to_pyarrow_table()
    assert small.to_pyarrow_table().num_rows == 20


def test_the_columns_that_the_table_names_keep_their_statistics(tmp_path: Path) -> None:
    (found,) = pa.table(appended(tmp_path, NAMED, 20).get_add_actions(flatten=True)).to_pylist()
    assert (found["min.action_id"], found["max.action_id"]) == ("a1", "a1")
    assert (found["min.partition"], found["max.partition"]) == (0, 7)
    assert found.get("min.device_id") is None


def test_a_file_of_many_rows_is_written_as_usual(tmp_path: Path) -> None:
    table = appended(tmp_path / "many", NAMED, 20)
    assert writer_properties(table, rows(FEW + 1)) is None
    bare = appended(tmp_path / "bare", BARE, 20)
    assert writer_properties(bare, rows(FEW + 1)) is not None, "nobody reads a part of it"
