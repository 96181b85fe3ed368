"""Several jobs in one process: one stop signal, one progress display.

`kinds` defines jobs as the runner sees them, `runner` keeps them running, `progress` shows them, `alerts` reports lag
and stopped jobs; the command lines of single jobs share `process`. None of them knows what a job does:
`pipelines.catalogue` creates the jobs.
"""

from typing import TYPE_CHECKING

from broker_edge.moved import old_names

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
