"""Waits for a state without an event: a status over HTTP, a file that another process writes."""

from __future__ import annotations

import time
from collections.abc import Callable

_EVERY_S = 0.02


def wait_until(is_so: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Returns when the condition holds; raises TimeoutError with `what` otherwise."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what}")
        time.sleep(_EVERY_S)
