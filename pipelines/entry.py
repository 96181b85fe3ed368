"""The jobs as entry points of the wheel, for platforms that call a function by name (`databricks.yml`).

A successful job returns, because such platforms treat any SystemExit as a failure, even with code 0.
"""

from __future__ import annotations

import sys


def telemetry() -> None:
    """`headwater-telemetry`: `pipelines.telemetry` with the arguments of the command line."""
    from pipelines.telemetry import main

    _end(main())


def status() -> None:
    """`headwater-status`: `pipelines.status`."""
    from pipelines.status import main

    _end(main())


def actions() -> None:
    """`headwater-actions`: `pipelines.actions`, the engine."""
    from pipelines.actions import main

    _end(main())


def silver() -> None:
    """`headwater-silver`: `pipelines.silver`."""
    from pipelines.silver import main

    _end(main())


def gaps() -> None:
    """`headwater-gaps`: `pipelines.gaps`."""
    from pipelines.gaps import main

    _end(main())


def quality() -> None:
    """`headwater-quality`: `pipelines.quality`, the suite."""
    from pipelines.quality import main

    _end(main())


def maintenance() -> None:
    """`headwater-maintenance`: `pipelines.maintenance`."""
    from pipelines.maintenance import main

    _end(main())


def jobs() -> None:
    """`headwater_job.py jobs JOB…`: `pipelines.run_jobs`, several jobs in one process with one session."""
    from pipelines.run_jobs import main

    _end(main())


_JOBS = {
    "telemetry": telemetry,
    "status": status,
    "actions": actions,
    "silver": silver,
    "gaps": gaps,
    "quality": quality,
    "maintenance": maintenance,
    "jobs": jobs,
}


def main() -> None:
    """The job that the first argument names, with the other arguments: for `spark-submit`, which runs one program."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in _JOBS:
        sys.stderr.write(f"error: {name!r} is not a job: name one of {', '.join(_JOBS)}\n")
        sys.exit(2)
    del sys.argv[1]
    _JOBS[name]()


def _end(code: int) -> None:
    if code:
        sys.exit(code)
