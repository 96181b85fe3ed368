"""A checkpoint after a power cut: only the newest file may be empty, and only an empty one goes."""

from __future__ import annotations

from pathlib import Path

from pipelines.spark.checkpoint import folder_to_sync, repair_checkpoint, synced_checkpoint
from sinks.store import StoreAccess


def _checkpoint(folder: Path, **sizes: tuple[int, ...]) -> Path:
    for kind, found in sizes.items():
        (folder / kind).mkdir(parents=True)
        for number, size in enumerate(found):
            (folder / kind / str(number)).write_bytes(b"x" * size)
            (folder / kind / f".{number}.crc").write_bytes(b"c")
    return folder


def test_an_empty_newest_file_is_removed_with_its_checksum(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path / "c", offsets=(5, 0), commits=(5,))
    repair_checkpoint(str(folder))
    assert sorted(path.name for path in (folder / "offsets").iterdir()) == [".0.crc", "0"]
    assert sorted(path.name for path in (folder / "commits").iterdir()) == [".0.crc", "0"]


def test_an_older_empty_file_stays_so_that_spark_reports_it(tmp_path: Path) -> None:
    folder = _checkpoint(tmp_path / "c", offsets=(0, 5), commits=(0, 0))
    repair_checkpoint(str(folder))
    assert (folder / "offsets" / "0").exists()
    assert (folder / "commits" / "0").exists()
    assert not (folder / "commits" / "1").exists()


def test_nothing_is_done_without_a_checkpoint_or_to_a_remote_one(tmp_path: Path) -> None:
    repair_checkpoint(str(tmp_path / "none"))
    repair_checkpoint("hdfs2://somewhere")
    assert synced_checkpoint("s3://bucket/c") == {}
    assert synced_checkpoint(str(tmp_path)) == {"syncCheckpoint": str(tmp_path)}


def test_local_folders_are_synced_unless_the_settings_say_no(tmp_path: Path) -> None:
    access = StoreAccess.of({})
    assert folder_to_sync(str(tmp_path), access, sync=None) == tmp_path
    assert folder_to_sync(str(tmp_path), access, sync=True) == tmp_path
    assert folder_to_sync(str(tmp_path), access, sync=False) is None
    assert folder_to_sync("s3://bucket/t", access, sync=True) is None
    assert folder_to_sync("hdfs2://somewhere", access, sync=True) is None
    assert folder_to_sync(None, access, sync=None) is None
