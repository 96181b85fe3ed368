"""Statuses and receipts: copies records from the brokers to `action_events`, each record once, and invalid ones to
`quarantine`.

    python -m pipelines.status [--config FILE] [--root DIR] [--checkpoint DIR] [--server grpc://…] [--available-now]

Wiring only: the source decides the extent of a batch, `status_rows` interprets a record. Devices send few statuses, so
a batch is bounded and goes through the driver, where one append takes milliseconds.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from actions.event_log import EventLog
from actions.status_batch import StatusBatches
from actions.status_rows import RECEIPTS, STATUS_FILTER
from actions.uplink_status import UplinkTopic
from broker_edge.access import BrokerAccess
from broker_edge.sync import sync_checkpoint, sync_file_system
from pipelines.jobs.kinds import StreamJob
from pipelines.jobs.process import StopSignal, mute_query_traces, run_job
from pipelines.jobs.runner import run_alone
from pipelines.settings import load_settings
from pipelines.settings.job_options import add_broker_options, with_brokers
from pipelines.source import headwater_stream
from pipelines.spark.checkpoint import (
    folder_to_sync,
    has_finished_a_batch,
    is_server_side,
    repair_checkpoint,
    synced_checkpoint,
)
from pipelines.spark.jvm_end import jvm_may_end
from pipelines.spark.pools import pool
from pipelines.spark.session import open_session
from pipelines.spark.stores import reach_stores
from sinks.connect import QueryId, is_connect
from sinks.probe import require_safe_commits, require_writable
from sinks.rows import now_us, rows_of
from sinks.store import StoreAccess
from sinks.tables import ACTION_EVENTS, DEFAULT_TENANT, uri_of
from sinks.torn_commits import repair_tables

QUERY_NAME = "status"
_BATCH_BYTES = 8 * 1024 * 1024
"""Approximate limit for the bytes of payloads in the driver at once: small reports take a hundred times their size in
memory. Ordinary reports of `max_offsets_per_trigger` records stay below it."""

_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "log_id", "epoch")


@dataclass(frozen=True, slots=True)
class StatusSettings:
    """An address alone in `servers` is reached as the environment says. `root` holds the tables of actions.
    `max_offsets_per_trigger` limits the driver memory that a batch takes.
    `uplink_topic` is the topic of devices that use the format of Bytebeam's uplink."""

    servers: tuple[BrokerAccess | str, ...]
    root: str
    checkpoint: str
    tenant: str = DEFAULT_TENANT
    consumer_group: str = "status"
    trigger: str = "1 second"
    max_offsets_per_trigger: int = 10_000
    fail_on_data_loss: bool = True
    uplink_topic: str | None = None
    access: StoreAccess = field(default_factory=StoreAccess)
    sync: bool | None = None
    """Whether a batch is on disk before its offsets count as finished; None: if `root` is a local folder."""


def start_status(spark: SparkSession, settings: StatusSettings, *, available_now: bool = False) -> StreamingQuery:
    """Starts the query. With an empty checkpoint it resumes after the newest records in `action_events`.

    Over Spark Connect the tables must have the same address here and at the server, which writes them.
    """
    sync = False if is_server_side(spark, settings.sync) else settings.sync
    folder = folder_to_sync(settings.root, settings.access, sync=sync)
    syncs = folder is not None or sync is True
    checkpoint = folder_to_sync(settings.checkpoint, settings.access, sync=sync) if syncs else None
    if not is_connect(spark):
        repair_tables(settings.root)
    if syncs:
        repair_checkpoint(settings.checkpoint)
    reach_stores(spark, settings.access, [settings.checkpoint])
    require_safe_commits(settings.root, settings.access)
    require_writable(uri_of(settings.root, ACTION_EVENTS.name))
    log = EventLog(settings.root, access=settings.access)
    uplink = None if settings.uplink_topic is None else UplinkTopic(settings.uplink_topic)
    records = headwater_stream(
        spark,
        servers=settings.servers,
        subscribe=[STATUS_FILTER, RECEIPTS, *([] if uplink is None else [uplink.filter])],
        consumer_group=settings.consumer_group,
        places={} if has_finished_a_batch(settings.checkpoint, settings.access) else log.places(),
        max_offsets_per_trigger=settings.max_offsets_per_trigger,
        fail_on_data_loss=settings.fail_on_data_loss,
        options={"maxBytesPerTrigger": str(_BATCH_BYTES)} | (synced_checkpoint(settings.checkpoint) if syncs else {}),
    )
    batches = StatusBatches(log, tenant=settings.tenant, uplink=uplink)
    query_id = QueryId.of(spark, settings.checkpoint)

    def write(batch: DataFrame, batch_id: int) -> None:
        records = list(rows_of(batch.select(*_COLUMNS).toArrow()))
        if checkpoint is not None:
            sync_checkpoint(checkpoint, batch_id)
        batches.write(records, recorded_us=now_us(), query_id=query_id.within(batch), batch_id=batch_id)
        if folder is not None:
            # All of it: the engine appends to the same table, and later versions are unreadable without its files.
            sync_file_system(folder)

    writer = records.writeStream.queryName(QUERY_NAME).option("checkpointLocation", settings.checkpoint)
    writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=settings.trigger)
    with pool(spark, QUERY_NAME):
        query = writer.foreachBatch(write).start()
    query_id.started(query)
    return query


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see `pipelines.jobs.process` for the exit codes."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.status", description="Copies statuses into action_events."
    )
    parser.add_argument("--config", type=Path, help="settings file (default: the defaults of conf/pipelines.yaml)")
    parser.add_argument("--root", help="folder or object store address of the action tables")
    parser.add_argument("--checkpoint", help="folder of the checkpoint")
    add_broker_options(parser)
    parser.add_argument("--available-now", action="store_true", help="read the existing records, then exit")
    options = parser.parse_args(arguments)

    def work() -> None:
        file = with_brokers(load_settings(options.config), options)
        settings = StatusSettings(
            servers=file.fleet(),
            root=options.root or file.actions.root,
            checkpoint=options.checkpoint or file.status.checkpoint,
            tenant=file.tenant,
            consumer_group=file.status.consumer_group,
            trigger=file.status.trigger,
            max_offsets_per_trigger=file.status.max_offsets_per_trigger,
            fail_on_data_loss=file.status.fail_on_data_loss,
            uplink_topic=file.status.uplink_topic,
            access=file.storage.access(),
            sync=file.bronze.sync,
        )
        session = open_session(QUERY_NAME, file.spark)
        mute_query_traces(session.spark)
        stop = StopSignal()
        try:
            job = StreamJob(
                QUERY_NAME,
                lambda: start_status(session.spark, settings, available_now=options.available_now),
                is_watched=False,
            )
            with jvm_may_end(stop.is_set):
                run_alone(job, file.jobs, stop.wait)
        finally:
            with jvm_may_end(stop.is_set):
                session.close()

    return run_job(work)


if __name__ == "__main__":
    sys.exit(main())
