"""Maintenance: fewer files with the same rows, old orphans removed, and a bad table does not affect others."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from broker_edge.errors import JobFailedError
from pipelines.maintenance import SMALL_FILES_MIN, main, tables_of, tend, tend_all, tend_until
from pipelines.settings import MaintenanceSettings, Settings
from sinks.rows import arrow_of
from sinks.table import Table
from sinks.tables import ACTION_JOURNAL, create_by_path

WEEK = MaintenanceSettings()
DAY_S = 24 * 3600


def small_files(path: Path, count: int) -> None:
    for number in range(count):
        write_deltalake(path, pa.table({"n": [number]}), mode="append")


def numbers(path: Path) -> list[int]:
    return sorted(DeltaTable(path).to_pyarrow_table().column("n").to_pylist())


def test_small_files_become_one_with_the_same_rows_and_the_properties_are_set(tmp_path: Path) -> None:
    small_files(tmp_path / "t", SMALL_FILES_MIN)
    done = tend(Table.at(tmp_path / "t"), WEEK)
    assert done.problem is None
    assert (done.table, done.files, done.compacted) == ("t", SMALL_FILES_MIN, SMALL_FILES_MIN)
    table = DeltaTable(tmp_path / "t")
    assert len(table.file_uris()) == 1
    assert numbers(tmp_path / "t") == list(range(SMALL_FILES_MIN))
    assert table.metadata().configuration["delta.logRetentionDuration"] == "interval 30 days"
    version = table.version()
    # Without work there is no commit: the next round makes none that writers could conflict with.
    assert tend(Table.at(tmp_path / "t"), WEEK).compacted == 0
    assert DeltaTable(tmp_path / "t").version() == version


def test_a_file_that_no_commit_names_goes_when_it_is_old_and_no_sooner(tmp_path: Path) -> None:
    small_files(tmp_path / "t", 2)
    old, young = tmp_path / "t" / "old.parquet", tmp_path / "t" / "young.parquet"
    for orphan in (old, young):
        orphan.write_bytes(b"of a writer that died")
    eight_days_ago = time.time() - 8 * DAY_S
    os.utime(old, (eight_days_ago, eight_days_ago))
    assert tend(Table.at(tmp_path / "t"), WEEK).removed == 1
    assert not old.exists()
    assert young.exists()
    assert numbers(tmp_path / "t") == [0, 1]


def test_a_table_that_cannot_be_tended_is_named_and_the_others_are(tmp_path: Path) -> None:
    small_files(tmp_path / "good", SMALL_FILES_MIN)
    small_files(tmp_path / "bad", 1)
    (tmp_path / "bad" / "_delta_log" / "00000000000000000001.json").write_text("{not json\n")
    done = tend_all([Table.at(tmp_path / name) for name in ("bad", "none", "good")], WEEK)
    assert [one.table for one in done] == ["bad", "good"]
    assert done[0].problem is not None
    assert done[1].compacted == SMALL_FILES_MIN


def settings_for(folder: Path) -> Settings:
    root = {"root": str(folder / "tables")}
    return Settings.model_validate(
        {"telemetry": {"table_path": str(folder / "bronze")}, "silver": root, "actions": root}
    )


def test_every_table_of_the_settings_is_tended_once(tmp_path: Path) -> None:
    names = [str(table).rpartition("/")[2] for table in tables_of(settings_for(tmp_path))]
    assert {"bronze", "silver_telemetry", "quarantine", "ingest_gaps", "dq_results", "action_targets"} <= set(names)
    assert len(names) == len(set(names))


def test_a_round_in_which_nothing_could_be_tended_fails(tmp_path: Path) -> None:
    small_files(tmp_path / "bronze", 1)
    (tmp_path / "bronze" / "_delta_log" / "00000000000000000001.json").write_text("{not json\n")
    with pytest.raises(JobFailedError, match="no table could be maintained; the first: bronze: "):
        tend_until(settings_for(tmp_path), lambda _: True)


def test_the_command_ends_with_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schemas = Path(__file__).parents[2] / "conf" / "schemas"
    monkeypatch.chdir(tmp_path)
    assert main(["--once", "--root", str(tmp_path / "tables"), "--schemas", str(schemas)]) == 0


def test_the_journal_keeps_its_short_log_and_its_files_go_after_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the policy of the other tables, the small files and commits of a long rollout would stay for days."""
    create_by_path(tmp_path, tables=(ACTION_JOURNAL,))
    path = str(tmp_path / ACTION_JOURNAL.name)
    write_deltalake(path, arrow_of([{"number": 1, "table_name": "action_targets"}], ACTION_JOURNAL), mode="append")
    DeltaTable(path).delete()
    before, hours = DeltaTable(path).metadata().configuration, list[int | None]()
    real = DeltaTable.vacuum

    def vacuum(table: DeltaTable, *, retention_hours: int | None, dry_run: bool, full: bool) -> list[str]:
        hours.append(retention_hours)
        return real(table, retention_hours=retention_hours, dry_run=dry_run, full=full)

    monkeypatch.setattr(DeltaTable, "vacuum", vacuum)
    assert tend(Table.at(path), MaintenanceSettings()).problem is None
    assert DeltaTable(path).metadata().configuration == before
    assert before["delta.deletedFileRetentionDuration"] == "interval 1 hours"
    assert hours == [None], "as the property says"


def test_the_journal_gets_back_the_properties_that_maintenance_once_replaced(tmp_path: Path) -> None:
    create_by_path(tmp_path, tables=(ACTION_JOURNAL,))
    path = str(tmp_path / ACTION_JOURNAL.name)
    DeltaTable(path).alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})
    assert tend(Table.at(path), MaintenanceSettings()).problem is None
    assert DeltaTable(path).metadata().configuration["delta.logRetentionDuration"] == "interval 1 days"
