"""What was done to a cluster and when, as lines of a file beside its data: whoever reads a finding needs the order."""

from __future__ import annotations

import threading
import time
from pathlib import Path


class History:
    """Lines with the seconds since its beginning and the time of the day in UTC, as logs of nodes have it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def tell(self, text: str) -> None:
        now = time.time()
        clock = time.strftime("%H:%M:%S", time.gmtime(now))
        line = f"{time.monotonic() - self._began:9.3f} {clock}.{int(now % 1 * 1000):03} {text}\n"
        with self._lock, self._path.open("a") as out:
            out.write(line)
