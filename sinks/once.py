"""Appends of a streaming batch to Delta tables that a replay does not repeat: one app id per step, version = batch id.

Delta remembers the newest version per app id and skips a version that is not newer. Two writes to one table with the
same app id would silently skip the second, so every step of a batch has its own app id.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from broker_edge.errors import SinkError
from broker_edge.fields import Field, comment
from sinks.table import Table


def append_once(rows: DataFrame, table: Table, *, app_id: str, version: int) -> None:
    """Appends rows by column name, unless the table already contains this step of this batch."""
    writer = rows.write.format("delta").mode("append").option("txnAppId", app_id).option("txnVersion", version)
    if table.name is not None:
        writer.saveAsTable(table.name)
    else:
        writer.save(table.path)


def append_few_once(spark: SparkSession | None, rows: pa.Table, table: Table, *, app_id: str, version: int) -> None:
    """Like `append_once`, for a few rows held by the driver. Takes milliseconds without the JVM if the table has a
    path."""
    if table.path is None:
        if spark is None:
            raise SinkError(f"the table {table} is given by name, and only a Spark session can write it")
        append_once(spark.createDataFrame(rows), table, app_id=app_id, version=version)
        return
    from deltalake import CommitProperties, Transaction, write_deltalake
    from deltalake.exceptions import DeltaError

    from sinks.conflicts import committed
    from sinks.few_rows import writer_properties

    def write() -> None:
        found = table.delta()
        newest = found.transaction_version(app_id)
        if newest is not None and newest >= version:
            return
        properties = CommitProperties(app_transactions=[Transaction(app_id, version)])
        how = writer_properties(found, rows)
        write_deltalake(found, rows, mode="append", commit_properties=properties, writer_properties=how)

    try:
        committed(write, f"an append to {table}")
    except DeltaError as error:
        raise SinkError(f"the table {table} cannot be written: {error}") from error


def add_missing_columns(spark: SparkSession, table: Table, fields: Sequence[Field]) -> None:
    """Adds the fields that the table does not have. Raises SinkError, without adding anything, if the table has one of
    them with another type."""
    known = column_types(table.read(spark).schema)
    for field in fields:
        there = known.get(folded(field.name))
        if there is not None and there != field.type:
            raise SinkError(
                f"column {field.name} of {table} has type {there}, but {field.type} is needed: "
                "give the field another name"
            )
    missing = [field for field in fields if folded(field.name) not in known]
    if missing:
        added = ", ".join(f"`{field.name}` {field.type}{comment(field.meaning)}" for field in missing)
        spark.sql(f"ALTER TABLE {table.identifier} ADD COLUMNS ({added})")


def column_types(schema: StructType) -> dict[str, str]:
    """Column types by `folded` column name."""
    return {folded(field.name): field.dataType.simpleString() for field in schema.fields}


def folded(name: str) -> str:
    """The same text for all names that Spark or Delta treat as one column.

    They compare as Java does, character by character and also in upper case: `ſeq` is `seq`, and `ı` is `i`.
    """
    return name.upper().casefold().replace("\u0307", "")
