"""Several jobs in one process: one local session, one stop, one view of how they do (`headwater jobs run`).

`kinds` are the jobs as the runner sees them, `catalogue` makes them from the settings, `runner` keeps them running,
`progress` shows them, `alerts` says when one lags or stops.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def run(wanted: Sequence[str], *, config: Path | None, available_now: bool, as_json: bool, webhook: str | None) -> int:
    """Runs the jobs until a signal, their own end, or the failure of one; returns the exit code."""
    # Jobs use the runner too, so the catalogue of all of them is not imported with it.
    from pipelines.jobs.command import run as run_command

    return run_command(wanted, config=config, available_now=available_now, as_json=as_json, webhook=webhook)
