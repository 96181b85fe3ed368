"""What the end of a machine does to a JVM that in tests lives on through a power cut of its disk."""

from __future__ import annotations

from pyspark.sql import SparkSession


def forget_files(spark: SparkSession) -> None:
    """Closes files that a failed write has left open, which would keep the disk busy, and forgets the tables."""
    spark._jvm.System.gc()
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
