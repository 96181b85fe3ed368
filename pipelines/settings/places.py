"""The companion tables of silver (gaps and quality results), and where these and silver itself are.

`quarantine` is the same table that the jobs of actions use; its columns are in `sinks.tables`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from broker_edge.errors import SettingsError
from pipelines.settings import SilverSettings
from sinks import tables
from sinks.probe import require_safe_commits
from sinks.store import StoreAccess
from sinks.table import Table as SinkTable
from sinks.tables import BESIDE_SILVER, uri_of
from sinks.torn_commits import repair_tables


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Where the tables are: in a folder, or in a schema of a catalog. Exactly one of the two is set. `access` is for a
    folder in an object store."""

    root: str | None = None
    catalog_schema: str | None = None
    access: StoreAccess = field(default_factory=StoreAccess)

    def __post_init__(self) -> None:
        if (self.root is None) == (self.catalog_schema is None):
            raise SettingsError(
                "tables are under a root or in a catalog_schema: give one of the two, and null for the other"
            )

    @classmethod
    def of(cls, settings: SilverSettings, access: StoreAccess | None = None) -> TablePlace:
        return cls(settings.root, settings.catalog_schema, access or StoreAccess.of({}))

    def table(self, name: str) -> SinkTable:
        if self.root is not None:
            return SinkTable.at(uri_of(self.root, name), self.access)
        return SinkTable.named(f"{self.catalog_schema}.{name}")

    def make(self, spark: SparkSession | None, wanted: Iterable[tables.FieldTable] = BESIDE_SILVER) -> None:
        """Creates missing tables, and repairs those that a power cut left incomplete. Tables given by name need a
        session."""
        if self.root is not None:
            repair_tables(self.root)
            require_safe_commits(self.root, self.access)
            tables.create_by_path(self.root, storage_options=self.access.deltalake(), tables=wanted)
        elif spark is not None:
            tables.create_by_name(spark, self.catalog_schema or "", tables=wanted)
        else:
            raise SettingsError(
                f"the tables of {self.catalog_schema} are given by name, and only a Spark session can write them: "
                "pass one, or give a root instead of catalog_schema"
            )
