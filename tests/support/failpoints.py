"""Points of the telemetry job at which a test has it killed or held, told by a file: no waiting for the right moment.

What happens there is in `failpoint_site/sitecustomize.py`, which the job's processes run before anything else.
"""

from __future__ import annotations

import enum
import os
from pathlib import Path


class Point(enum.StrEnum):
    PLANNING = "planning"
    OFFSETS = "offsets"
    READING = "reading"
    COMMITTED = "committed"
    """Of `bronze.writer: files` only; the native sink has no Python at that place."""


class Action(enum.StrEnum):
    KILL_JOB = "kill-job"
    KILL_WORKER = "kill-worker"
    HOLD = "hold"


class Failpoints:
    """The points of one job; at most one of them is armed."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    @property
    def environment(self) -> dict[str, str]:
        """For the job's processes."""
        site = str(Path(__file__).parent / "failpoint_site")
        known = os.environ.get("PYTHONPATH", "")
        return {"FAILPOINT_FOLDER": str(self._folder), "PYTHONPATH": os.pathsep.join(filter(None, [site, known]))}

    def arm(self, point: Point, action: Action) -> None:
        """The next process that comes to `point` does `action`."""
        self.release()
        fresh = self._folder / "arming"
        fresh.write_text(f"{point} {action}")
        fresh.rename(self._folder / "armed")

    @property
    def was_hit(self) -> bool:
        return (self._folder / "hit").exists()

    def release(self) -> None:
        """Lets go who is held, and disarms."""
        for name in ("armed", "hit"):
            (self._folder / name).unlink(missing_ok=True)
