"""The tables beside silver: what is gone, and what quality was found; and where these and silver itself are.

`quarantine` is the same table that the jobs of actions use; its columns are in `pipelines.tables`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from pipelines import tables
from pipelines.errors import SettingsError
from pipelines.settings import SilverSettings
from pipelines.tables import Column, uri_of
from sinks.table import Table as SinkTable

_TENANT = Column("tenant", "string", "who owns the row; null means default")

INGEST_GAPS = tables.Table(
    "ingest_gaps",
    "Offsets that readers had to do without, as the brokers reported them. Append-only.",
    (
        _TENANT,
        Column("log_id", "string"),
        Column("partition", "int", "the partition with the gap"),
        Column("partition_name", "string", "<class>-<n>"),
        Column("start", "bigint", "the first offset that is gone"),
        Column("end", "bigint", "the first offset behind the gap; null where nobody could tell"),
        Column("reason", "string", "retention, damage, purge, or a reader's own words"),
        Column("consumer_group", "string", "who had not read them; null: nobody in particular"),
        Column("reported_at", "timestamp", "by the broker's clock"),
        Column("report_log_id", "string", "the log that has the report, and with it its offset there"),
        Column("report_offset", "bigint"),
        Column("recorded_at", "timestamp", "when the row was made"),
    ),
    key=("report_log_id", "report_offset"),
)

DQ_RESULTS = tables.Table(
    "dq_results",
    "What the quality rules found: of every batch by count, of samples by the suite. Append-only.",
    (
        _TENANT,
        Column("source", "string", "batch: every row of a batch; suite: a sample of the table"),
        Column("message", "string", "the message schema"),
        Column("rule", "string"),
        Column("column", "string"),
        Column("check", "string"),
        Column("on_fail", "string", "quarantine or warn"),
        Column("success", "boolean"),
        Column("checked", "bigint", "rows that were judged"),
        Column("failed", "bigint", "rows that broke the rule; null from the suite, which only says yes or no"),
        Column("query_id", "string", "the streaming query of a batch"),
        Column("batch_id", "bigint"),
        Column("at", "timestamp", "when the row was made"),
    ),
)

BESIDE_SILVER = (INGEST_GAPS, DQ_RESULTS, tables.QUARANTINE)


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where tables are: under a folder, or in a schema of a catalog. Exactly one of the two is set."""

    root: str | None = None
    catalog_schema: str | None = None

    def __post_init__(self) -> None:
        if (self.root is None) == (self.catalog_schema is None):
            raise SettingsError("tables are under a root or in a catalog_schema: give one of the two")

    @classmethod
    def of(cls, settings: SilverSettings) -> TablePlace:
        return cls(settings.root, settings.catalog_schema)

    def table(self, name: str) -> SinkTable:
        if self.root is not None:
            return SinkTable.at(uri_of(self.root, name))
        return SinkTable.named(f"{self.catalog_schema}.{name}")

    def make(self, spark: SparkSession | None, wanted: Iterable[tables.Table] = BESIDE_SILVER) -> None:
        """Makes the tables that are not there yet. Tables with names need a session."""
        if self.root is not None:
            tables.create_by_path(self.root, tables=wanted)
        elif spark is not None:
            tables.create_by_name(spark, self.catalog_schema or "", tables=wanted)
        else:
            raise SettingsError(
                f"the tables of {self.catalog_schema} have names, and only a Spark session can write them"
            )
