"""Up to when the job has read what devices reported, although the clock may be set at any time.

A target may only time out after the reports from before that moment were read. Reports are read in parts, and the clock
of the machine may be set ahead or back between two turns.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from actions.engine import STEP_US
from actions.reading import Readings
from actions.table_store import News

log = logging.getLogger(__name__)

_HOLD_US = 600 * 1_000_000
"""How long nothing times out after the clock was set ahead: somebody may set it back."""
_NOTHING: Mapping[str, int] = {}


class Heard:
    """`steady_us` is a clock that nobody can set. Without `readings` nothing is known of single logs."""

    def __init__(self, steady_us: Callable[[], int], readings: Readings | None) -> None:
        self._steady_us = steady_us
        self._readings = readings
        self._clocks: tuple[int, int] | None = None
        """What both clocks showed at the last turn."""
        self._held: tuple[int, int] | None = None
        """After the clock was set ahead: the time before that, and when the hold ends, by the steady clock."""
        self._us = 0
        self._next: tuple[int, int, Mapping[str, int]] | None = None
        """Once reports up to this version have been read, all reports up to this time have been, and in the logs up to
        these times."""
        self._of_logs = _NOTHING
        self._reading = _NOTHING
        """`of_logs` of the status job, before the last look at the tables."""

    @property
    def us(self) -> int:
        """All reports up to this time have been read. It stands still while the clock is ahead; 0: nothing was read."""
        return self._us if self._held is None else min(self._us, self._held[0])

    @property
    def of_logs(self) -> Mapping[str, int] | None:
        """By log: all reports in it up to this time have been read, by both jobs. None: nobody knows."""
        return None if self._readings is None else self._of_logs

    @property
    def is_held(self) -> bool:
        return self._held is not None

    @property
    def is_behind(self) -> bool:
        """Whether reports are known that have not been read."""
        return self._next is not None

    def look(self) -> None:
        """Call it before the look at the tables: what the status job had written by now is in what that finds."""
        if self._readings is not None:
            self._reading = self._readings.known()

    def step_us(self, now_us: int) -> int:
        """By how much somebody has set the clock since the last turn; 0: not at all. What was read so far then says
        nothing about the time to come."""
        steady_us = self._steady_us()
        before, self._clocks = self._clocks, (now_us, steady_us)
        if self._held is not None and steady_us >= self._held[1]:
            self._held = None
        by_us = 0 if before is None else (now_us - before[0]) - (steady_us - before[1])
        if abs(by_us) <= STEP_US:
            return 0
        what = "ahead" if by_us > 0 else "back"
        log.warning("the clock was set %s by %d s: timeouts do not count this time", what, abs(by_us) // 1_000_000)
        self._held = (now_us - by_us, steady_us + _HOLD_US) if by_us > 0 else None
        self._us, self._next = min(self._us, now_us), None
        self._of_logs = self._reading = _NOTHING
        if self._readings is not None:
            self._readings.forget()
        return by_us

    def note(self, news: News, now_us: int) -> None:
        reached = news.read.reports
        if reached >= news.newest_reports:
            self._us, self._of_logs, self._next = now_us, self._reading, None
            return
        if self._next is not None and reached >= self._next[0]:
            _, self._us, self._of_logs = self._next
            self._next = None
        if self._next is None:
            self._next = (news.newest_reports, now_us, self._reading)


def system_us() -> int:
    return time.monotonic_ns() // 1_000
