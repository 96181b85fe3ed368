"""Local tables after a power cut: only torn commits go, and only where the machine has started since."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from actions.fleet_desk import FleetDesk
from pipelines.settings.places import TablePlace
from sinks import synced_table, torn_commits
from sinks.synced_table import SyncedTable
from sinks.tables import create_by_path
from sinks.torn_commits import booted_s, repair_table, repair_tables


@pytest.fixture(autouse=True)
def _machine_has_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torn_commits, "booted_s", lambda: time.time() + 1)


def append(table: Path, *numbers: int) -> None:
    write_deltalake(str(table), pa.table({"n": pa.array(numbers, pa.int64())}), mode="append")


def numbers(table: Path) -> list[int]:
    return sorted(DeltaTable(str(table)).to_pyarrow_table().column("n").to_pylist())


def commit_of(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def data_of(table: Path, version: int) -> Path:
    actions = [json.loads(line) for line in commit_of(table, version).read_text().splitlines()]
    return table / str(next(action["add"]["path"] for action in actions if "add" in action))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "tables" / "t"
    for number in range(4):
        append(path, number)
    return path


def is_complete(table: Path) -> bool:
    """deltalake takes an empty commit for one without actions, and fails at all others."""
    try:
        return numbers(table) == [0, 1, 2, 3]
    except (DeltaError, OSError, pa.ArrowException):
        return False


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


DAMAGE = [cut_short, emptied, zeroed, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("of", [commit_of, data_of])
def test_the_table_goes_back_to_its_newest_complete_version(
    table: Path, of: Callable[[Path, int], Path], damage: Callable[[Path], None]
) -> None:
    damage(of(table, 2))
    assert not is_complete(table), "the control"
    there = [version for version in (2, 3) if commit_of(table, version).exists()]
    assert repair_table(str(table)) == len(there)
    assert numbers(table) == [0, 1]
    append(table, 9)
    assert DeltaTable(str(table)).version() == 2
    assert numbers(table) == [0, 1, 9]


def test_the_commits_that_went_are_kept_aside(table: Path) -> None:
    emptied(data_of(table, 3))
    content = commit_of(table, 3).read_bytes()
    repair_tables(str(table.parent))
    assert commit_of(table, 3).with_suffix(".json.torn").read_bytes() == content


def test_a_complete_table_is_not_changed(table: Path) -> None:
    before = {path: path.read_bytes() for path in table.rglob("*") if path.is_file()}
    assert repair_table(str(table)) == 0
    assert {path: path.read_bytes() for path in table.rglob("*") if path.is_file()} == before


def test_files_that_a_later_commit_has_removed_may_be_gone(table: Path) -> None:
    data = [data_of(table, version) for version in range(4)]
    DeltaTable(str(table)).optimize.compact()
    for path in data:
        path.unlink()
    assert repair_table(str(table)) == 0
    assert numbers(table) == [0, 1, 2, 3]


def test_a_torn_compaction_gives_back_the_files_that_it_removed(table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()
    emptied(data_of(table, 4))
    assert repair_table(str(table)) == 1
    assert numbers(table) == [0, 1, 2, 3]


def test_files_of_the_change_feed_may_be_vacuumed_but_not_torn(tmp_path: Path) -> None:
    table = tmp_path / "t"
    rows = pa.table({"n": pa.array([1, 2], pa.int64())})
    write_deltalake(str(table), rows, configuration={"delta.enableChangeDataFeed": "true"})
    DeltaTable(str(table)).update({"n": "n + 1"}, predicate="n = 1")
    change = next((table / "_change_data").rglob("*.parquet"))
    content = change.read_bytes()
    change.unlink()
    assert repair_table(str(table)) == 0
    change.write_bytes(content[:-1])
    assert repair_table(str(table)) == 1
    assert numbers(table) == [1, 2]


def test_a_checkpoint_goes_with_its_commit_or_if_it_is_torn_itself(table: Path) -> None:
    log_folder = table / "_delta_log"
    DeltaTable(str(table)).create_checkpoint()
    emptied(data_of(table, 3))
    assert repair_table(str(table)) == 1
    assert numbers(table) == [0, 1, 2]
    assert not list(log_folder.glob("*.checkpoint*.parquet"))
    assert not (log_folder / "_last_checkpoint").exists()

    DeltaTable(str(table)).create_checkpoint()
    emptied(next(log_folder.glob("*.checkpoint*.parquet")))
    assert repair_table(str(table)) == 0
    assert numbers(table) == [0, 1, 2]
    assert not list(log_folder.glob("*.checkpoint*.parquet"))


def test_a_checkpoint_of_another_writer_stays(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job starts while a command checks the table, and a hint at a checkpoint that is missing stops all readers."""
    found = torn_commits._complete

    def while_a_job_writes(*given: Any) -> int:
        append(table, 4)
        DeltaTable(str(table)).create_checkpoint()
        return found(*given)

    monkeypatch.setattr(torn_commits, "_complete", while_a_job_writes)
    assert repair_table(str(table)) == 0
    assert [path.name[:20] for path in table.rglob("*.checkpoint*.parquet")] == [f"{4:020}"]
    assert numbers(table) == [0, 1, 2, 3, 4]


def test_who_may_not_write_is_told_and_can_still_read_other_tables(
    table: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuses(path: Path, to: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    emptied(data_of(table, 3))
    monkeypatch.setattr(os, "replace", refuses)
    assert repair_table(str(table)) == 0
    assert commit_of(table, 3).exists()
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        f"{table} cannot be checked after a power cut (Permission denied: {commit_of(table, 3)}): start a job, which "
        "does it, or run this as the user of the jobs"
    )


def test_a_table_whose_creation_is_torn_is_created_again(tmp_path: Path) -> None:
    table = tmp_path / "t"
    for number in (1, 2):
        append(table, number)
        emptied(commit_of(table, 0))
        assert repair_table(str(table)) == 1
        assert not table.exists()
        assert any((tmp_path / f"t.torn-{number}").glob("*.parquet"))
    repair_tables(str(tmp_path))
    append(table, 2)
    assert numbers(table) == [2]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t", "t.torn-1", "t.torn-2"]


def test_control_without_a_start_of_the_machine_nothing_goes(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has deleted a file by hand: the commits after it are good."""
    data_of(table, 1).unlink()
    monkeypatch.setattr(torn_commits, "booted_s", lambda: commit_of(table, 3).stat().st_mtime - 1)
    assert repair_table(str(table)) == 0
    monkeypatch.setattr(torn_commits, "booted_s", lambda: None)
    assert repair_table(str(table)) == 0
    assert commit_of(table, 3).exists()


def test_old_commits_are_not_checked(table: Path) -> None:
    data_of(table, 0).unlink()
    old_s = time.time() - 2 * torn_commits.WINDOW_S
    for version in range(3):
        os.utime(commit_of(table, version), (old_s, old_s))
    assert repair_table(str(table)) == 0


def test_a_commit_with_the_time_of_a_wrong_clock_is_no_gap(table: Path) -> None:
    wrong_s = time.time() - 2 * torn_commits.WINDOW_S
    os.utime(commit_of(table, 2), (wrong_s, wrong_s))
    assert repair_table(str(table)) == 0
    assert numbers(table) == [0, 1, 2, 3]


@pytest.mark.parametrize("character", ["\u0085", "\u2028", "\u2029", "\x7f"])
def test_a_text_in_the_statistics_may_contain_any_character(tmp_path: Path, character: str) -> None:
    """A device chooses its topic; as a whole line, half of such a commit would not be JSON."""
    table = tmp_path / "t"
    for number in range(2):
        write_deltalake(str(table), pa.table({"topic": [f"devices/{character}/{number}"]}), mode="append")
    assert character in commit_of(table, 1).read_text("utf-8")
    assert repair_table(str(table)) == 0


@pytest.mark.parametrize("place", ["s3://elsewhere", "file:/elsewhere", "file:///elsewhere", "/elsewhere"])
def test_a_file_of_another_folder_is_not_judged(table: Path, place: str) -> None:
    commit = commit_of(table, 3)
    name = data_of(table, 3).name
    commit.write_text(commit.read_text().replace(name, f"{place}/{name}"))
    assert repair_table(str(table)) == 0


def test_files_of_partitions_with_any_value_are_found(tmp_path: Path) -> None:
    table, values = tmp_path / "t", ["a b", "a/b", "a%20b", "a:b", "ü", "a=b", "a+b", "a#?b"]
    write_deltalake(str(table), pa.table({"n": range(len(values)), "of": values}), partition_by=["of"])
    assert repair_table(str(table)) == 0
    assert sorted(DeltaTable(str(table)).to_pyarrow_table().column("of").to_pylist()) == sorted(values)


def test_a_table_to_which_another_machine_writes_is_left_alone(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of this machine is ahead, so that a new commit looks like one before its start."""
    found = torn_commits._complete

    def while_another_writes(*given: Any) -> int:
        append(table, 4)
        return found(*given)

    emptied(data_of(table, 3))
    monkeypatch.setattr(torn_commits, "_complete", while_another_writes)
    assert repair_table(str(table)) == 0
    assert commit_of(table, 3).exists()
    assert commit_of(table, 4).exists()
    monkeypatch.undo()
    monkeypatch.setattr(torn_commits, "booted_s", lambda: time.time() + 1)
    assert repair_table(str(table)) == 2, "the control"


def test_a_table_that_cannot_be_locked_is_left_alone(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS locks only files that are open for writing."""

    def refuses(*_: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    emptied(data_of(table, 3))
    monkeypatch.setattr(fcntl, "flock", refuses)
    assert repair_table(str(table)) == 0
    assert commit_of(table, 3).exists()


def test_a_job_that_waited_while_another_moved_the_table_starts(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: table.rename(table.with_name("t.torn-1")))
    assert repair_table(str(table)) == 0


def test_other_places_are_left_alone(tmp_path: Path) -> None:
    repair_tables(None)
    repair_tables(str(tmp_path / "none"))
    repair_tables("hdfs2://somewhere")
    (tmp_path / "folder" / "_delta_log").mkdir(parents=True)
    repair_tables(str(tmp_path))
    assert repair_table("s3://bucket/t") == 0


def test_the_start_of_the_machine_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = booted_s()
    assert found is not None
    assert 0 < found <= time.time()
    monkeypatch.setattr(torn_commits, "_STAT", tmp_path / "none")
    assert booted_s() is None


@pytest.mark.parametrize("opens", [lambda root: FleetDesk(root), lambda root: TablePlace(root=root).make(None)])
def test_who_opens_tables_repairs_them_first(tmp_path: Path, opens: Callable[[str], object]) -> None:
    create_by_path(tmp_path)
    desk = FleetDesk(str(tmp_path))
    desk.describe_devices({"d1": {}})
    desk.describe_devices({"d2": {}})
    emptied(data_of(tmp_path / "devices", DeltaTable(str(tmp_path / "devices")).version()))
    opens(str(tmp_path))
    assert [row["device_id"] for row in DeltaTable(str(tmp_path / "devices")).to_pyarrow_table().to_pylist()] == ["d1"]


def test_files_of_other_writers_are_on_disk_with_a_commit_after_theirs(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(synced_table, "sync_file_system", synced.append)
    bronze = SyncedTable(table, version=1)
    assert synced == [table]
    bronze.after_commit(2)
    assert synced == [table], "its own commit, whose files it has synced"
    append(table, 4)
    bronze.after_commit(4)
    assert synced == [table, table]
