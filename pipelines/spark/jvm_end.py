"""Spark's JVM may end under a job: because it failed, or because whoever stops a service tells all its processes.

The first is a failure with a sentence, the second is not one: what a batch had begun is whole or not there, and the
next start replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from broker_edge.errors import JobFailedError

CALL_ERRORS = (ConnectionError, Py4JError, PySparkException)
"""What a call into the JVM may raise. One that is ending answers with errors of its own before it is gone; the text of
those can no longer be had, so do not look at it."""


def is_jvm_gone(error: BaseException) -> bool:
    """Whether a call into the JVM failed because it is no longer there."""
    return isinstance(error, ConnectionError) or (isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError))


@contextmanager
def jvm_may_end(is_stopping: Callable[[], bool]) -> Iterator[None]:
    """Around calls into Spark: passes over what they raise while the process stops. Else the end of the JVM is a
    JobFailedError, and other errors are what they are."""
    try:
        yield
    except CALL_ERRORS as error:
        if is_stopping():
            return
        if not is_jvm_gone(error):
            raise
        raise JobFailedError(
            "the JVM of Spark has ended: see what it said last, and whether memory was short (spark.driver_memory)"
        ) from error
