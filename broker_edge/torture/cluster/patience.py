"""Deadlines that count only the time in which this process runs, so that a starved machine is no absent broker."""

from __future__ import annotations

import time

_STEP_S = 0.5
"""Whoever waits looks more often. A longer time between two looks is one in which nobody got to run."""


class Patience:
    """Ends `seconds` after it was made, or later. Whoever waits looks at least each `step_s`."""

    def __init__(self, seconds: float, *, step_s: float = _STEP_S) -> None:
        self._left, self._step_s, self._last = seconds, step_s, time.monotonic()

    def is_over(self) -> bool:
        now = time.monotonic()
        self._left -= min(now - self._last, self._step_s)
        self._last = now
        return self._left <= 0
