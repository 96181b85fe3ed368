"""Several jobs in one process: one local session, one stop, one view of how they do (`headwater jobs run`).

`kinds` are the jobs as the runner sees them, `catalogue` makes them from the settings, `runner` keeps them running,
`progress` shows them, `alerts` says when one lags or stops.
"""

from __future__ import annotations

from pipelines.jobs.catalogue import JOB_NAMES
from pipelines.jobs.command import run

__all__ = ["JOB_NAMES", "run"]
