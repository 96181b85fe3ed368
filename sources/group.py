"""A consumer group as one reader sees it: where the group started, what it has finished, and which reader is the
current one.

At every broker each reader takes an epoch above the last one, so that the broker refuses an older reader of the same
group. Without a group nothing is stored and no reader is fenced.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from broker_edge.errors import RefusedError
from sources.log_server import LogServer
from sources.offsets import SourceOffset
from sources.scans import Scans

_LOGGER = logging.getLogger(__name__)

SHOWN_EVERY_S = 10.0
"""How often a group without new records tells how far it has looked for them: its lag is what it has not looked at."""

_Done = Mapping[int, tuple[int, int | None]]
"""By partition: the first offset that is not finished, and up to where no record matches, if it is known."""


class ReaderGroup:
    """The group `name`, as this reader sees it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._epochs: dict[str, int] = {}
        self._told: dict[str, tuple[_Done, float]] = {}

    def initial(self, log_id: str, server: LogServer) -> dict[int, int]:
        """Where the group started, for each partition that it has started."""
        answer = server.committed(self.name)
        self._take_epoch(log_id, int(answer["reader_epoch"]))
        return {int(n): row["initial"] for n, row in answer["partitions"].items() if row["initial"] is not None}

    def keep_initial(self, log_id: str, server: LogServer, places: Mapping[int, int]) -> dict[int, int]:
        """Stores where the group starts. The first reader to do so wins; use the returned offsets."""
        answer = server.commit(self.name, self._epoch(log_id, server), initial=places)
        return {int(n): row["initial"] for n, row in answer["partitions"].items() if row["initial"] is not None}

    def commit(self, finished: SourceOffset, scans: Scans, log_id: str, server: LogServer) -> None:
        """Tells one broker what has been finished. A broker that cannot be reached is told with the next batch."""
        done = {
            number: (place.next, scan.scanned if scan is not None and scan.next == place.next else None)
            for number, place in finished.logs.get(log_id, {}).items()
            for scan in [scans.get((log_id, number))]
        }
        if not done or not self._is_news(log_id, done):
            return
        try:
            server.commit(self.name, self._epoch(log_id, server), finished=done)
        except RefusedError as error:
            if error.code != "out_of_range":
                raise
            # The log lost its end. Planning detects that too, and `failOnDataLoss` decides how to continue.
            _LOGGER.warning("consumer group %s is not committed: %s", self.name, error)
            return
        self._told[log_id] = (done, time.monotonic())

    def _is_news(self, log_id: str, done: _Done) -> bool:
        if log_id not in self._told:
            return True
        told, at = self._told[log_id]
        if _committed(done) != _committed(told):
            return True
        return done != told and time.monotonic() - at >= SHOWN_EVERY_S

    def _epoch(self, log_id: str, server: LogServer) -> int:
        if log_id not in self._epochs:
            self._take_epoch(log_id, int(server.committed(self.name)["reader_epoch"]))
        return self._epochs[log_id]

    def _take_epoch(self, log_id: str, newest: int) -> None:
        # The clock separates two readers that start together. The previous epoch guards against a clock that was set
        # back, which would otherwise fence this reader.
        self._epochs.setdefault(log_id, max(newest + 1, time.time_ns() // 1_000))


def _committed(done: _Done) -> dict[int, int]:
    return {number: committed for number, (committed, _) in done.items()}
