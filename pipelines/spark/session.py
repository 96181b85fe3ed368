"""The Spark session of a process: the one that somebody else configured, or a local one with Delta from local jars.

`decision` says whose session it is, `needs` checks it. For every session the source `headwater` is registered and time
is in UTC. Only for a local one are addresses, memory, jars and the interpreter of the workers chosen here: no path of
this machine is sent to an executor of a cluster.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from broker_edge.errors import SetupError
from broker_edge.extras import needed, require

with needed("a Spark session"):
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

from pipelines.settings import SparkSettings
from pipelines.spark import class_archive, worker_daemon
from pipelines.spark.decision import Decider, Decision, Surroundings, decide, read_defaults
from pipelines.spark.jars import delta_jars
from pipelines.spark.java import SHORT_RUN_JVM, require_java
from pipelines.spark.needs import CATALOG, CATALOG_CONF, EXTENSION, EXTENSION_CONF, require_delta
from pipelines.spark.pack import ARCHIVE, NAME, PYTHON
from pipelines.spark.worker_python import is_local_python, worker_python
from sources import register

log = logging.getLogger(__name__)

DEFAULT_CORES = "local[2,4]"
"""Two task slots, four attempts per task: a restart of the broker must not end a query."""

_DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_STACK = "-Xss16m"
"""`query.stop()` inside a Python foreachBatch overflows the default stack of the stream thread."""
_JAVA_OPTIONS = f"{_STACK} -Duser.timezone=UTC"

SHORT_RUN: Mapping[str, str] = {_DRIVER_OPTIONS: f"{_JAVA_OPTIONS} {SHORT_RUN_JVM}"}
"""For `config`, if a session lives for minutes and reads little: half the CPU until the first batch, because such a
session is too short to profit from the optimizing compiler. Bad for throughput."""

TRAVELS: Mapping[str, str] = {
    EXTENSION_CONF: EXTENSION,
    CATALOG_CONF: CATALOG,
    "spark.sql.session.timeZone": "UTC",
    # Without fair pools the first query holds every slot while its batch runs.
    "spark.scheduler.mode": "FAIR",
    "spark.python.daemon.module": worker_daemon.__name__,
}
"""What every session gets before it starts, unless somebody has set it: names, no paths and no addresses."""

PYTHON_CONF = "spark.pyspark.python"
_PYTHON_ENV = "PYSPARK_PYTHON"
_CONNECT_PYTHON_CONF = "spark.sql.execution.pyspark.python"
_TIME_ZONE_CONF = "spark.sql.session.timeZone"


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session, and who decided about it."""

    spark: SparkSession
    decision: Decision

    def close(self) -> None:
        """Stops the session, unless others use it too."""
        if not self.decision.is_shared:
            self.spark.stop()


def open_session(
    app_name: str,
    settings: SparkSettings,
    *,
    jars_folder: Path | None = None,
    config: Mapping[str, str] | None = None,
) -> OpenSession:
    """The session of the process; see `decision` for whose it is.

    `config` overrides the settings file, and both yield to what the decider has set. Raises a one-sentence
    `SetupError` if something that the session needs is missing.
    """
    environment = dict(os.environ)
    around = Surroundings(environment, read_defaults(environment), _active() is not None)
    decision = decide(around, settings)
    log.info("%s", decision.sentence)
    wanted = settings.conf | dict(config or {})
    if decision.is_local:
        spark = _local(app_name, settings, decision, wanted, jars_folder)
    else:
        spark = _outside(app_name, settings, decision, wanted, around)
        _prepare(spark, decision, wanted)
    register_source(spark)
    return OpenSession(spark, decision)


def spark_session(
    app_name: str,
    *,
    cores: str = DEFAULT_CORES,
    warehouse: Path | None = None,
    jars_folder: Path | None = None,
    driver_memory: str = "1g",
    config: Mapping[str, str] | None = None,
) -> SparkSession:
    """The session of the process for a notebook or a program; created on the first call.

    `cores`, `warehouse` (the folder of tables without a path, default: Spark's own, under the current folder) and
    `driver_memory` count only where Spark runs in this process; `config` overrides any setting made here. Raises a
    one-sentence `SetupError` without Java or the Delta jars.
    """
    settings = SparkSettings(
        cores=cores,
        driver_memory=driver_memory,
        warehouse=None if warehouse is None else str(warehouse),
    )
    return open_session(app_name, settings, jars_folder=jars_folder, config=config).spark


def session_of(app_name: str, settings: SparkSettings) -> SparkSession:
    """The session of a job that does not stop it. Raises the errors of `open_session`."""
    return open_session(app_name, settings).spark


def register_source(spark: SparkSession) -> None:
    """Registers `format("headwater")` in a session that was created elsewhere."""
    register(spark)


def _active() -> SparkSession | None:
    """The session of this process, classic or Connect, if there is one."""
    if "pyspark.sql.connect.session" in sys.modules:
        from pyspark.sql.connect.session import SparkSession as ConnectSession

        found: SparkSession | None = ConnectSession.getActiveSession()
        if found is not None:
            return found
    if SparkContext._active_spark_context is None:
        return None
    classic: SparkSession | None = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    return classic


def _outside(
    app_name: str, settings: SparkSettings, decision: Decision, wanted: Mapping[str, str], around: Surroundings
) -> SparkSession:
    """The session that somebody else configured. What they have set is not changed."""
    if decision.by is Decider.ACTIVE:
        active = _active()
        assert active is not None, "the decision rests on an active session"
        return active
    if decision.by is Decider.DATABRICKS:
        return SparkSession.builder.getOrCreate()
    if decision.remote is not None:
        return _connect(app_name, decision.remote)
    _forget_local_python()
    builder = SparkSession.builder.appName(app_name)
    if decision.master is None:
        # spark-submit has started the JVM with what it was given.
        SparkContext._ensure_initialized()
        said = dict(SparkConf().getAll())
    else:
        require_java()
        said = dict(around.defaults)
        builder = builder.master(decision.master)
    mine = cluster_conf(settings, wanted, said, starts_jvm=decision.starts_jvm)
    for key, value in mine.items():
        builder = builder.config(key, value)
    python = mine.get(PYTHON_CONF) or said.get(PYTHON_CONF)
    if python is not None:
        # Spark takes the interpreter of the workers from this variable alone if Python started the JVM.
        os.environ.setdefault(_PYTHON_ENV, python)
    _require_python_here(os.environ.get(_PYTHON_ENV, ""))
    return builder.getOrCreate()


def cluster_conf(
    settings: SparkSettings, wanted: Mapping[str, str], said: Mapping[str, str], *, starts_jvm: bool
) -> dict[str, str]:
    """The settings to add to a session on a cluster: those that nobody has made (`said`)."""
    mine = dict(TRAVELS)
    if starts_jvm:
        mine[_DRIVER_OPTIONS] = _STACK
        mine["spark.driver.memory"] = settings.driver_memory
        if settings.packages:
            mine["spark.jars.packages"] = ",".join(settings.packages)
    if settings.warehouse is not None:
        mine["spark.sql.warehouse.dir"] = settings.warehouse
    mine |= wanted
    return {key: value for key, value in mine.items() if key not in said}


def _connect(app_name: str, remote: str) -> SparkSession:
    require(f"Spark Connect ({remote})", "grpc", "grpc_status", "google.rpc", "zstandard")
    spark = SparkSession.builder.remote(remote).appName(app_name).getOrCreate()
    if Path(ARCHIVE).is_file():
        # The server runs Python in a folder of the session, to which only the client can send the archive.
        spark.addArtifacts(f"{Path(ARCHIVE).absolute()}#{NAME}", archive=True)
        spark.conf.set(_CONNECT_PYTHON_CONF, PYTHON)
    else:
        log.info("%s has no %s, so the server must have headwater in its own Python", Path.cwd(), ARCHIVE)
    return spark


def _prepare(spark: SparkSession, decision: Decision, wanted: Mapping[str, str]) -> None:
    """Makes the settings that a running session still takes, and checks what it must have."""
    if decision.by is not Decider.DATABRICKS:
        require_delta(spark)
    if decision.starts_jvm or decision.by is Decider.SUBMIT:
        return
    for key, value in {_TIME_ZONE_CONF: TRAVELS[_TIME_ZONE_CONF], **wanted}.items():
        try:
            spark.conf.set(key, value)
        except PySparkException:
            log.warning("the running Spark session does not take %s: set it where the session is started", key)


def _require_python_here(python: str) -> None:
    """The driver plans the batches of a Python source in a worker of its own, with the interpreter of the executors."""
    if "/" in python and not os.access(python, os.X_OK):
        raise SetupError(
            f"the driver, too, runs {python}, and {Path.cwd()} has none: unpack the archive of `headwater spark pack` "
            "there, or start the job in the folder that `headwater spark pack` made"
        )


def _forget_local_python() -> None:
    """The interpreter of an earlier local session of this process is a path of this machine."""
    if is_local_python(os.environ.get(_PYTHON_ENV, "")):
        del os.environ[_PYTHON_ENV]


def _local(
    app_name: str, settings: SparkSettings, decision: Decision, wanted: Mapping[str, str], jars_folder: Path | None
) -> SparkSession:
    require_java()
    jars = delta_jars(jars_folder)
    _let_workers_import_us()
    chosen = _local_conf(jars, settings) | dict(wanted)
    archive = class_archive.options(jars[0].parent)
    chosen[_DRIVER_OPTIONS] = f"{chosen[_DRIVER_OPTIONS]} {archive}".rstrip()
    builder = SparkSession.builder.master(decision.master).appName(app_name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _local_conf(jars: list[Path], settings: SparkSettings) -> dict[str, str]:
    found = {
        **TRAVELS,
        "spark.jars": ",".join(str(jar.absolute()) for jar in jars),
        # The defaults (50 and 200 tasks) cost more than the work at this size.
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.sql.shuffle.partitions": "2",
        # The number of tasks with which Delta's VACUUM lists files: the default, 10,000, takes a minute per table on
        # two busy cores.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
        _DRIVER_OPTIONS: _JAVA_OPTIONS,
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
    }
    if settings.packages:
        found["spark.jars.packages"] = ",".join(settings.packages)
    if settings.warehouse is not None:
        found["spark.sql.warehouse.dir"] = str(Path(settings.warehouse).absolute())
    return found


def _let_workers_import_us() -> None:
    """Python workers must run this interpreter, and must find `sources` whatever the current folder is."""
    # Avoids a warning about host names; nothing here listens on other addresses.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    root = str(Path(__file__).resolve().parents[2])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if "site-packages" not in root and root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, known)])
    os.environ[_PYTHON_ENV] = worker_python()
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
