"""Handles Ctrl-C and SIGTERM during the demo, and reserves stdout for results."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO


class Interrupt:
    """The first signal asks for the end; the second one ends at once with KeyboardInterrupt.

    Create it in the main thread, after the Spark session, whose own handler it replaces permanently.
    """

    def __init__(self) -> None:
        self._asked = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    def asked(self) -> bool:
        return self._asked.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits that long, or until the end is requested; returns whether it is requested."""
        return self._asked.wait(seconds)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked.is_set():
            raise KeyboardInterrupt
        self._asked.set()


@contextmanager
def stdout_for_results() -> Iterator[TextIO]:
    """Redirects stdout of this process and its children to stderr, and yields the real stdout."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    results = os.fdopen(os.dup(kept), "w")
    try:
        yield results
    finally:
        results.close()
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
