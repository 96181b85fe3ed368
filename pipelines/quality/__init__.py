"""Quality: one rules file per message schema, applied to every row of a batch and, as a suite, to samples.

`rules` is the file and its column expressions, `suite` the same rules for Great Expectations, `job` the scheduled check
and its command line (`python -m pipelines.quality --help`).
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see `pipelines.jobs.process` for the exit codes."""
    from pipelines.quality.job import main as run

    return run(arguments)
