"""Bronze's files without Spark: what a task writes, what a commit names, and orphan files."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import sinks.bronze_commit
import sinks.bronze_files
from sinks import SinkError, orphans, sweep_orphans
from sinks.bronze_commit import BronzeCommits
from sinks.bronze_files import STATISTICS_COLUMNS, AddedFile, FileSpec, write_files
from sinks.folder import TableFolder
from sinks.tables import BRONZE
from sources.schema import arrow_schema

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


def records(
    count: int, *, first: int = 0, at: datetime = NOON, step: timedelta = timedelta(microseconds=1), topic: str = "t"
) -> pa.RecordBatch:
    """`count` records of one partition, `step` apart."""
    rows = [
        {
            "key": b"k",
            "value": b"%d" % offset,
            "topic": topic,
            "partition": 3,
            "offset": offset,
            "timestamp": at + step * (offset - first),
            "timestampType": 1,
            "headers": [{"key": "a", "value": b"1"}] if offset % 2 else None,
            "log_id": "log-a",
            "epoch": 1,
            "qos": 1,
            "retain": False,
            "client_id": "c",
        }
        for offset in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=arrow_schema(include_headers=True))


@pytest.fixture
def folder(tmp_path: Path) -> TableFolder:
    """An empty table with bronze's columns."""
    DeltaTable.create(str(tmp_path / "table"), BRONZE.arrow_schema(), partition_by=["ingest_date"])
    return TableFolder.of(str(tmp_path / "table"))


@pytest.fixture
def spec(folder: TableFolder) -> FileSpec:
    return FileSpec(folder, "t1")


def write(spec: FileSpec, *batches: pa.RecordBatch) -> list[AddedFile]:
    return list(write_files(batches, spec))


def commit(commits: BronzeCommits, files: list[AddedFile], *, batch_id: int, began_s: float | None = None) -> None:
    began_s = time.monotonic() if began_s is None else began_s
    commits.commit(files, query_id="q", batch_id=batch_id, began_s=began_s)


def rows(folder: TableFolder) -> pa.Table:
    return folder.table().to_pyarrow_table()


def test_records_arrive_as_they_were_with_tenant_and_day(folder: TableFolder, spec: FileSpec) -> None:
    batches = [records(10), records(5, first=10)]
    commit(BronzeCommits(folder), write(spec, *batches), batch_id=0)
    found = rows(folder)
    expected = pa.Table.from_batches(batches)
    assert found.select(expected.column_names).sort_by("offset").cast(expected.schema).equals(expected)
    assert set(found["tenant"].to_pylist()) == {"t1"}
    assert set(found["ingest_date"].to_pylist()) == {NOON.date()}


ODD_KEYS = [
    b"pump-7",
    b"",
    "\u00fc\U0001f4a7".encode(),
    b"\xff\x00",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xf4\x90\x80\x80",
    b"\xe2\x82",
]
"""Texts, and bytes that are not UTF-8: an invalid byte, half a surrogate pair, an overlong form, a code point beyond
the last one, a cut character."""
ODD_IDS = ["pump-7", "", "\u00fc\U0001f4a7", None, None, None, None, None]


@pytest.mark.parametrize(
    ("keys", "ids"),
    [
        (ODD_KEYS, ODD_IDS),
        (ODD_KEYS[3:], ODD_IDS[3:]),
        ([b"d%d" % n for n in range(8)], [f"d{n}" for n in range(8)]),
        # More different keys than the Parquet writer keeps in a dictionary.
        ([b"%01000d" % n for n in range(4_000)], [f"{n:01000d}" for n in range(4_000)]),
    ],
    ids=["odd keys", "no text at all", "texts", "long texts"],
)
def test_the_device_id_is_the_key_as_text_with_its_bounds(
    keys: list[bytes], ids: list[str | None], folder: TableFolder, spec: FileSpec
) -> None:
    def keyed(first: int) -> pa.RecordBatch:
        batch = records(len(keys), first=first)
        return batch.set_column(0, batch.schema.field(0), pa.array(keys, pa.binary()))

    (file,) = write(spec, keyed(0), keyed(len(keys)))
    commit(BronzeCommits(folder), [file], batch_id=0)
    found = rows(folder).sort_by("offset")
    assert found["key"].to_pylist() == keys + keys
    assert found["device_id"].to_pylist() == ids + ids
    bounds = json.loads(file.statistics)
    known = [id_ for id_ in ids if id_ is not None]
    assert bounds["nullCount"]["device_id"] == 2 * (len(ids) - len(known))
    if not known:
        assert "device_id" not in {*bounds["minValues"], *bounds["maxValues"]}
        return
    assert min(known)[:32] == bounds["minValues"]["device_id"]
    assert max(known) <= bounds["maxValues"]["device_id"]


def test_each_day_has_its_file_whatever_the_order(folder: TableFolder, spec: FileSpec) -> None:
    night = datetime(2026, 11, 22, tzinfo=UTC) - timedelta(microseconds=5)
    # A batch across midnight, and a clock that was set back.
    files = write(spec, records(10, at=night), records(3, first=10, at=NOON))
    assert sorted((file.day, file.rows) for file in files) == [("2026-11-21", 8), ("2026-11-22", 5)]
    assert all(file.path.startswith(f"ingest_date={file.day}/bronze-") for file in files)
    commit(BronzeCommits(folder), files, batch_id=0)
    found = rows(folder)
    assert all(
        day == moment.date()
        for day, moment in zip(*(found[n].to_pylist() for n in ("ingest_date", "timestamp")), strict=True)
    )


def test_files_that_are_open_at_once_are_bounded(folder: TableFolder, spec: FileSpec) -> None:
    files = write(spec, records(12, step=timedelta(days=1)))
    assert len(files) == 12
    assert sum(file.rows for file in files) == 12


def test_a_file_ends_at_its_size_and_a_row_group_at_its_rows(spec: FileSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sinks.bronze_files, "GROUP_ROWS_MAX", 10)
    monkeypatch.setattr(sinks.bronze_files, "FILE_BYTES_MAX", 1)
    files = write(spec, *(records(4, first=4 * number) for number in range(6)))
    assert [file.rows for file in files] == [12, 12]


@pytest.mark.parametrize(("payload", "codec"), [(os.urandom, "UNCOMPRESSED"), (b"{}".__mul__, "ZSTD")])
def test_payloads_that_do_not_shrink_are_stored_and_the_rest_is_compressed(
    payload: Callable[[int], bytes], codec: str, folder: TableFolder, spec: FileSpec
) -> None:
    batch = records(2_000)
    values = [payload(1_000) for _ in range(batch.num_rows)]
    batch = batch.set_column(1, "value", pa.array(values, pa.binary()))
    (file,) = write(spec, batch)
    columns = pq.read_metadata(Path(folder.uri) / file.path).row_group(0)
    codecs = {columns.column(at).path_in_schema: columns.column(at).compression for at in range(columns.num_columns)}
    assert codecs.pop("value") == codec
    assert set(codecs.values()) == {"ZSTD"}
    assert pq.read_table(Path(folder.uri) / file.path, columns=["value"]).column(0).to_pylist() == values


def test_columns_that_lack_no_value_are_required_and_a_missing_one_begins_a_file(
    folder: TableFolder, spec: FileSpec
) -> None:
    whole = [records(4), records(4, first=4), records(4, first=12)]
    missing = records(4, first=8)
    at = missing.schema.get_field_index("client_id")
    missing = missing.set_column(at, missing.schema.field(at), pa.array(["c", None, "c", None]))
    files = write(spec, *whole[:2], missing, whole[2])
    assert [file.rows for file in files] == [8, 8]
    schemas = [pq.read_schema(f"{folder.uri}/{file.path}") for file in files]
    assert [name for name in schemas[0].names if schemas[0].field(name).nullable] == ["headers", "device_id"]
    assert [name for name in schemas[1].names if schemas[1].field(name).nullable] == [
        "headers",
        "client_id",
        "device_id",
    ]
    assert [json.loads(file.statistics)["nullCount"]["client_id"] for file in files] == [0, 2]
    commit(BronzeCommits(folder), files, batch_id=0)
    expected = pa.Table.from_batches([*whole[:2], missing, whole[2]])
    assert rows(folder).select(expected.column_names).sort_by("offset").cast(expected.schema).equals(expected)


def test_statistics_bound_every_row_and_leave_payloads_out(spec: FileSpec) -> None:
    long_topic = "devices/" + "x" * 40
    at = NOON + timedelta(microseconds=1_500)
    (file,) = write(spec, records(3, first=7, at=at, step=timedelta(0), topic=long_topic))
    statistics = json.loads(file.statistics)
    assert statistics["numRecords"] == 3
    low, high = statistics["minValues"], statistics["maxValues"]
    assert (low["offset"], high["offset"]) == (7, 9)
    # Rounded outwards: to milliseconds, and to 32 characters.
    assert (low["timestamp"], high["timestamp"]) == ("2026-11-21T12:00:00.001Z", "2026-11-21T12:00:00.002Z")
    assert low["topic"] == long_topic[:32] <= long_topic < high["topic"] == long_topic[:32] + "\U0010ffff"
    assert set(low) == set(high) == set(STATISTICS_COLUMNS)
    assert statistics["nullCount"] == dict.fromkeys(low, 0)


def test_a_topic_that_no_short_text_is_above_has_no_upper_bound(spec: FileSpec) -> None:
    (file,) = write(spec, records(1, topic="x" * 32 + "\U0010ffff" * 2))
    statistics = json.loads(file.statistics)
    assert "topic" in statistics["minValues"]
    assert "topic" not in statistics["maxValues"]


def test_a_replayed_batch_is_known_and_an_older_one_too(folder: TableFolder, spec: FileSpec) -> None:
    commits = BronzeCommits(folder)
    assert not commits.has("q", 0)
    commit(commits, write(spec, records(5)), batch_id=4)
    for one in (commits, BronzeCommits(folder)):
        assert one.has("q", 4)
        assert one.has("q", 3)
        assert not one.has("q", 5)
        assert not one.has("another query", 4)


def test_what_a_query_has_done_is_still_known_behind_a_checkpoint_of_the_table(
    folder: TableFolder, spec: FileSpec
) -> None:
    commit(BronzeCommits(folder), write(spec, records(5)), batch_id=4)
    table = folder.table()
    table.create_checkpoint()
    table.optimize.compact()
    assert BronzeCommits(folder).has("q", 4)


def test_two_runs_of_a_query_that_commit_one_batch_at_once_commit_it_once(folder: TableFolder, spec: FileSpec) -> None:
    """A driver that was presumed dead: both have checked the table before either commits."""
    first, second = BronzeCommits(folder), BronzeCommits(folder)
    assert not first.has("q", 0)
    assert not second.has("q", 0)
    commit(first, write(spec, records(5)), batch_id=0)
    commit(second, write(spec, records(5)), batch_id=0)
    assert rows(folder).num_rows == 5


def test_other_writers_do_not_stop_a_commit(folder: TableFolder, spec: FileSpec) -> None:
    commits, other = BronzeCommits(folder), BronzeCommits(folder)
    for number in range(3):
        commit(other, write(spec, records(5, first=5 * number)), batch_id=number)
    assert not commits.has("r", 0)
    # Compaction, and another query, between the check and the commit.
    folder.table().optimize.compact()
    commit(other, write(spec, records(5, first=100)), batch_id=3)
    commits.commit(write(spec, records(5, first=200)), query_id="r", batch_id=0, began_s=time.monotonic())
    assert rows(folder).num_rows == 25


def test_a_batch_that_took_too_long_is_not_committed(folder: TableFolder, spec: FileSpec) -> None:
    long_ago = time.monotonic() - sinks.bronze_commit.BATCH_SECONDS_MAX - 1
    with pytest.raises(SinkError, match="must be read again"):
        commit(BronzeCommits(folder), write(spec, records(5)), batch_id=0, began_s=long_ago)
    assert rows(folder).num_rows == 0


def test_a_read_that_fails_leaves_no_file(folder: TableFolder, spec: FileSpec) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield records(5)
        raise OSError("the broker is away")

    with pytest.raises(OSError, match="the broker is away"):
        list(write_files(failing(), spec))
    assert not list(Path(folder.uri).rglob("*.parquet"))


def test_orphans_are_old_files_of_ours_that_no_commit_names(folder: TableFolder, spec: FileSpec) -> None:
    commits = BronzeCommits(folder)
    for number in range(2):
        commit(commits, write(spec, records(5, first=5 * number)), batch_id=number)
    replaced = set(folder.table().file_uris())
    folder.table().optimize.compact()
    (lost,) = write(spec, records(5))
    (fresh,) = write(spec, records(5))
    foreign = Path(folder.uri) / "ingest_date=2026-11-21" / "somebody.parquet"
    foreign.write_bytes(b"")
    two_days_ago = time.time() - 2 * 86_400
    for path in (foreign, Path(folder.uri) / lost.path, *map(Path, replaced)):
        os.utime(path, (two_days_ago, two_days_ago))
    assert orphans(folder.uri) == [lost.path]
    assert sweep_orphans(folder.uri) == [lost.path]
    left = {path.name for path in Path(folder.uri).rglob("*.parquet")}
    assert Path(lost.path).name not in left
    assert {Path(fresh.path).name, foreign.name, *(Path(path).name for path in replaced)} <= left
    assert rows(folder).num_rows == 10
    with pytest.raises(SinkError, match="younger"):
        orphans(folder.uri, older_than=timedelta(hours=1))


def test_a_path_of_no_known_store_is_refused_by_name() -> None:
    with pytest.raises(SinkError, match=r"ftp://there.*bronze\.writer: spark"):
        TableFolder.of("ftp://there/bronze")
    assert TableFolder.of("dbfs:/Volumes/a/b/c").uri == "/Volumes/a/b/c"
