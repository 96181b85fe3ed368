"""The fleet's own log: the actions of each simulated device as JSON lines, for comparison with what the tables say.

Each line is one append to the file, so several processes can share it.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class FleetLog:
    """Without a path nothing is written, but `counts` is still kept."""

    def __init__(self, path: Path | None = None) -> None:
        self._file: int | None = None
        if path is not None:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self.counts: Counter[str] = Counter()

    def add(self, device_id: str, event: str, **fields: Any) -> None:
        """`event` is one of online, command, ignored, begun, step, resume, told, fault, restart."""
        self.counts[f"{event}:{fields['state']}" if event == "told" else event] += 1
        if self._file is not None:
            line = {"ts": time.time_ns() // 1_000, "device_id": device_id, "event": event, **fields}
            os.write(self._file, (json.dumps(line, separators=(",", ":"), ensure_ascii=False) + "\n").encode())

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def read(path: Path) -> Iterable[dict[str, Any]]:
    """The lines of a fleet's log. The log may still grow: an incomplete last line is skipped."""
    with path.open() as lines:
        for line in lines:
            if line.endswith("\n"):
                yield json.loads(line)


def last_told(path: Path) -> dict[tuple[str, str, int], str]:
    """The last reported state by (device, action, attempt)."""
    found: dict[tuple[str, str, int], str] = {}
    for line in read(path):
        if line["event"] == "told" and line["action_id"]:
            found[line["device_id"], line["action_id"], line["attempt"]] = line["state"]
    return found
