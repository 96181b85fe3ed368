"""Files in a bronze table's folder that no commit names and none ever will: what tasks that failed or were killed left.

Lists and removes; when that is done is for maintenance to say. Needs no JVM. (A full VACUUM removes them as well, with
the files that compaction replaced.)
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Final

from sinks.bronze_files import FILE_PREFIX
from sinks.errors import SinkError
from sinks.folder import TableFolder

ORPHAN_AGE_MIN: Final = timedelta(days=1)
"""Twice what a batch may take (`bronze_commit.BATCH_SECONDS_MAX`): a younger file may be of a batch that goes on."""


def orphans(path: str, *, older_than: timedelta = ORPHAN_AGE_MIN) -> list[str]:
    """The files that bronze's writer left in the table at `path`, relative to it, in order.

    Not among them: what any version of the table that may still be read names, and files of other writers.
    """
    if older_than < ORPHAN_AGE_MIN:
        raise SinkError(
            f"files younger than {ORPHAN_AGE_MIN} may be of a batch that is being written: ask for older ones"
        )
    folder = TableFolder.of(path)
    table = folder.table()
    unnamed = table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True)
    # Replaced by compaction, and kept for readers of older versions: not ours to judge.
    replaced = set(table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=False))
    latest_s = time.time() - older_than.total_seconds()
    found = []
    for name in sorted(set(unnamed) - replaced):
        modified_s = folder.modified_s(name) if name.rpartition("/")[2].startswith(FILE_PREFIX) else None
        if modified_s is not None and modified_s <= latest_s:
            found.append(name)
    return found


def sweep_orphans(path: str, *, older_than: timedelta = ORPHAN_AGE_MIN) -> list[str]:
    """Removes what `orphans` lists, and returns it."""
    found = orphans(path, older_than=older_than)
    folder = TableFolder.of(path)
    for name in found:
        folder.remove(name)
    return found
