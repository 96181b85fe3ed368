"""A consumer group as one reader sees it: where it began, what it has finished, and who may speak for it.

Each reader takes an epoch above the last one's at every broker, so that an older reader of the same group is refused.
Without a group nothing is kept and nothing is fenced.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from sources.errors import RefusedError
from sources.flight import LogServer
from sources.offsets import SourceOffset

_LOGGER = logging.getLogger(__name__)


class ReaderGroup:
    """The group `name` as of this reader."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._epochs: dict[str, int] = {}
        self._committed: dict[str, dict[int, int]] = {}

    def initial(self, log_id: str, server: LogServer) -> dict[int, int]:
        """Where the group began, per partition that has begun."""
        answer = server.committed(self.name)
        self._take_epoch(log_id, int(answer["reader_epoch"]))
        return {int(n): row["initial"] for n, row in answer["partitions"].items() if row["initial"] is not None}

    def keep_initial(self, log_id: str, server: LogServer, places: Mapping[int, int]) -> dict[int, int]:
        """Keeps where the group begins; who came first wins, and the answer is what counts."""
        answer = server.commit(self.name, self._epoch(log_id, server), initial=places)
        return {int(n): row["initial"] for n, row in answer["partitions"].items() if row["initial"] is not None}

    def commit(self, finished: SourceOffset, log_id: str, server: LogServer) -> None:
        """Tells one broker what has been finished. Who is away is told with the next batch."""
        places = {number: place.next for number, place in finished.logs.get(log_id, {}).items()}
        if places and self._committed.get(log_id) != places:
            try:
                server.commit(self.name, self._epoch(log_id, server), committed=places)
            except RefusedError as error:
                if error.code != "out_of_range":
                    raise
                # The log lost its end. Planning finds that out, too, and `failOnDataLoss` decides about it.
                _LOGGER.warning("consumer group %s is not committed: %s", self.name, error)
                return
            self._committed[log_id] = places

    def _epoch(self, log_id: str, server: LogServer) -> int:
        if log_id not in self._epochs:
            self._take_epoch(log_id, int(server.committed(self.name)["reader_epoch"]))
        return self._epochs[log_id]

    def _take_epoch(self, log_id: str, newest: int) -> None:
        # The clock keeps two readers that start together apart; the epoch before keeps a clock that went back from
        # fencing us.
        self._epochs.setdefault(log_id, max(newest + 1, time.time_ns() // 1_000))
