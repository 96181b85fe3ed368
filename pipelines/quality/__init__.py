"""Quality: one rules file per message schema, judged on every row of a batch and, as a suite, on samples.

`rules` is the file and its column expressions, `suite` the same for Great Expectations, `job` the schedule and its
command line (`python -m pipelines.quality --help`).
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see `pipelines.jobs.process` for the exit codes."""
    from pipelines.quality.job import main as run

    return run(arguments)
