"""Keeps Python's collector of cyclic garbage away from a million values that live on and hold no cycles.

A collection looks at all objects that it tracks. While a turn makes values by the hundred thousand, it starts again and
again, and finds nothing: a quarter of the time of such a turn.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_FROZEN_MIN = 100_000
"""With fewer values a collection takes milliseconds."""


@contextmanager
def paused_collector() -> Iterator[None]:
    """No collection until the end; the next one then finds what this time left. A collector that somebody has turned
    off stays off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def freeze_if_many(values: int) -> None:
    """Takes everything that exists now out of later collections, if it is worth it. What is no longer referred to is
    freed as before, except for cycles that become garbage later."""
    if values >= _FROZEN_MIN:
        gc.collect()
        gc.freeze()
