"""Orphan files in a bronze table's folder: files that no commit names or ever will, left by tasks that failed or were
killed.

This module lists and removes them; maintenance decides when. Needs no JVM. (A full VACUUM also removes them, together
with the files that compaction replaced.)
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from broker_edge.errors import SinkError
from sinks.bronze_files import FILE_PREFIX
from sinks.folder import TableFolder
from sinks.store import StoreAccess

ORPHAN_AGE_MIN: Final = timedelta(days=1)
"""Twice the maximum duration of a batch (`bronze_commit.BATCH_SECONDS_MAX`): a younger file may belong to a running
batch."""


def orphans(path: str, *, older_than: timedelta = ORPHAN_AGE_MIN, access: StoreAccess | None = None) -> list[str]:
    """The orphan files of bronze's writer in the table at `path`, relative to it, sorted.

    Excludes files that any readable version of the table names, and files of other writers.
    """
    if older_than < ORPHAN_AGE_MIN:
        raise SinkError(f"files younger than {ORPHAN_AGE_MIN} may belong to a running batch: ask for older ones")
    folder = TableFolder.of(path, access)
    table = folder.table()
    unnamed = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True)
    # Compaction replaced these, and readers of older versions may need them; VACUUM decides about them.
    replaced = set(table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=False))
    latest_s = time.time() - older_than.total_seconds()
    found = []
    for name in sorted(set(unnamed) - replaced):
        modified_s = folder.modified_s(name) if name.rpartition("/")[2].startswith(FILE_PREFIX) else None
        if modified_s is not None and modified_s <= latest_s:
            found.append(name)
    return found


def sweep_orphans(path: str, *, older_than: timedelta = ORPHAN_AGE_MIN, access: StoreAccess | None = None) -> list[str]:
    """Removes the files that `orphans` lists, and returns them."""
    found = orphans(path, older_than=older_than, access=access)
    folder = TableFolder.of(path, access)
    for name in found:
        folder.remove(name)
    return found
