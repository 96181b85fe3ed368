"""Identifies a Delta table: by name in a catalog, or by path in tests and local runs. Opens nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from broker_edge.errors import SinkError

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Table:
    """`Table.named("catalog.schema.table")` or `Table.at(Path(...))`; exactly one of `name` and `path` is set."""

    name: str | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        if (self.name is None) == (self.path is None):
            raise SinkError("a table has either a name or a path")
        if self.name is not None and _NAME.fullmatch(self.name) is None:
            raise SinkError(f"{self.name!r} is not a table name of the form catalog.schema.table")

    @classmethod
    def named(cls, name: str) -> Table:
        return cls(name=name)

    @classmethod
    def at(cls, path: Path | str) -> Table:
        """Makes a local path absolute; leaves a URI unchanged."""
        text = str(path)
        return cls(path=text if "://" in text else str(Path(text).absolute()))

    def __str__(self) -> str:
        return self.name or self.path or ""

    @property
    def identifier(self) -> str:
        """For SQL: the name, or Delta's notation for a path."""
        return self.name if self.name is not None else f"delta.`{self.path}`"

    def exists(self, spark: SparkSession) -> bool:
        """Whether a Delta table exists there."""
        from delta.tables import DeltaTable

        if self.name is not None:
            return bool(spark.catalog.tableExists(self.name))
        return bool(DeltaTable.isDeltaTable(spark, self.path))

    def read(self, spark: SparkSession) -> DataFrame:
        reader: DataFrameReader = spark.read
        return reader.table(self.name) if self.name is not None else reader.format("delta").load(self.path)
