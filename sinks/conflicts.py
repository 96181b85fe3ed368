"""Writes without a JVM that meet somebody else's commit, tried again on the table as it is by then.

A commit fails when another one came between reading the table and writing it: compaction under a MERGE, a MERGE under
compaction, a change of properties under an append. Nothing of it is in the table then.
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
"""Doubled each time: two that write in step would meet again and again."""

T = TypeVar("T")


def committed(write: Callable[[], T], what: str) -> T:
    """What `write` returns. It must read the table afresh each time, and may be called `COMMIT_ATTEMPTS` times; the
    last CommitFailedError is raised. `what` names it in the log.
    """
    for attempt in range(COMMIT_ATTEMPTS - 1):
        try:
            return write()
        except CommitFailedError as error:
            log.info("%s met another commit and is tried again: %s", what, " ".join(str(error).split())[:200])
            time.sleep(_PAUSE_S * 2**attempt)
    return write()
