"""The state of a running demo: the devices' counts, the rows in bronze, the outcome of the action.

Bronze is watched through its Delta log only: each commit lists what it added with the number of rows.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path

from pipelines.demo.account import added_files, commit_path, commit_versions
from pipelines.demo.action import Outcome
from pipelines.demo.devices import DeviceCounts


class BronzeTail:
    """Counts the rows of commits made after this object was created. Bronze need not exist yet."""

    def __init__(self, bronze: Path) -> None:
        self._bronze = bronze
        self._version = max(commit_versions(bronze), default=-1)
        self._rows = 0

    @property
    def version(self) -> int:
        return self._version

    def rows(self) -> int:
        """The rows so far, according to the current log."""
        for version in commit_versions(self._bronze, after=self._version):
            for add in added_files(commit_path(self._bronze, version)):
                self._rows += int(json.loads(add["stats"])["numRecords"])
            self._version = version
        return self._rows


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One snapshot of the whole pipeline. `rows` counts what devices published, `published_per_s` is since the previous
    one."""

    seconds: float
    counts: DeviceCounts
    rows: int
    outcome: Outcome
    published_per_s: float = 0.0
    at: float = field(default_factory=time.monotonic)

    @property
    def lag(self) -> int:
        """Messages acknowledged but not yet in bronze."""
        return max(0, self.counts.acked - self.rows)

    def following(self, before: Snapshot | None) -> Snapshot:
        """This snapshot with its rate since `before`."""
        if before is None or self.at <= before.at:
            return self
        rate = (self.counts.published - before.counts.published) / (self.at - before.at)
        return Snapshot(self.seconds, self.counts, self.rows, self.outcome, rate, self.at)
