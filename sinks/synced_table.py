"""Keeps a local Delta table durable against a power cut: data files, then the commit, then it counts as written."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from broker_edge.sync import sync_file, sync_file_system, sync_folders

_LOG: Final = "_delta_log"


class SyncedTable:
    """What is already on disk of one table. Used by one thread."""

    def __init__(self, root: Path, version: int) -> None:
        """`version` is the table's current one. It and everything before it is synced now, whoever wrote it."""
        self._root = root
        self._version = version
        self._folders: set[Path] = set()
        sync_file_system(root)

    def before_commit(self, paths: set[str]) -> None:
        """Syncs the names of new files, which are relative to the table. Their content is synced already."""
        for folder in {(self._root / path).parent for path in paths}:
            if folder in self._folders:
                sync_folders(folder, up_to=folder / "its files")
            else:
                # The folder itself may be new.
                sync_folders(folder, up_to=self._root)
                self._folders.add(folder)

    def after_commit(self, version: int) -> None:
        """Syncs the log up to `version`, also the commits of others: without them nobody can read later ones."""
        if version > self._version + 1:
            # With the files that they have written, such as those of compaction.
            sync_file_system(self._root)
        log = self._root / _LOG
        for number in range(self._version + 1, version + 1):
            for path in (log / f"{number:020}.json", log / f"{number:020}.checkpoint.parquet"):
                # An old commit may have been removed after a checkpoint, and few versions have a checkpoint.
                if path.exists():
                    sync_file(path)
        if (log / "_last_checkpoint").exists():
            sync_file(log / "_last_checkpoint")
        sync_folders(log, up_to=log / "its files")
        self._version = max(self._version, version)
