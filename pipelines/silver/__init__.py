"""Silver: turns bronze into one table per message type according to schemas and rules, and moves bad records to
quarantine.

`schema` and `plan` are values; `payloads`, `sparkplug`, `columns` and `split` parse and divide records; `batch` writes;
`job` is the stream and its command line (`python -m pipelines.silver --help`).
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see `pipelines.jobs.process` for the exit codes."""
    from pipelines.silver.job import main as run

    return run(arguments)
