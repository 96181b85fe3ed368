"""The table `devices` is read by its changes, and what is read is what the whole table says."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake
from support.engine_world import EngineWorld

from actions import device_table
from actions.device_table import ReadDevices
from actions.rows import devices_of
from sinks import tables
from sinks.rows import arrow_of, rows_of
from sinks.table_query import Take, queried, streamed


class Reading:
    """Reads the table again and again, and notes the questions."""

    def __init__(self, root: Path) -> None:
        self.world, self.read, self.asked = EngineWorld(root), ReadDevices(), list[str]()

    def rows(self, sql: str) -> list[dict[str, Any]]:
        self.asked.append(sql)
        return list(rows_of(queried({"devices": self.world.table("devices")}, sql)))

    def streamed(self, sql: str, take: Take[None]) -> None:
        self.asked.append(sql)
        streamed({"devices": self.world.table("devices")}, sql, take)

    def kept_tenants(self, ids: Collection[str]) -> Mapping[str, str]:
        return {}

    def first_tenants(self, ids: Collection[str]) -> Mapping[str, str]:
        return {}

    def look(self):  # type: ignore[no-untyped-def]
        self.asked.clear()
        return self.read.changed(self.world.table("devices"), self)

    def whole(self):  # type: ignore[no-untyped-def]
        return devices_of(rows_of(queried({"devices": self.world.table("devices")}, "SELECT * FROM devices")))


@pytest.fixture
def reading(tmp_path: Path) -> Reading:
    found = Reading(tmp_path / "tables")
    found.world.devices(*(f"d{number:03}" for number in range(100)))
    return found


def test_a_change_of_ten_rows_reads_ten_rows_and_keeps_the_other_objects(reading: Reading) -> None:
    before = reading.look()
    assert reading.look() is None
    reading.world.table("devices").update({"time_zone": "'Europe/Berlin'"}, predicate="device_id < 'd010'")
    after = reading.look()
    assert after == reading.whole()
    assert [sql for sql in reading.asked if "WHERE device_id IN" not in sql] == []
    assert {id_ for id_ in after if after[id_] is not before[id_]} == {f"d{number:03}" for number in range(10)}
    assert before["d001"].time_zone is None, "the mapping that was given out stays as it was"


def test_the_whole_table_is_read_in_batches_and_only_repeated_devices_as_rows(reading: Reading) -> None:
    """The rows of a million devices as dictionaries take a gigabyte."""
    reading.look()
    assert [sql for sql in reading.asked if "*" in sql] == []
    for log, at in (("b", 2), ("a", 1), ("c", 3)):
        reading.world.insert(tables.DEVICES, {"device_id": "e1", "log": log, "created_at": at})
    again = Reading.__new__(Reading)
    again.world, again.read, again.asked = reading.world, ReadDevices(), []
    assert again.look() == reading.whole()
    assert [sql for sql in again.asked if "*" in sql] == ["SELECT * FROM devices WHERE device_id IN ('e1')"]


def test_devices_that_are_read_early_are_still_news(reading: Reading) -> None:
    reading.read.read(reading.world.table("devices"), reading)
    found = reading.look()
    assert found == reading.whole()
    assert reading.look() is None
    assert reading.read.same_id("".join(("d0", "01"))) is found["d001"].device_id
    assert reading.read.same_id("unknown") == "unknown"


def test_a_read_that_begins_again_counts_nothing_twice(reading: Reading) -> None:
    """As after the first batch of a table in which later bytes are no text."""
    reading.world.insert(tables.DEVICES, {"device_id": "e1", "retired_at": 1})

    class Twice(Reading):
        def streamed(self, sql: str, take: Take[None]) -> None:
            super().streamed(sql, take)
            super().streamed(sql, take)

    reading.__class__ = Twice
    found = reading.look()
    assert (found, found.retired) == (reading.whole(), frozenset({"e1"}))
    assert [sql for sql in reading.asked if "*" in sql] == []


def test_compaction_is_no_change(reading: Reading) -> None:
    reading.world.devices("e1")
    reading.look()
    reading.world.table("devices").optimize.compact()
    assert reading.look() is None
    assert reading.asked == []


def test_a_device_leaves_by_a_delete_by_a_retirement_and_by_an_overwrite(reading: Reading) -> None:
    reading.look()
    reading.world.table("devices").delete("device_id = 'd001'")
    reading.world.table("devices").update({"retired_at": "created_at"}, predicate="device_id = 'd002'")
    reading.world.table("devices").update(
        {"retired_at": "to_timestamp_micros(1000000)"}, predicate="device_id = 'd003'"
    )
    found = reading.look()
    assert (found, found.retired) == (reading.whole(), reading.whole().retired)
    assert {"d001", "d003"}.isdisjoint(found)
    uri = tables.uri_of(reading.world.root, "devices")
    write_deltalake(uri, arrow_of([{"device_id": "d005"}], tables.DEVICES), mode="overwrite")
    assert list(reading.look()) == ["d005"]


def test_of_two_rows_with_one_id_the_other_one_counts_when_the_first_is_deleted(reading: Reading) -> None:
    first, second = ({"device_id": "e1", "log": log, "created_at": at} for log, at in (("a", 1), ("b", 2)))
    reading.world.insert(tables.DEVICES, first)
    reading.world.insert(tables.DEVICES, second)
    assert reading.look()["e1"].log == "a"
    reading.world.table("devices").delete("device_id = 'e1' AND log = 'a'")
    assert reading.look()["e1"].log == "b"


def test_without_a_history_the_whole_table_is_read(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    before = reading.look()
    reading.world.devices("e1")
    monkeypatch.setattr(device_table, "_changed_ids", lambda *_: None)
    after = reading.look()
    assert after == reading.whole()
    assert all(after[id_] is device for id_, device in before.items())


@pytest.mark.parametrize("seed", range(3))
def test_any_changes_read_what_the_whole_table_says(reading: Reading, seed: int) -> None:
    chance, ids = random.Random(seed), [f"d{number:03}" for number in range(8)]
    for _ in range(15):
        table, id_ = DeltaTable(tables.uri_of(reading.world.root, "devices")), chance.choice(ids)
        match chance.randint(0, 3):
            case 0:
                reading.world.insert(tables.DEVICES, {"device_id": id_, "created_at": chance.randint(0, 9)})
            case 1:
                table.delete(f"device_id = '{id_}'")
            case 2:
                table.update({"log": f"'{chance.randint(0, 9)}'"}, predicate=f"device_id = '{id_}'")
            case _:
                table.optimize.compact()
        if chance.random() < 0.6:
            found = reading.look()
            assert found is None or (found, found.retired) == (reading.whole(), reading.whole().retired)
            assert found is not None or reading.read._devices == reading.whole()


def test_devices_with_the_same_labels_share_them(reading: Reading) -> None:
    for id_, site in (("e1", "roof"), ("e2", "roof"), ("e3", "yard")):
        reading.world.insert(tables.DEVICES, {"device_id": id_, "labels": {"site": site}})
    found = reading.look()
    assert found["e1"].labels is found["e2"].labels
    assert (found["e1"].labels, found["e3"].labels) == ({"site": "roof"}, {"site": "yard"})
