"""Retries writes without a JVM that conflict with another writer's commit, on the table's newest version.

A commit fails if another one happened between reading the table and writing it: compaction during a MERGE, a MERGE
during compaction, a change of properties during an append. A failed commit leaves nothing in the table.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

from deltalake.exceptions import CommitFailedError

log = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 5
_PAUSE_S = 0.05
"""First delay, doubled each time: two writers in step would conflict again and again."""

T = TypeVar("T")


def committed(write: Callable[[], T], what: str) -> T:
    """Returns the result of `write`, which must read the table afresh each time and may be called up to
    `COMMIT_ATTEMPTS` times. Raises the last CommitFailedError. `what` names the write in the log.
    """
    for attempt in range(COMMIT_ATTEMPTS - 1):
        try:
            return write()
        except CommitFailedError as error:
            log.info("%s conflicted with another commit and is retried: %s", what, " ".join(str(error).split())[:200])
            time.sleep(_PAUSE_S * 2**attempt)
    return write()
