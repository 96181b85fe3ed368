"""Creates the tables: by path without a JVM, or by name with Spark.

All tables have `tenant` and a change data feed. None is clustered, because a writer without a JVM cannot append to a
clustered table. None has deletion vectors, so that every reader can read them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import DeltaTable, Schema

from broker_edge.errors import SettingsError
from broker_edge.fields import FieldTable, quoted
from sinks.tables.actions import (
    ACTION_EVENTS,
    ACTION_EVENTS_ARCHIVE,
    ACTION_JOURNAL,
    ACTION_REQUESTS,
    ACTION_REQUESTS_ARCHIVE,
    ACTION_STATE,
    ACTION_TARGETS,
    ACTION_TARGETS_ARCHIVE,
    ACTIONS,
    BROKER_LOGS,
)
from sinks.tables.devices import ARTIFACTS, DEVICE_STATE, DEVICES, SELECTORS
from sinks.tables.existing import delta_field, update_by_path, update_in_spark
from sinks.tables.ingest import QUARANTINE, QUARANTINE_ARCHIVE
from sinks.tables.views import create_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROPERTIES: Mapping[str, str] = {"delta.enableChangeDataFeed": "true", "delta.enableDeletionVectors": "false"}

_OWN_PROPERTIES: Mapping[str, Mapping[str, str]] = {
    # A commit each second: statistics only of the columns by which rows are looked for, and fewer checkpoints.
    ACTION_EVENTS.name: {
        "delta.dataSkippingStatsColumns": "action_id,log_id,partition,offset,recorded_at",
        "delta.checkpointInterval": "1000",
    },
    # Its rows live for minutes and are read only as a whole: no change data, no statistics, a short log.
    ACTION_JOURNAL.name: {
        "delta.enableChangeDataFeed": "false",
        "delta.dataSkippingNumIndexedCols": "0",
        "delta.deletedFileRetentionDuration": "interval 1 hours",
        "delta.logRetentionDuration": "interval 1 days",
        "delta.checkpointInterval": "500",
    },
}

TABLES: Mapping[str, FieldTable] = {
    table.name: table
    for table in (
        ACTIONS,
        ACTION_REQUESTS,
        DEVICES,
        ARTIFACTS,
        SELECTORS,
        DEVICE_STATE,
        ACTION_TARGETS,
        ACTION_STATE,
        ACTION_JOURNAL,
        BROKER_LOGS,
        ACTION_EVENTS,
        ACTION_EVENTS_ARCHIVE,
        ACTION_TARGETS_ARCHIVE,
        ACTION_REQUESTS_ARCHIVE,
        QUARANTINE,
        QUARANTINE_ARCHIVE,
    )
}
"""The tables that `create_by_path` creates by default."""

_SCHEMA_NAME = re.compile(r"\w+(\.\w+)?")


def properties_of(table: FieldTable) -> Mapping[str, str]:
    """The Delta properties with which a table is created."""
    return {**PROPERTIES, **own_properties(table.name)}


def own_properties(name: str) -> Mapping[str, str]:
    """Those in which the table of this name differs from the others."""
    return _OWN_PROPERTIES.get(name, {})


def uri_of(root: Path | str, name: str) -> str:
    """The address of the table `name` under `root`, a folder or an object store address."""
    return f"{str(root).rstrip('/')}/{name}"


def create_by_path(
    root: Path | str,
    *,
    storage_options: Mapping[str, str] | None = None,
    tables: Iterable[FieldTable] = TABLES.values(),
) -> None:
    """Creates missing tables under `root`, and adds missing columns and comments to tables of an older version.

    Needs no JVM. Existing rows do not change.
    """
    for table in tables:
        uri = uri_of(root, table.name)
        options = dict(storage_options) if storage_options else None
        if DeltaTable.is_deltatable(uri, storage_options=options):
            update_by_path(DeltaTable(uri, storage_options=options), table)
            continue
        fields = [delta_field(column) for column in table.fields]
        DeltaTable.create(
            uri,
            schema=Schema(fields),
            mode="ignore",
            name=table.name,
            description=table.meaning,
            configuration={**properties_of(table)},
            storage_options=options,
        )


def create_by_name(
    spark: SparkSession, schema: str, *, root: Path | str | None = None, tables: Iterable[FieldTable] = TABLES.values()
) -> None:
    """Creates missing tables in `schema` (`schema` or `catalog.schema`), which must exist, and adds missing columns and
    comments to those that exist. Views over these tables are in the same schema.

    With `root` they are external tables under it: tables that `create_by_path` created there get names.
    """
    if not _SCHEMA_NAME.fullmatch(schema):
        raise SettingsError(f"{schema!r} is not a schema: write schema or catalog.schema")
    tables = tuple(tables)
    for table in tables:
        if root is not None and DeltaTable.is_deltatable(uri_of(root, table.name)):
            # An existing table keeps its schema and properties; the statement must not ask for others.
            text = f"CREATE TABLE IF NOT EXISTS {schema}.{table.name} USING DELTA"
        else:
            properties = ", ".join(f"'{key}' = '{value}'" for key, value in properties_of(table).items())
            text = f"CREATE TABLE IF NOT EXISTS {schema}.{table.name} ({table.ddl()}) USING DELTA"
            text += f" COMMENT '{quoted(table.meaning)}' TBLPROPERTIES ({properties})"
        if root is not None:
            text += f" LOCATION '{quoted(uri_of(root, table.name))}'"
        spark.sql(text)
        update_in_spark(spark, f"{schema}.{table.name}", table)
    create_views(spark, schema, tables)
