"""Telemetry: copies records from the brokers to the bronze table, each record once.

    python -m pipelines.telemetry [--config FILE] [--server grpc://…] [--table-path DIR] [--checkpoint DIR]
    [--available-now] …

Wiring only: the source decides the extent of a batch, the sink writes it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from broker_edge.errors import SettingsError
from pipelines.jobs.process import run_job, run_query
from pipelines.settings import BronzeSettings, Settings, load_settings
from pipelines.settings.job_options import add_broker_options, with_brokers
from pipelines.source import headwater_options, headwater_splits
from pipelines.spark.checkpoint import has_finished_a_batch, is_server_side, repair_checkpoint, synced_checkpoint
from pipelines.spark.pools import pool
from pipelines.spark.stores import reach_stores
from sinks.bronze import WriteHow, places_after, write_bronze, write_bronze_files
from sinks.connect import is_connect
from sinks.store import is_remote
from sinks.table import Table
from sinks.torn_commits import repair_table
from sources.schema import spark_schema

QUERY_NAME = "telemetry"


def start_telemetry(spark: SparkSession, settings: Settings, *, available_now: bool = False) -> StreamingQuery:
    """Starts the query. With an empty checkpoint it resumes after the newest records in bronze."""
    telemetry, access = settings.telemetry, settings.storage.access()
    table = (
        Table.named(telemetry.table) if telemetry.table is not None else Table.at(telemetry.table_path or "", access)
    )
    if not is_connect(spark):
        repair_table(table.path)
    if _syncs(spark, settings, table):
        repair_checkpoint(telemetry.checkpoint)
    reach_stores(spark, access, [table.path, telemetry.checkpoint])
    # The first batch may be planned and not finished. Spark then asks for the same start again, and the table gives
    # it, because the table has either the whole batch or nothing of it.
    places = (
        {} if has_finished_a_batch(telemetry.checkpoint, access) else places_after(spark, table, tenant=settings.tenant)
    )
    options = headwater_options(
        servers=settings.fleet(),
        subscribe=telemetry.subscribe,
        consumer_group=telemetry.consumer_group,
        places=places,
        max_offsets_per_trigger=telemetry.max_offsets_per_trigger,
        fail_on_data_loss=telemetry.fail_on_data_loss,
    )
    if _syncs(spark, settings, table):
        options |= synced_checkpoint(telemetry.checkpoint)
    with pool(spark, QUERY_NAME):
        return _start(spark, settings, table, options, available_now=available_now)


def _start(
    spark: SparkSession, settings: Settings, table: Table, options: Mapping[str, str], *, available_now: bool
) -> StreamingQuery:
    """The query with the writer selected by the settings."""
    telemetry, bronze = settings.telemetry, settings.bronze
    how = WriteHow(
        tenant=settings.tenant,
        checkpoint=telemetry.checkpoint,
        available_now=available_now,
        trigger=telemetry.trigger,
        query_name=QUERY_NAME,
        sync=_syncs(spark, settings, table),
    )
    if _is_sparks(bronze, table):
        return write_bronze(spark.readStream.format("headwater").options(**options).load(), table, how)
    splits, read = headwater_splits(spark, options)
    schema = spark_schema(include_headers=True)
    return write_bronze_files(splits, table, how, read=read, schema=schema, compression=bronze.compression)


def _is_sparks(bronze: BronzeSettings, table: Table) -> bool:
    return bronze.writer == "spark" or (bronze.writer == "auto" and table.path is None)


def _syncs(spark: SparkSession, settings: Settings, table: Table) -> bool:
    """The setting; without one, whether files are written to a local folder of this machine."""
    if is_server_side(spark, settings.bronze.sync):
        return False
    if settings.bronze.sync is not None:
        return settings.bronze.sync
    return not _is_sparks(settings.bronze, table) and table.path is not None and not is_remote(table.path)


def main(arguments: list[str] | None = None) -> int:
    """The command line; see `pipelines.jobs.process` for the exit codes."""
    options = _parser().parse_args(arguments)

    def work() -> None:
        settings = _settings(options)
        run_query(
            QUERY_NAME,
            settings.spark,
            lambda spark: start_telemetry(spark, settings, available_now=options.available_now),
        )

    return run_job(work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipelines.telemetry", description=__doc__.splitlines()[0])
    parser.add_argument("--config", type=Path, help="settings file (default: the defaults of conf/pipelines.yaml)")
    add_broker_options(parser)
    parser.add_argument("--tenant", help="tenant to write into every row")
    table = parser.add_mutually_exclusive_group()
    table.add_argument("--table", help="bronze table, catalog.schema.table")
    table.add_argument("--table-path", help="bronze table, by path")
    parser.add_argument("--writer", choices=("auto", "spark", "files"), help="writer of the table: bronze.writer")
    parser.add_argument("--checkpoint", help="folder of the checkpoint")
    parser.add_argument("--group", help="consumer group")
    parser.add_argument("--trigger", help="interval between the starts of two batches, such as '1 second'")
    parser.add_argument("--max-offsets-per-trigger", type=int, help="maximum number of records of a batch")
    parser.add_argument("--skip-lost", action="store_true", help="report lost records to the broker and continue")
    parser.add_argument("--available-now", action="store_true", help="read the existing records, then exit")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    """The settings file, overridden by the command line."""
    settings = with_brokers(load_settings(options.config), options)
    telemetry = {
        "checkpoint": options.checkpoint,
        "consumer_group": options.group,
        "trigger": options.trigger,
        "max_offsets_per_trigger": options.max_offsets_per_trigger,
        "fail_on_data_loss": False if options.skip_lost else None,
    }
    changes = {name: value for name, value in telemetry.items() if value is not None}
    if options.table is not None or options.table_path is not None:
        changes |= {"table": options.table, "table_path": options.table_path}
    top = {"tenant": options.tenant}
    try:
        return Settings.model_validate(
            settings.model_dump()
            | {name: value for name, value in top.items() if value is not None}
            | {"telemetry": settings.telemetry.model_dump() | changes}
            | {"bronze": settings.bronze.model_dump() | ({"writer": options.writer} if options.writer else {})}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise SettingsError(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}") from error


if __name__ == "__main__":
    sys.exit(main())
