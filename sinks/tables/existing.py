"""Brings tables of an older version up to date: missing columns, and the comments of tables and columns.

Commits only what differs, so a job may call it at each start. A commit that changes only comments does not end streams
that read the table; one that adds a column ends them once (docs/tables.md). Rows never change, and nothing is removed:
columns that somebody else added stay, with their comments.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable
from deltalake import Field as DeltaField
from deltalake.exceptions import CommitFailedError

from broker_edge.fields import ARROW, Field, FieldTable, column_sql, quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


log = logging.getLogger(__name__)

_ATTEMPTS = 10
"""Each failure means that another job has made progress."""


def update_by_path(there: DeltaTable, table: FieldTable) -> None:
    """Adds the columns and comments that the open table lacks, without a JVM.

    All missing ones take one commit. A comment whose words have changed takes a commit of its own, because deltalake
    merges no different words. Jobs that start together do this together: after a conflict the table is read again.
    """
    for attempt in range(_ATTEMPTS):
        try:
            _update(there, table)
        except CommitFailedError:
            if attempt == _ATTEMPTS - 1:
                raise
            there.update_incremental()
        else:
            return


def _update(there: DeltaTable, table: FieldTable) -> None:
    fields = {field.name: field for field in there.schema().fields}
    known = {name: field.metadata.get("comment", "") for name, field in fields.items()}
    new = [delta_field(column) for column in table.fields if column.name not in known]
    bare = [column for column in table.fields if known.get(column.name) == "" and column.meaning]
    if new or bare:
        there.alter.add_columns([*new, *(_described(fields[column.name], column.meaning) for column in bare)])
    for column in table.fields:
        if column.meaning and known.get(column.name, "") not in ("", column.meaning):
            there.alter.set_column_metadata(column.name, {"comment": column.meaning})
    if there.metadata().description != table.meaning:
        there.alter.set_table_description(table.meaning)


def update_in_spark(
    spark: SparkSession, identifier: str, table: FieldTable, *, properties: Mapping[str, str] | None = None
) -> None:
    """The same with Spark: `identifier` is a name, or Delta's notation for a path. `properties` of the table are set
    too. Takes at most three commits.

    A new column is placed behind the one that it follows in the declaration.
    """
    known = {name.lower() for name in spark.table(identifier).columns}
    missing = [column for column in table.fields if column.name.lower() not in known]
    if missing:
        added = ", ".join(_placed(column, table, known) for column in missing)
        spark.sql(f"ALTER TABLE {identifier} ADD COLUMNS ({added})")
    describe_in_spark(spark, identifier, table, properties=properties)


def describe_in_spark(
    spark: SparkSession, identifier: str, table: FieldTable, *, properties: Mapping[str, str] | None = None
) -> None:
    """Sets comments and properties that differ, in one commit for the columns and one for the table. Adds no column.

    Only logs if that is not possible, such as without the right to change the table: no job depends on a comment.
    """
    from pyspark.errors import PySparkException

    try:
        _describe_columns(spark, identifier, table)
        detail = spark.sql(f"DESCRIBE DETAIL {identifier}").select("description", "properties").collect()[0]
        wanted = {name: value for name, value in (properties or {}).items() if detail["properties"].get(name) != value}
        if detail["description"] != table.meaning:
            wanted["comment"] = table.meaning
        if wanted:
            pairs = ", ".join(f"'{name}' = '{quoted(value)}'" for name, value in wanted.items())
            spark.sql(f"ALTER TABLE {identifier} SET TBLPROPERTIES ({pairs})")
    except PySparkException as error:
        log.warning("the comments of %s are not set: %s", identifier, str(error).partition("\n")[0])


def _describe_columns(spark: SparkSession, identifier: str, table: FieldTable) -> None:
    from pyspark.errors import ParseException

    meanings = {column.name.lower(): column.meaning for column in table.fields}
    stale = [
        f"`{field.name}` COMMENT '{quoted(meaning)}'"
        for field in spark.table(identifier).schema.fields
        if (meaning := meanings.get(field.name.lower())) and field.metadata.get("comment") != meaning
    ]
    if not stale:
        return
    try:
        spark.sql(f"ALTER TABLE {identifier} ALTER COLUMN {', '.join(stale)}")
    except ParseException:
        # Spark before 4.0 and Databricks before 16.3 take one column per statement.
        for one in stale:
            spark.sql(f"ALTER TABLE {identifier} ALTER COLUMN {one}")


def delta_field(column: Field) -> Any:
    """The column in a schema of deltalake."""
    arrow = pa.field(column.name, ARROW[column.type])
    metadata = {"comment": column.meaning} if column.meaning else None
    return DeltaField(column.name, DeltaField.from_arrow(arrow).type, nullable=True, metadata=metadata)


def _described(field: DeltaField, meaning: str) -> Any:
    return DeltaField(field.name, field.type, nullable=field.nullable, metadata={"comment": meaning})


def _placed(column: Field, table: FieldTable, known: Set[str]) -> str:
    at = table.names.index(column.name)
    behind = f" AFTER `{table.names[at - 1]}`" if at and table.names[at - 1].lower() in known else ""
    return f"{column_sql(column)}{behind}"
