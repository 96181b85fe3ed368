"""Handles the end of Spark's JVM during a job: either it failed, or a service manager stopped all processes of the
service.

The first case is an error with a message, the second is not: a started batch is either complete or absent, and the next
start replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from broker_edge.errors import JobFailedError

CALL_ERRORS = (ConnectionError, Py4JError, PySparkException)
"""Exceptions that a call into the JVM may raise. A JVM that is shutting down first answers with errors of its own. The
text of those can no longer be fetched, so do not access it."""


def is_jvm_gone(error: BaseException) -> bool:
    """Whether a call into the JVM failed because the JVM is gone."""
    return isinstance(error, ConnectionError) or (isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError))


@contextmanager
def jvm_may_end(is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Put around calls into Spark: ignores their exceptions while the process stops. Otherwise turns the end of the JVM
    into a JobFailedError, and lets other errors pass."""
    try:
        yield
    except CALL_ERRORS as error:
        if is_stopping():
            return
        if not is_jvm_gone(error):
            raise
        raise JobFailedError(
            "the JVM of Spark has ended: see its last output, and check whether memory ran out (spark.driver_memory)"
        ) from error
