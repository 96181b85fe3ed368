"""Appends of a streaming batch into Delta tables that a replay does not repeat: one app id a step, version = batch id.

Delta remembers the newest version per app id and skips what is not newer. The same app id for two writes into one
table would silently skip the second, so every step of a batch has its own.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sinks.errors import SinkError
from sinks.table import Table


def append_once(rows: DataFrame, table: Table, *, app_id: str, version: int) -> None:
    """Appends rows by the names of their columns, unless this step of this batch is in the table already."""
    writer = rows.write.format("delta").mode("append").option("txnAppId", app_id).option("txnVersion", version)
    if table.name is not None:
        writer.saveAsTable(table.name)
    else:
        writer.save(table.path)


def append_few_once(spark: SparkSession | None, rows: pa.Table, table: Table, *, app_id: str, version: int) -> None:
    """The same for a few rows that the driver holds: milliseconds without the JVM where the table has a path."""
    if table.path is None:
        if spark is None:
            raise SinkError(f"the table {table} has a name, and only a Spark session can write it")
        append_once(spark.createDataFrame(rows), table, app_id=app_id, version=version)
        return
    from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
    from deltalake.exceptions import DeltaError

    from sinks.conflicts import committed

    def write() -> None:
        found = DeltaTable(table.path or "")
        newest = found.transaction_version(app_id)
        if newest is not None and newest >= version:
            return
        properties = CommitProperties(app_transactions=[Transaction(app_id, version)])
        write_deltalake(found, rows, mode="append", commit_properties=properties)

    try:
        committed(write, f"an append to {table}")
    except DeltaError as error:
        raise SinkError(f"the table {table} cannot be written: {error}") from error


def add_missing_columns(spark: SparkSession, table: Table, columns: dict[str, tuple[str, str]]) -> None:
    """Adds the columns (name to type and comment) that the table does not have. SinkError when it has one with
    another type, and then nothing was added."""
    known = column_types(table.read(spark).schema)
    for name, (type_, _) in columns.items():
        there = known.get(folded(name))
        if there is not None and there != type_:
            raise SinkError(f"column {name} of {table} is {there}, and {type_} is wanted: give the field another name")
    missing = [name for name in columns if folded(name) not in known]
    if missing:
        added = ", ".join(f"`{name}` {columns[name][0]}{comment(columns[name][1])}" for name in missing)
        spark.sql(f"ALTER TABLE {table.identifier} ADD COLUMNS ({added})")


def column_types(schema: StructType) -> dict[str, str]:
    """Types by the names of columns, `folded`."""
    return {folded(field.name): field.dataType.simpleString() for field in schema.fields}


def folded(name: str) -> str:
    """The same text for names that Spark or Delta take for one column.

    They compare as Java does, character by character and in upper case as well: `ſeq` is `seq`, and `ı` is `i`.
    """
    return name.upper().casefold().replace("\u0307", "")


def comment(text: str) -> str:
    """A COMMENT of a column's definition, or nothing.

    Before Spark parses a statement it puts settings, system properties and the environment in the place of `${…}`, also
    within quotes. A text may name a field that a device chose, so none is left.
    """
    quoted = text.replace("\\", "\\\\").replace("'", "\\'").replace("${", "$\\{")
    return f" COMMENT '{quoted}'" if text else ""
