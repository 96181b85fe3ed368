"""What a person's command holds of one table is bounded: few bytes of Parquet may stand for millions of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from actions.inventory import Inventory
from actions.inventory_values import Selection
from actions.selectors import Selectors
from broker_edge.errors import TableStoreError
from sinks import table_query, tables
from sinks.rows import arrow_of
from sinks.table_query import valid_texts
from sinks.tables import DEVICE_STATE, DEVICES, SELECTORS, FieldTable

from .test_inventory import World

ROWS = 40


@pytest.fixture
def world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> World:
    return World(tmp_path, capsys)


def fill(world: World, table: FieldTable, rows: int = ROWS) -> None:
    # Backwards, so that a file does not have them in the order of the answer.
    world.insert(table, *({"device_id": f"pump-{number:03}", "tenant": "default"} for number in reversed(range(rows))))


def batches(read: list[int], *, each: int, text: str = "x") -> pa.RecordBatchReader:
    """An endless table. `read` gets the number of each batch."""
    schema = pa.schema([("device_id", pa.string_view())])

    def made() -> Iterator[pa.RecordBatch]:
        while True:
            read.append(len(read))
            yield pa.record_batch({"device_id": pa.array([text] * each, pa.string_view())})

    return pa.RecordBatchReader.from_batches(schema, made())


def test_a_table_with_too_many_rows_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_query, "ROWS_MAX", 1_000)
    read: list[int] = []
    with pytest.raises(TableStoreError, match="the table devices has more than 1,000 rows or 512 MiB"):
        table_query.held(batches(read, each=100), "devices")
    assert len(read) == 11


def test_a_table_with_too_many_bytes_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_query, "BYTES_MAX", 1 << 20)
    read: list[int] = []
    with pytest.raises(TableStoreError, match="the table devices has more than 1,000,000 rows or 1 MiB"):
        table_query.held(batches(read, each=10, text="x" * 10_000), "devices")
    assert len(read) == 11


def test_batches_that_share_a_buffer_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_query, "BYTES_MAX", 4 << 20)
    whole = pa.record_batch({"groups": pa.array([["x" * 1_000]] * 2_000, pa.list_(pa.string_view()))})
    parts = [whole.slice(start, 100) for start in range(0, whole.num_rows, 100)]
    assert sum(part.nbytes for part in parts) > 4 << 20
    assert table_query.held(pa.RecordBatchReader.from_batches(whole.schema, parts), "devices").num_rows == 2_000


@pytest.mark.parametrize("table", [DEVICES, DEVICE_STATE], ids=lambda table: table.name)
@pytest.mark.parametrize("command", [("list",), ("list", "--json")])
def test_devices_list_says_which_table_has_too_many_rows(
    world: World, monkeypatch: pytest.MonkeyPatch, table: FieldTable, command: tuple[str, ...]
) -> None:
    fill(world, table)
    monkeypatch.setattr(table_query, "ROWS_MAX", ROWS - 1)
    code, out, err = world.run(*command)
    assert (code, out) == (5, "")
    assert err.count("\n") == 1
    assert f"the table {table.name} under {world.root} has more than {ROWS - 1} rows" in err
    assert "remove the rows that do not belong there" in err


def test_a_table_at_the_bound_is_listed_by_id(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world, DEVICES)
    monkeypatch.setattr(table_query, "ROWS_MAX", ROWS)
    listed = [row["device_id"] for row in world.asked("list")["devices"]]
    assert listed == [f"pump-{number:03}" for number in range(ROWS)]


def test_open_targets_of_a_device_are_shown_by_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world, DEVICES, 1)
    targets = [("a2", 5), ("a1", 9), ("a0", 5)]
    world.insert(
        tables.ACTION_TARGETS,
        *(
            {"action_id": id_, "device_id": "pump-000", "attempt": 1, "state": "PENDING", "created_at": at}
            for id_, at in targets
        ),
    )
    shown = world.asked("show", "pump-000")["targets"]
    assert [target["action_id"] for target in shown] == ["a0", "a2", "a1"]
    monkeypatch.setattr(table_query, "ROWS_MAX", 2)
    code, _, err = world.run("show", "pump-000")
    assert (code, "the table action_targets under" in err) == (5, True)


def test_a_change_of_a_table_with_too_many_rows_writes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(world, DEVICES)
    before = world.version()
    monkeypatch.setattr(table_query, "ROWS_MAX", ROWS - 1)
    with pytest.raises(TableStoreError, match="the table devices under"):
        Inventory(world.root).retire(Selection(ids=("pump-001",)))
    assert world.version() == before


def test_saved_selectors_are_bounded_and_the_newest_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    tables.create_by_path(world.root, tables=[SELECTORS])
    row = {"tenant": "default", "name": "roof", "created_by": "ann"}
    newest = row | {"created_at": 2, "device_ids": ["pump-2"]}
    world.insert(SELECTORS, newest, row | {"created_at": 1, "device_ids": ["pump-1"]})
    found = Selectors(world.root, tenant="default").all()
    assert [(one.name, one.saved_us) for one in found] == [("roof", 2)]
    monkeypatch.setattr(table_query, "ROWS_MAX", 1)
    with pytest.raises(TableStoreError, match="the table selectors under"):
        Selectors(world.root, tenant="default").all()


def test_rows_of_an_empty_table_are_none() -> None:
    empty = pa.RecordBatchReader.from_batches(arrow_of([], DEVICES).schema, iter(()))
    assert table_query.held(empty, "devices").num_rows == 0


def test_a_table_with_invalid_utf_8_is_copied_in_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*(f"pump-{number}".encode() for number in range(30_000)), b"pump-\xff"]
    rows = pa.table({"device_id": pa.array(names, pa.binary()).view(pa.string())})
    pq.write_table(rows, path := tmp_path / "by-spark.parquet")
    there = DeltaTable.create(str(tmp_path), rows.schema)
    add = AddAction(path.name, path.stat().st_size, {}, 0, True, f'{{"numRecords":{len(names)}}}')
    there.create_write_transaction([add], "append", there.schema())
    sizes: list[int] = []

    def counted(table: pa.Table) -> pa.Table:
        sizes.append(table.num_rows)
        return valid_texts(table)

    monkeypatch.setattr(table_query, "valid_texts", counted)
    found = table_query.bounded({"devices": DeltaTable(str(tmp_path))}, "SELECT * FROM devices", about="devices")
    assert sorted(found.column("device_id").to_pylist()) == sorted(name.decode(errors="replace") for name in names)
    assert (sum(sizes), max(sizes) <= 8_192) == (len(names), True)
