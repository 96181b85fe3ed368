"""The scheduler pool of a streaming query: with fair pools, no query holds every task slot while its batch runs.

Spark Connect has no pools per query; there the server decides.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from sinks.connect import is_connect

_POOL = "spark.scheduler.pool"


@contextmanager
def pool(spark: SparkSession, name: str) -> Iterator[None]:
    """A query that is started inside keeps the pool; later work of the thread is unaffected."""
    if is_connect(spark):
        yield
        return
    spark.sparkContext.setLocalProperty(_POOL, name)
    try:
        yield
    finally:
        spark.sparkContext.setLocalProperty(_POOL, None)
