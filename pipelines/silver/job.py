"""The stream from bronze to silver: the table it reads, how it starts and stops, and its command line.

    python -m pipelines.silver [--config FILE] [--root DIR | --schema catalog.schema] [--bronze-path DIR | --bronze
    catalog.schema.table] [--checkpoint DIR] [--available-now] …

`silver.batch` processes the batches.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from broker_edge.errors import JobFailedError
from broker_edge.sync import sync_checkpoint, sync_file_system
from pipelines.jobs.process import run_job, run_query
from pipelines.settings import Settings, load_settings
from pipelines.settings.job_options import add_bronze_options, add_file_options, add_place_options, with_options
from pipelines.settings.places import TablePlace
from pipelines.silver.batch import SilverBatches, SilverSetup, check_tables
from pipelines.silver.plan import PlanStore
from pipelines.silver.rules import load_rules
from pipelines.silver.schema import load_schemas
from pipelines.silver.topics import open_level
from pipelines.spark.checkpoint import folder_to_sync, repair_checkpoint
from pipelines.spark.pools import pool
from pipelines.spark.stores import reach_stores
from sinks.connect import QueryId, is_connect
from sinks.table import Table
from sinks.torn_commits import repair_table

log = logging.getLogger(__name__)

QUERY_NAME = "silver"


def load_setup(settings: Settings) -> SilverSetup:
    """Schemas and rules from their files. Raises SettingsError if one is invalid, and warns of schemas that take the
    device from where its topics do not name it."""
    silver = settings.silver
    schemas = load_schemas(Path(silver.schemas))
    for schema in schemas:
        level = open_level(schema.topics) if schema.device_level is None else None
        if level is not None:
            log.warning(
                "the schema %s takes the device from a record's key, which whoever may write over Flight chooses: set "
                "device_level: %d in it if that level of %s names the device",
                schema.name,
                level,
                schema.topics[0],
            )
    rules = load_rules(Path(silver.rules) if silver.rules is not None else None, schemas)
    return SilverSetup(tuple(schemas), rules, TablePlace.of(silver, settings.storage.access()), settings.tenant)


def start_silver(spark: SparkSession, settings: Settings, *, available_now: bool = False) -> StreamingQuery:
    """Starts the query. With an empty checkpoint it begins at the first available version of bronze."""
    silver = settings.silver
    bronze, access = bronze_table(settings), settings.storage.access()
    repair_table(bronze.path)
    reach_stores(spark, access, [bronze.path, silver.root, silver.checkpoint])
    if not bronze.exists(spark):
        # Not a settings error: the table may be created later by a telemetry job that still waits for its broker.
        raise JobFailedError(f"there is no bronze table {bronze}: run the telemetry job first, it creates the table")
    setup = load_setup(settings)
    setup.place.make(spark)
    check_tables(spark, setup)
    checkpoint, places = _synced(spark, settings)
    if checkpoint is not None:
        repair_checkpoint(silver.checkpoint)
    batches = SilverBatches(setup, PlanStore(silver.checkpoint, access))
    query_id = QueryId.of(spark, silver.checkpoint)

    def write(batch: DataFrame, batch_id: int) -> None:
        # The offsets name a version of bronze. If it were lost, another one would get its number.
        for place in places:
            sync_file_system(place)
        if checkpoint is not None:
            sync_checkpoint(checkpoint, batch_id)
        batches.write(batch, batch_id, query_id.within(batch))
        for place in places:
            sync_file_system(place)

    reader = (
        spark.readStream.format("delta")
        .option("maxBytesPerTrigger", silver.max_bytes_per_trigger)
        # Compaction, retention of bronze and the purge of a device rewrite files; those rows are not new.
        .option("skipChangeCommits", "true")
    )
    records = reader.table(bronze.name) if bronze.name is not None else reader.load(bronze.path)
    with pool(spark, QUERY_NAME):
        writer = records.writeStream.queryName(QUERY_NAME).option("checkpointLocation", silver.checkpoint)
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=silver.trigger)
        query = writer.foreachBatch(write).start()
    query_id.started(query)
    return query


def _synced(spark: SparkSession, settings: Settings) -> tuple[Path | None, list[Path]]:
    """The checkpoint, and the folders of bronze and silver, which a power cut must leave in step. None if silver is not
    in a local folder, and over Spark Connect, where such folders are the server's."""
    access, sync = settings.storage.access(), settings.bronze.sync
    root = folder_to_sync(settings.silver.root, access, sync=sync)
    if root is None or is_connect(spark):
        return None, []
    bronze = folder_to_sync(bronze_table(settings).path, access, sync=sync)
    # They are usually on one file system.
    places = {place.stat().st_dev: place for place in (bronze, root) if place is not None}
    return folder_to_sync(settings.silver.checkpoint, access, sync=sync), list(places.values())


def bronze_table(settings: Settings) -> Table:
    telemetry = settings.telemetry
    return (
        Table.named(telemetry.table)
        if telemetry.table is not None
        else Table.at(telemetry.table_path or "", settings.storage.access())
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see `pipelines.jobs.process` for the exit codes."""
    options = _parser().parse_args(arguments)

    def work() -> None:
        settings = with_options(load_settings(options.config), options)
        run_query(
            QUERY_NAME,
            settings.spark,
            lambda spark: start_silver(spark, settings, available_now=options.available_now),
        )

    return run_job(work)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m pipelines.silver", description="Writes bronze into silver tables.")
    parser.add_argument("--config", type=Path, help="settings file (default: the defaults of conf/pipelines.yaml)")
    add_bronze_options(parser)
    add_place_options(parser)
    add_file_options(parser)
    parser.add_argument("--checkpoint", help="folder of the checkpoint")
    parser.add_argument("--tenant", help="tenant to write into dq_results")
    parser.add_argument("--trigger", help="interval between the starts of two batches, such as '5 seconds'")
    parser.add_argument("--available-now", action="store_true", help="process the existing rows, then exit")
    return parser
