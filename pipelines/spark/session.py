"""The Spark session for local runs and tests: Delta from local jars, UTC, small shuffles, `headwater` registered.

On a cluster the platform creates the session; there only `register_source` is needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.settings import SparkSettings
from pipelines.spark import worker_daemon
from pipelines.spark.jars import delta_jars
from pipelines.spark.java import require_java
from pipelines.spark.worker_python import worker_python
from sources import register

DEFAULT_CORES = "local[2,4]"
"""Two task slots, four attempts per task: a restart of the broker must not end a query."""

_JAVA_OPTIONS = "-Xss16m -Duser.timezone=UTC"
"""`query.stop()` inside a Python foreachBatch overflows the default stack of the stream thread."""

SHORT_RUN: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": f"{_JAVA_OPTIONS} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
}
"""For `config`, if a session lives for minutes and reads little: half the CPU until the first batch, because such a
session is too short to profit from the optimizing compiler. Bad for throughput."""

DATABRICKS_ENV = "DATABRICKS_RUNTIME_VERSION"
"""Set on every Databricks cluster."""


def spark_session(
    app_name: str,
    *,
    cores: str = DEFAULT_CORES,
    warehouse: Path | None = None,
    jars_folder: Path | None = None,
    driver_memory: str = "1g",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """Returns the session of the process, created on the first call. There is one per process, with the JVM settings of
    that call.

    `warehouse` is the folder of tables without a path (default: Spark's own, under the current folder). `config`
    overrides any setting made here. Raises a one-sentence `SetupError` without Java or the Delta jars. On Databricks it
    returns the platform's session, with the settings of its cluster.
    """
    if DATABRICKS_ENV in os.environ:
        spark = SparkSession.builder.getOrCreate()
        register_source(spark)
        return spark
    require_java()
    jars = delta_jars(jars_folder)
    _let_workers_import_us()
    settings = _settings(jars, driver_memory)
    if warehouse is not None:
        settings["spark.sql.warehouse.dir"] = str(warehouse.absolute())
    settings.update(config or {})
    builder = SparkSession.builder.master(cores).appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register_source(spark)
    return spark


def session_of(app_name: str, settings: SparkSettings) -> SparkSession:
    """The session of a job according to the settings file. Raises the errors of `spark_session`."""
    return spark_session(
        app_name,
        cores=settings.cores,
        driver_memory=settings.driver_memory,
        warehouse=None if settings.warehouse is None else Path(settings.warehouse),
    )


def register_source(spark: SparkSession) -> None:
    """Registers `format("headwater")` in a session that was created elsewhere."""
    register(spark)


def _settings(jars: list[Path], driver_memory: str) -> dict[str, str]:
    return {
        "spark.jars": ",".join(str(jar.absolute()) for jar in jars),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.session.timeZone": "UTC",
        # Without fair pools the first query holds every slot while its batch runs.
        "spark.scheduler.mode": "FAIR",
        # The defaults (50 and 200 tasks) cost more than the work at this size.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        # The number of tasks with which Delta's VACUUM lists files: the default, 10,000, takes a minute per table on
        # two busy cores.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
        "spark.python.daemon.module": worker_daemon.__name__,
        "spark.driver.extraJavaOptions": _JAVA_OPTIONS,
        "spark.driver.memory": driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }


def _let_workers_import_us() -> None:
    """Python workers must run this interpreter, and must find `sources` whatever the current folder is."""
    # Avoids a warning about host names; nothing here listens on other addresses.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if "site-packages" not in root and root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, known)])
    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
