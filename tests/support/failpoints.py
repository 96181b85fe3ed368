"""Points of the telemetry job at which a test kills or holds it, selected by a file: no waiting for the right moment.

The actions are in `failpoint_site/sitecustomize.py`, which the job's processes run before anything else.
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
    """For `bronze.writer: files` only; the native sink runs no Python there."""


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
        """Environment variables for the job's processes."""
        site = str(Path(__file__).parent / "failpoint_site")
        known = os.environ.get("PYTHONPATH", "")
        return {"FAILPOINT_FOLDER": str(self._folder), "PYTHONPATH": os.pathsep.join(filter(None, [site, known]))}

    def arm(self, point: Point, action: Action) -> None:
        """The next process that reaches `point` does `action`."""
        self.release()
        fresh = self._folder / "arming"
        fresh.write_text(f"{point} {action}")
        fresh.rename(self._folder / "armed")

    @property
    def was_hit(self) -> bool:
        return (self._folder / "hit").exists()

    def release(self) -> None:
        """Releases held processes, and disarms."""
        for name in ("armed", "hit"):
            (self._folder / name).unlink(missing_ok=True)
