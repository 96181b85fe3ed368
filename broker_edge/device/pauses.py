"""The pauses between attempts at what must succeed in the end."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)

AGAIN_FIRST_S = 5.0
_AGAIN_MAX_S = 300.0


def pauses(first_s: float = AGAIN_FIRST_S) -> Iterator[float]:
    """Doubles up to 5 minutes. Each differs by up to a quarter, so that the devices of a fleet do not come at once."""
    for tries in itertools.count():
        yield min(first_s * 2.0 ** min(tries, 30), _AGAIN_MAX_S) * random.uniform(0.75, 1.25)


async def until_stored(write: Callable[[], None], first_s: float) -> None:
    """Repeats a write of how a command ended until the disk takes it."""
    waits = pauses(first_s)
    while True:
        try:
            write()
        except OSError as error:
            pause_s = next(waits)
            log.warning("the device cannot store how a command ended (%s): again in %.0f s", error, pause_s)
            await asyncio.sleep(pause_s)
        else:
            return
