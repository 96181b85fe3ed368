"""How far the status job has read the reports in the log of each broker. In the background, and only when asked.

A timeout is true only if nobody has an unread report of the device, and reports lie in the log of a broker until the
status job has copied them. The engine asks before it lets a target time out: a look compares what the job's consumer
group has finished with the records of reports in the log. No unread report at a look means that everything up to that
look has been read; during a busy rollout there always is one, so a look also keeps where the log ended, and a later one
finds that the group has come so far.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from actions.engine import Served
from actions.status_rows import RECEIPTS, STATUS_FILTER
from broker_edge import BrokerError, Client, HeadwaterError, RefusedError
from broker_edge.values import PartitionOffsets

log = logging.getLogger(__name__)

AT_ONCE_MAX = 8
"""Brokers that are looked at at once: each look is a thread."""
_LOOK_EVERY_S = 0.5
_AFTER_ERROR_S = 5.0
_TELL_AFTER_S = 60.0
"""A status job that is behind for this long, while timeouts wait for it, is told once."""
_ASK_S = 30.0
"""Time for one question: a look may have to pass many records that are no reports."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The reports in one log at one moment, by partition."""

    log_id: str
    ends: Mapping[int, int]
    """Where the partition ended."""
    unread: Mapping[int, int]
    """No report below this offset is unread."""
    unfollowed: str | None = None
    """Why it is not known who reads these reports; nothing can wait for that then."""

    @property
    def is_read(self) -> bool:
        return self.unfollowed is not None or all(
            self.unread.get(number, 0) >= end for number, end in self.ends.items()
        )

    def has_passed(self, ends: Mapping[int, int]) -> bool:
        """Whether all reports below these ends have been read. A partition that is gone has none."""
        return all(self.unread.get(number, end) >= end for number, end in ends.items())


class Reader(Protocol):
    """The reports at one broker. Called from other threads, one call at a time."""

    def look(self) -> Extent:
        """Raises HeadwaterError."""


class GroupReader:
    """The reports in the log of a client's broker, and what a consumer group has finished of them."""

    def __init__(self, client: Client, group: str, *, uplink_filter: str | None = None) -> None:
        self._client, self._group = client, group
        self._filters = [STATUS_FILTER, RECEIPTS, *([] if uplink_filter is None else [uplink_filter])]
        self._log_id: str | None = None
        self._unread: dict[int, tuple[int, bool, int]] = {}
        """By partition: no report is unread below this offset, whether one is there, and the epoch of the log then."""

    def look(self) -> Extent:
        try:
            return self._looked()
        except RefusedError as error:
            if error.code != "permission_denied":
                raise
            # A user that may only publish cannot ask, and must not wait for an answer that it never gets.
            log_id = self._client.version(timeout_s=_ASK_S).log_id
            return Extent(log_id, {}, {}, unfollowed=f"the user of the engine may not ask: {error}")

    def _looked(self) -> Extent:
        bounds = self._client.offsets(filters=self._filters, timeout_s=_ASK_S)
        if bounds.log_id != self._log_id:
            self._log_id, self._unread = bounds.log_id, {}
        ends = {number: one.high_watermark for number, one in bounds.partitions.items()}
        finished = self._client.committed(self._group, timeout_s=_ASK_S).partitions
        if not finished:
            what = f"nobody has read them as consumer group {self._group}: run the status job with the same settings"
            return Extent(bounds.log_id, ends, {}, unfollowed=what)
        unread = {}
        for number, one in bounds.partitions.items():
            place = finished.get(number)
            start = None if place is None else place.finished
            unread[number] = self._first_unread(one, max(start or 0, one.log_start))
        return Extent(bounds.log_id, ends, unread)

    def _first_unread(self, at: PartitionOffsets, start: int) -> int:
        """The offset of the first report from `start` on. Without one: the offset up to which the log was searched."""
        passed, is_there, epoch = self._unread.get(at.partition, (0, False, at.epoch))
        if start > passed or epoch != at.epoch:
            passed, is_there = start, False
        if not is_there and passed < at.high_watermark:
            plan = self._client.plan({at.partition: passed}, filters=self._filters, max_records=1, timeout_s=_ASK_S)
            found = plan.partitions[at.partition]
            is_there = found.records > 0
            passed = found.end - 1 if found.records == 1 else passed if is_there else found.scanned
        self._unread[at.partition] = (passed, is_there, at.epoch)
        return passed


@dataclass(slots=True)
class _Seen:
    """What is known of one broker's log."""

    log_id: str
    read_us: int = 0
    mark: tuple[int, Mapping[int, int]] | None = None
    """A moment, and where the partitions ended then."""
    waits_since: float | None = None
    is_told: bool = False


class Readings:
    """Use from one thread. `wake` is called from any when more has been read. `readers` belong to the brokers, in the
    order of the brokers."""

    def __init__(self, readers: Sequence[Reader], *, wake: Callable[[], None], clock_us: Callable[[], int]) -> None:
        self._readers, self._wake, self._clock_us = readers, wake, clock_us
        self._lock = threading.Lock()
        self._seen: dict[int, _Seen] = {}
        self._busy: set[int] = set()
        self._look_from: dict[int, float] = {}
        self._round = 0
        self._has_news = False
        self._unfollowed: set[str] = set()

    @property
    def has_news(self) -> bool:
        return self._has_news

    def known(self) -> Mapping[str, int]:
        """Log id → the time up to which its reports are in `action_events`. Read that table after this call."""
        with self._lock:
            self._has_news = False
            return {one.log_id: one.read_us for one in self._seen.values()}

    def forget(self) -> None:
        """Drops everything, also the answers on their way: the clock by which they were noted was set."""
        with self._lock:
            self._seen.clear()
            self._round += 1

    def look(self, wanted: Collection[str], brokers: Sequence[Served]) -> None:
        """Begins to look at the brokers of these logs, as far as they are free. Returns at once."""
        for number, broker in enumerate(brokers):
            if broker.log_id is None or broker.log_id not in wanted or broker.away:
                continue
            with self._lock:
                is_free = number not in self._busy and len(self._busy) < AT_ONCE_MAX
                if not is_free or time.monotonic() < self._look_from.get(number, 0.0):
                    continue
                self._busy.add(number)
            work = (number, self._round, broker.log_id)
            threading.Thread(target=self._look, args=work, name="actions-reading", daemon=True).start()

    def _look(self, number: int, round_: int, log_id: str) -> None:
        pause_s = _AFTER_ERROR_S
        try:
            at_us = self._clock_us()
            extent = self._readers[number].look()
            if extent.log_id != log_id:
                with self._lock:
                    # What was known of the broker's log may be that of another box.
                    self._seen.pop(number, None)
                raise BrokerError(f"the broker of log {log_id} answers for log {extent.log_id:.100}")
            pause_s = _LOOK_EVERY_S
            self._note(number, round_, at_us, extent)
        except HeadwaterError as error:
            log.warning("cannot see how far the reports of a broker have been read, timeouts wait for it: %s", error)
        except Exception:
            log.exception("cannot see how far the reports of a broker have been read")
        finally:
            with self._lock:
                self._busy.discard(number)
                self._look_from[number] = time.monotonic() + pause_s

    def _note(self, number: int, round_: int, at_us: int, extent: Extent) -> None:
        with self._lock:
            if round_ != self._round:
                return
            seen = self._seen.get(number)
            if seen is None or seen.log_id != extent.log_id:
                seen = self._seen[number] = _Seen(extent.log_id)
            before_us = seen.read_us
            if extent.is_read:
                seen.read_us, seen.mark = at_us, None
            elif seen.mark is None:
                seen.mark = (at_us, extent.ends)
            elif extent.has_passed(seen.mark[1]):
                seen.read_us, seen.mark = seen.mark[0], (at_us, extent.ends)
            has_moved = seen.read_us != before_us
            self._has_news = self._has_news or has_moved
            self._tell(seen, extent, has_moved=has_moved)
        if has_moved:
            self._wake()

    def _tell(self, seen: _Seen, extent: Extent, *, has_moved: bool) -> None:
        if extent.unfollowed is not None and extent.log_id not in self._unfollowed:
            self._unfollowed.add(extent.log_id)
            what = "timeouts of devices of log %s do not wait for unread reports: %s"
            log.warning(what, extent.log_id, extent.unfollowed)
        if has_moved:
            if seen.is_told:
                log.info("the status job reads the reports of log %s again: timeouts go on", seen.log_id)
            seen.waits_since, seen.is_told = None, False
        elif seen.waits_since is None:
            seen.waits_since = time.monotonic()
        elif not seen.is_told and time.monotonic() - seen.waits_since >= _TELL_AFTER_S:
            seen.is_told = True
            log.warning(
                "timeouts of devices of log %s wait: the status job has not read all of its reports. Is it running?",
                seen.log_id,
            )
