"""Lets a running Spark session reach object stores with the options of the settings.

The values go into the session's Hadoop configuration, and nowhere else: Spark's own settings are on command lines, in
event logs and on pages of its UI. The session must bring the jars of its stores itself ([docs/spark.md]).
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from broker_edge.errors import SetupError
from pipelines.spark.decision import DATABRICKS_ENV
from pipelines.spark.jars import S3A_EXCLUDES, S3A_PACKAGES
from sinks.probe import require_safe_commits
from sinks.store import StoreAccess, is_s3

_FILE_SYSTEM = "org.apache.hadoop.fs.s3a.S3AFileSystem"


def reach_stores(spark: SparkSession, access: StoreAccess, paths: Iterable[str | None]) -> None:
    """Call before the session opens any of `paths` (tables and checkpoints) for the first time. Does nothing without a
    path in S3. Raises SetupError without the jars, ConfigError for a secret that cannot be read, and StoreError for a
    store that refuses or does not answer: Spark would say so late, and in many lines."""
    wanted = [path for path in paths if path is not None and is_s3(path)]
    # The platform reaches its stores with the rights of the cluster.
    if not wanted or DATABRICKS_ENV in os.environ:
        return
    context = getattr(spark, "_jsc", None)
    if context is None:
        raise SetupError("storage.options cannot be set through Spark Connect: give them to the server")
    configuration = context.hadoopConfiguration()
    for name, value in access.hadoop().items():
        configuration.set(name, value)
    if configuration.get("fs.s3.impl") is None:
        # Users write s3:// as everywhere else.
        configuration.set("fs.s3.impl", _FILE_SYSTEM)
        configuration.set("fs.AbstractFileSystem.s3.impl", "org.apache.hadoop.fs.s3a.S3A")
    for path in wanted:
        _open(spark, path, configuration)
        require_safe_commits(path, access)


def _open(spark: SparkSession, path: str, configuration: object) -> None:
    try:
        spark._jvm.org.apache.hadoop.fs.Path(path).getFileSystem(configuration)
    except Py4JJavaError as error:
        text = str(error.java_exception)
        if "ClassNotFound" not in text:
            raise SetupError(f"Spark cannot open {path}: {' '.join(text.split())[:300]}") from error
        packages, excludes = ", ".join(S3A_PACKAGES), ",".join(S3A_EXCLUDES)
        raise SetupError(
            f"Spark has no jars for {path}: set spark.packages to [{packages}] and spark.jars.excludes in spark.conf "
            f"to {excludes}"
        ) from error
