"""The bronze table: every record as it came, with its place in the log, the tenant, and the day the broker took it in.

Written by Delta's native streaming sink, which records query id and batch id in the table: a batch that is replayed
is not written twice. Writing where the records are fetched (`bronze.writer: files`) has its place here and is not
there yet.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from sinks.errors import SinkError
from sinks.table import Table

PARTITION_COLUMN = "ingest_date"

ENVELOPE = (
    "key",
    "value",
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "headers",
    "log_id",
    "epoch",
    "qos",
    "retain",
    "client_id",
)
"""The columns of the source, in its order; bronze keeps them all."""

_TABLE_PROPERTIES = {
    # Statistics of payloads help no query, and gathering them is a tenth of the write.
    "delta.dataSkippingStatsColumns": "topic,partition,offset,timestamp,log_id,epoch,client_id",
}


def bronze_rows(records: DataFrame, *, tenant: str) -> DataFrame:
    """The source's rows as bronze keeps them. `ingest_date` is by the broker's clock: a replay gives the same."""
    missing = [name for name in ENVELOPE if name not in records.columns]
    if missing:
        raise SinkError(
            f"bronze needs the column {missing[0]} of the source (option includeHeaders=true gives headers)"
        )
    return records.select(*ENVELOPE, F.lit(tenant).alias("tenant"), F.to_date("timestamp").alias(PARTITION_COLUMN))


def write_bronze(
    records: DataFrame,
    table: Table,
    *,
    tenant: str,
    checkpoint: str,
    writer: str = "spark",
    available_now: bool = False,
    trigger: str = "1 second",
    query_name: str | None = None,
) -> StreamingQuery:
    """Starts the query that appends the stream `records` to `table`, made on first use."""
    check_writer(writer)
    make_bronze(records.sparkSession, table, records)
    sink = (
        bronze_rows(records, tenant=tenant)
        .writeStream.format("delta")
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
        .partitionBy(PARTITION_COLUMN)
    )
    if query_name is not None:
        sink = sink.queryName(query_name)
    sink = sink.trigger(availableNow=True) if available_now else sink.trigger(processingTime=trigger)
    return sink.toTable(table.name) if table.name is not None else sink.start(table.path)


def check_writer(writer: str) -> None:
    """Only the native sink is there yet."""
    if writer == "files":
        raise SinkError("bronze.writer: files is not supported yet, use spark")
    if writer != "spark":
        raise SinkError(f"bronze.writer is spark or files, not {writer}")


def make_bronze(spark: SparkSession, table: Table, records: DataFrame) -> None:
    """Creates the table, empty, unless it is there."""
    if table.exists(spark):
        return
    fields = bronze_rows(records, tenant="").schema.fields
    columns = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in fields)
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in _TABLE_PROPERTIES.items())
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table.identifier} ({columns}) USING delta "
        f"PARTITIONED BY ({PARTITION_COLUMN}) TBLPROPERTIES ({properties})"
    )


def places_after(spark: SparkSession, table: Table, *, tenant: str) -> dict[str, Any]:
    """Where to go on behind what the table holds, as the source's `startingOffsets`: `{log id: {partition: [next,
    epoch]}}`.

    Empty when the table is not there or holds nothing of the tenant.
    """
    if not table.exists(spark):
        return {}
    newest = (
        table.read(spark)
        .where(F.col("tenant") == tenant)
        .groupBy("log_id", "partition")
        # The pair orders by epoch first: an offset that was used again counts for its newer record.
        .agg(F.max(F.struct("epoch", "offset")).alias("last"))
        .collect()
    )
    places: dict[str, Any] = {}
    for row in sorted(newest, key=lambda one: (one["log_id"], one["partition"])):
        places.setdefault(row["log_id"], {})[str(row["partition"])] = [row["last"]["offset"] + 1, row["last"]["epoch"]]
    return places


def duplicates(rows: DataFrame) -> DataFrame:
    """Places that the table holds more than once: always none for the life of a checkpoint (I10)."""
    key = ("log_id", "partition", "offset", "epoch")
    return rows.groupBy(*key).count().where(F.col("count") > 1)
