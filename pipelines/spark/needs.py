"""Checks what a session that somebody else configured must already have: Delta's extension, its catalog, its jars.

Works the same way on a classic session and over Spark Connect, because it only asks for settings and plans a read.
"""

from __future__ import annotations

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from broker_edge.errors import SetupError
from pipelines.spark.jars import DELTA_PACKAGE
from sinks.connect import is_connect

EXTENSION_CONF = "spark.sql.extensions"
EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
CATALOG_CONF = "spark.sql.catalog.spark_catalog"
CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

_NO_TABLE = "file:///headwater-asks-whether-delta-is-installed"


def require_delta(spark: SparkSession) -> None:
    """Raises a one-sentence `SetupError` that names the option of `spark-submit` (or of the Connect server) to add."""
    where = "start the Spark Connect server with" if is_connect(spark) else "give spark-submit"
    if not _has_jars(spark):
        raise SetupError(
            f"Spark has no Delta: {where} --packages {DELTA_PACKAGE}, or put its jars on the cluster (settings file: "
            f"spark.packages: [{DELTA_PACKAGE}])"
        )
    extensions = _conf(spark, EXTENSION_CONF)
    if EXTENSION not in extensions.split(","):
        value = ",".join(filter(None, [extensions, EXTENSION]))
        raise SetupError(f"Spark runs without Delta's extension: {where} --conf {EXTENSION_CONF}={value}")
    catalog = _conf(spark, CATALOG_CONF)
    if not catalog:
        raise SetupError(f"Spark runs without Delta's catalog: {where} --conf {CATALOG_CONF}={CATALOG}")


def _conf(spark: SparkSession, name: str) -> str:
    try:
        return str(spark.conf.get(name, "") or "")
    except PySparkException:
        return ""


def _has_jars(spark: SparkSession) -> bool:
    """Delta reports that there is no table; a Spark without Delta reports that it does not know the format."""
    try:
        spark.read.format("delta").load(_NO_TABLE).schema  # noqa: B018 (Connect asks the server only here)
    except (PySparkException, Py4JJavaError) as error:
        unknown = ("DATA_SOURCE_NOT_FOUND", "CANNOT_LOAD_CATALOG", "ClassNotFoundException")
        return not any(sign in str(error) for sign in unknown)
    return True
