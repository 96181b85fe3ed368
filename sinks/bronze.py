"""The bronze table: every record as received, with its position in the log, the tenant, and the day on which the broker
received it.

Two writers produce the same table. With `files` every task writes the records it fetches as Parquet into the table's
folder, and the driver commits the files; this needs a table by path. `spark` is Delta's native streaming sink on
Spark's rows, at several times the cost, for tables whose path cannot be written directly. Both record query id and
batch id in the table, so a replayed batch is not written twice and a checkpoint can move from one writer to the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from broker_edge.errors import SinkError
from broker_edge.fields import RECORD, quoted
from broker_edge.sync import sync_checkpoint
from sinks.bronze_commit import BronzeCommits
from sinks.bronze_files import PARTITION_COLUMN, STATISTICS_COLUMNS, AddedFile, FileSpec, write_files
from sinks.connect import QueryId
from sinks.folder import TableFolder
from sinks.probe import require_safe_commits
from sinks.table import Table
from sinks.tables.existing import delta_field, update_by_path, update_in_spark
from sinks.tables.records import BRONZE
from sinks.tables.views import BRONZE_TEXT, create_view

ReadSplits = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Maps rows that name what to read (the source's splits) to the records, in the source's columns. Runs in tasks."""

ENVELOPE = RECORD.names
"""The columns of the source in its order; bronze keeps all of them."""

_TABLE_PROPERTIES = {
    # Not those of payloads: queries do not use their bounds, and gathering them is a tenth of the write time.
    "delta.dataSkippingStatsColumns": ",".join(STATISTICS_COLUMNS),
}


def bronze_rows(records: DataFrame, *, tenant: str) -> DataFrame:
    """The source's rows with the columns that bronze adds. `ingest_date` follows the broker's clock, so a replay gives
    the same value."""
    _check_columns(records.columns)
    added = {
        "device_id": F.try_validate_utf8(F.col("key").cast("string")),
        "tenant": F.lit(tenant),
        PARTITION_COLUMN: F.to_date("timestamp"),
    }
    return records.select(*(added[name].alias(name) if name in added else F.col(name) for name in BRONZE.names))


def _check_columns(names: Iterable[str]) -> None:
    names = set(names)
    missing = [name for name in ENVELOPE if name not in names]
    if missing:
        raise SinkError(
            f"bronze needs the column {missing[0]} of the source (option includeHeaders=true gives headers)"
        )


@dataclass(frozen=True, slots=True)
class WriteHow:
    """Settings for both writers: the tenant of every row, and how the query runs."""

    tenant: str
    checkpoint: str
    available_now: bool = False
    trigger: str = "1 second"
    query_name: str | None = None
    sync: bool = False
    """Whether a batch is on disk before its offsets count as finished; for files in local folders."""

    def start_of(self, sink: DataStreamWriter) -> DataStreamWriter:
        sink = sink.option("checkpointLocation", self.checkpoint)
        if self.query_name is not None:
            sink = sink.queryName(self.query_name)
        return sink.trigger(availableNow=True) if self.available_now else sink.trigger(processingTime=self.trigger)


def write_bronze(records: DataFrame, table: Table, how: WriteHow) -> StreamingQuery:
    """Starts the query that appends the stream `records` to `table` with Delta's native sink. Creates the table if
    necessary."""
    if table.is_for_one_writer:
        raise SinkError(
            f"bronze.writer: spark cannot write {table}: Spark's commits to S3 would replace those of maintenance; use "
            "bronze.writer: files"
        )
    if how.sync:
        raise SinkError("bronze.sync needs bronze.writer: files: Delta's native sink does not sync what it writes")
    make_bronze(records.sparkSession, table, records.schema)
    rows = bronze_rows(records, tenant=how.tenant)
    sink = how.start_of(rows.writeStream.format("delta").outputMode("append")).partitionBy(PARTITION_COLUMN)
    return sink.toTable(table.name) if table.name is not None else sink.start(table.path)


def write_bronze_files(
    splits: DataFrame,
    table: Table,
    how: WriteHow,
    *,
    read: ReadSplits,
    schema: StructType,
    compression: str = "zstd",
) -> StreamingQuery:
    """Starts the query whose tasks `read` what the stream `splits` names (in columns `schema`) and write it to `table`
    as files. `table` must have a path and is created if necessary.
    """
    if table.path is None:
        raise SinkError(f"bronze.writer: files needs a table by path, and {table} is a name: use bronze.writer: spark")
    folder = TableFolder.of(table.path, table.access)
    require_safe_commits(table.path, table.access)
    make_bronze(splits.sparkSession, table, schema)
    spec = FileSpec(folder, how.tenant, compression, how.sync)
    commits = BronzeCommits(folder, sync=how.sync)
    checkpoint = TableFolder.of(how.checkpoint, table.access).local if how.sync else None
    query_id = QueryId.of(splits.sparkSession, how.checkpoint)

    def write(batch: DataFrame, batch_id: int) -> None:
        query = query_id.within(batch)
        if commits.has(query, batch_id):
            return
        began_s = time.monotonic()
        added = batch.mapInArrow(_task(read, spec), _ADDED).collect()
        files = [AddedFile(**row.asDict()) for row in added]
        if checkpoint is not None:
            sync_checkpoint(checkpoint, batch_id)
        commits.commit(files, query_id=query, batch_id=batch_id, began_s=began_s)

    query = how.start_of(splits.writeStream).foreachBatch(write).start()
    query_id.started(query)
    return query


_ADDED = "path string, day string, size_bytes long, modified_ms long, rows long, statistics string"


def _task(read: ReadSplits, spec: FileSpec) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def task(splits: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in write_files(read(splits), spec):
            yield pa.RecordBatch.from_pylist([asdict(file)])

    return task


def make_bronze(spark: SparkSession, table: Table, schema: StructType) -> None:
    """Creates an empty table for the source's columns `schema`. A table of an older version gets the columns, comments
    and statistics that it lacks, and its rows keep null in new columns."""
    _check_columns(schema.names)
    if table.is_for_one_writer:
        _make_without_spark(table)
        return
    if table.exists(spark):
        update_in_spark(spark, table.identifier, BRONZE, properties=_TABLE_PROPERTIES)
        _make_view(spark, table)
        return
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in _TABLE_PROPERTIES.items())
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table.identifier} ({BRONZE.ddl()}) USING delta "
        f"COMMENT '{quoted(BRONZE.meaning)}' PARTITIONED BY ({PARTITION_COLUMN}) TBLPROPERTIES ({properties})"
    )
    _make_view(spark, table)


def _make_view(spark: SparkSession, table: Table) -> None:
    """A table by name has its view with payloads as text beside it."""
    if table.name is not None:
        create_view(spark, BRONZE_TEXT, f"{table.name}_text", {BRONZE.name: table.name})


def _make_without_spark(table: Table) -> None:
    """The same for a table to which Spark must not commit."""
    properties = dict(_TABLE_PROPERTIES)
    if not table.is_there():
        DeltaTable.create(
            TableFolder.of(table.path or "", table.access).uri,
            schema=Schema([delta_field(column) for column in BRONZE.fields]),
            mode="ignore",
            description=BRONZE.meaning,
            partition_by=[PARTITION_COLUMN],
            configuration=properties,
            storage_options=table.access.deltalake(),
        )
        return
    there = table.delta()
    update_by_path(there, BRONZE)
    if not properties.items() <= there.metadata().configuration.items():
        there.alter.set_table_properties(properties)


def places_after(spark: SparkSession, table: Table, *, tenant: str) -> dict[str, Any]:
    """Where to resume after the records in the table, as the source's `startingOffsets`: `{log id: {partition: [next,
    epoch]}}`.

    Empty if the table does not exist or holds no records of the tenant.
    """
    if not table.exists(spark):
        return {}
    newest = (
        table.read(spark)
        .where(F.col("tenant") == tenant)
        .groupBy("log_id", "partition")
        # The struct orders by epoch first: if an offset was reused, its newer record counts.
        .agg(F.max(F.struct("epoch", "offset")).alias("last"))
        .collect()
    )
    places: dict[str, Any] = {}
    for row in sorted(newest, key=lambda one: (one["log_id"], one["partition"])):
        places.setdefault(row["log_id"], {})[str(row["partition"])] = [row["last"]["offset"] + 1, row["last"]["epoch"]]
    return places


def duplicates(rows: DataFrame) -> DataFrame:
    """Log positions that the table holds more than once: never any during the life of a checkpoint (I10)."""
    key = ("log_id", "partition", "offset", "epoch")
    return rows.groupBy(*key).count().where(F.col("count") > 1)
