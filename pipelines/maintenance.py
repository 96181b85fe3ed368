"""Maintenance of the tables: compacts small files, removes files that no version names, and removes old versions.

    python -m pipelines.maintenance [--config FILE] [--root DIR] [--once]

Tables with paths need no JVM. Compaction changes no rows, so streams that read a table do not notice it. If a table
cannot be maintained, the log names it and the job continues with the others.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from broker_edge.errors import JobFailedError
from broker_edge.sync import sync_file_system
from pipelines.jobs.process import StopSignal, run_job
from pipelines.settings import MaintenanceSettings, Settings, load_settings
from pipelines.settings.job_options import add_bronze_options, add_place_options, with_options
from pipelines.settings.places import TablePlace
from pipelines.silver.schema import load_schemas
from pipelines.spark.session import session_of
from sinks.conflicts import committed
from sinks.folder import TableFolder
from sinks.probe import require_safe_commits
from sinks.table import Table
from sinks.tables import BESIDE_SILVER, TABLES
from sinks.tables.create import own_properties
from sinks.torn_commits import repair_table

log = logging.getLogger(__name__)

JOB_NAME = "maintenance"

SMALL_FILES_MIN = 50
"""With fewer files than this, compaction is not worth a commit that could conflict with the writers of the table."""


@dataclass(frozen=True, slots=True)
class Tended:
    """What was done to a table. If `problem` is set, one sentence, the numbers say what was done before it."""

    table: str
    files: int = 0
    compacted: int = 0
    removed: int = 0
    problem: str | None = None


def tables_of(settings: Settings) -> list[Table]:
    """Every table that the settings name: bronze, silver, its companion tables, and the tables of actions."""
    telemetry, access = settings.telemetry, settings.storage.access()
    bronze = (
        Table.named(telemetry.table) if telemetry.table is not None else Table.at(telemetry.table_path or "", access)
    )
    place = TablePlace.of(settings.silver, access)
    found = [bronze, *silver_tables(settings), *(place.table(table.name) for table in BESIDE_SILVER)]
    of_actions = TablePlace(root=settings.actions.root, access=access)
    found += [of_actions.table(name) for name in TABLES]
    return list(dict.fromkeys(found))


def silver_tables(settings: Settings) -> list[Table]:
    """The tables that Spark writes even if they have paths."""
    place = TablePlace.of(settings.silver, settings.storage.access())
    return [place.table(schema.table) for schema in load_schemas(Path(settings.silver.schemas))]


def tend_all(
    tables: Sequence[Table],
    policy: MaintenanceSettings,
    *,
    spark: SparkSession | None = None,
    of_spark: Collection[Table] = (),
    is_with_spark: bool = False,
) -> list[Tended]:
    """Maintains the existing tables, one after the other. `of_spark` are tables that only the process of their Spark
    job may write; `is_with_spark` says that this is it. Otherwise those in S3 are left alone."""
    done: list[Tended] = []
    for table in tables:
        if table.path is not None:
            if not table.is_there():
                continue
            if table not in of_spark or not table.is_for_one_writer:
                done.append(tend(table, policy))
            elif spark is not None and is_with_spark:
                done.append(tend_named(spark, table, policy))
            else:
                done.append(Tended(_name(table), problem=_NOT_OURS))
        elif spark is not None and table.exists(spark):
            done.append(tend_named(spark, table, policy))
    for one in done:
        if one.problem is not None:
            log.warning("maintenance of %s: %s", one.table, one.problem)
        elif one.compacted or one.removed:
            log.info("maintenance of %s: %d files compacted, %d removed", one.table, one.compacted, one.removed)
    return done


_NOT_OURS = (
    "silver writes it to S3, where commits of two processes would replace each other: run both in one process, "
    "headwater jobs run silver maintenance"
)


def _name(table: Table) -> str:
    return (table.path or str(table)).rstrip("/").rpartition("/")[2]


def tend(table: Table, policy: MaintenanceSettings) -> Tended:
    """Maintains one table by path: properties, compaction, vacuum with orphans, checkpoint, old log files."""
    name = _name(table)
    files = compacted = removed = 0
    try:
        wanted = properties(policy)
        own = {key: value for key, value in own_properties(name).items() if key in wanted}
        committed(lambda: _set_properties(table.delta(), wanted | own), f"setting properties of {name}")
        files = len(table.delta().file_uris())
        if files >= SMALL_FILES_MIN:
            compacted = committed(lambda: _compact(table, policy), f"compaction of {name}")
        found = table.delta()
        folder = TableFolder.of(table.path or "", table.access).local
        if compacted and folder is not None:
            # The files that compaction replaced may go now, so its own must be on disk.
            sync_file_system(folder)
        # Full: also removes files that a writer left when it died before its commit. Only old ones, because a file of a
        # commit in progress looks the same.
        hours = None if own else policy.retention_hours  # None: as the property of the table says.
        removed = len(found.vacuum(retention_hours=hours, dry_run=False, full=True))
        found.create_checkpoint()
        if folder is not None:
            sync_file_system(folder)
        found.cleanup_metadata()
    except DeltaError as error:
        return Tended(name, files, compacted, removed, _one_line(error))
    return Tended(name, files, compacted, removed)


def tend_named(spark: SparkSession, table: Table, policy: MaintenanceSettings) -> Tended:
    """Maintains one table by name, through Spark. Does no harm in addition to Unity Catalog's own optimisation."""
    name = table.identifier
    try:
        wanted = properties(policy)
        known = {row["key"]: row["value"] for row in spark.sql(f"SHOW TBLPROPERTIES {name}").collect()}
        missing = {key: value for key, value in wanted.items() if known.get(key) != value}
        if missing:
            pairs = ", ".join(f"'{key}' = '{value}'" for key, value in missing.items())
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({pairs})")
        files = int(spark.sql(f"DESCRIBE DETAIL {name}").collect()[0]["numFiles"])
        if files >= SMALL_FILES_MIN:
            spark.sql(f"OPTIMIZE {name}")
        spark.sql(f"VACUUM {name} RETAIN {policy.retention_hours} HOURS")
    except PySparkException as error:
        return Tended(name, problem=_one_line(error))
    return Tended(name, files, compacted=files if files >= SMALL_FILES_MIN else 0)


def properties(policy: MaintenanceSettings) -> dict[str, str]:
    """The table properties that enforce the policy between two runs too."""
    return {
        "delta.logRetentionDuration": f"interval {policy.log_retention_days} days",
        "delta.deletedFileRetentionDuration": f"interval {policy.retention_hours} hours",
    }


def _compact(table: Table, policy: MaintenanceSettings) -> int:
    """Compacts; returns the number of files that were replaced."""
    metrics = table.delta().optimize.compact(target_size=policy.target_file_mb * 1024 * 1024)
    return int(metrics["numFilesRemoved"])


def _set_properties(table: DeltaTable, wanted: Mapping[str, str]) -> None:
    """Sets only properties that differ, normally once in a table's life, because a change of properties makes a
    concurrent write fail."""
    known = table.metadata().configuration
    missing = {key: value for key, value in wanted.items() if known.get(key) != value}
    if missing:
        table.alter.set_table_properties(missing)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def tend_until(
    settings: Settings,
    stop: Callable[[float], bool],
    *,
    spark: SparkSession | None = None,
    is_with_silver: bool = False,
) -> None:
    """Maintains the tables repeatedly; `stop(seconds)` waits that long and returns whether to end. With
    `is_with_silver`, silver runs in this process, through this session. Raises JobFailedError if every table of a round
    had a problem."""
    tables, of_spark = tables_of(settings), silver_tables(settings)
    for table in tables:
        repair_table(table.path)
    for root in {table.path.rpartition("/")[0] for table in tables if table.path is not None}:
        require_safe_commits(root, settings.storage.access())
    while True:
        done = tend_all(tables, settings.maintenance, spark=spark, of_spark=of_spark, is_with_spark=is_with_silver)
        if done and all(one.problem is not None for one in done):
            raise JobFailedError(f"no table could be maintained; the first: {done[0].table}: {done[0].problem}")
        if stop(settings.maintenance.every_s):
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see `pipelines.jobs.process` for the exit codes."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.maintenance", description="Maintains the tables.")
    parser.add_argument("--config", type=Path, help="settings file (default: the defaults of conf/pipelines.yaml)")
    add_bronze_options(parser)
    add_place_options(parser)
    parser.add_argument("--actions-root", help="folder or object store address of the tables of actions")
    parser.add_argument("--schemas", help="folder of message schemas")
    parser.add_argument("--once", action="store_true", help="maintain every table once, then exit")
    options = parser.parse_args(arguments)

    def work() -> None:
        settings = with_options(load_settings(options.config), options)
        stop = StopSignal()
        spark = (
            session_of(JOB_NAME, settings.spark)
            if any(table.name is not None for table in tables_of(settings))
            else None
        )
        tend_until(settings, (lambda _: True) if options.once else stop.wait, spark=spark)

    return run_job(work)


if __name__ == "__main__":
    import sys

    sys.exit(main())
