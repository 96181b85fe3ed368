"""Identifies a Delta table: by name in a catalog, or by path, with the access to its store."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from broker_edge.errors import SinkError
from sinks.connect import is_connect
from sinks.store import StoreAccess, is_s3

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){0,2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Table:
    """`Table.named("catalog.schema.table")` or `Table.at(Path(...))`; exactly one of `name` and `path` is set."""

    name: str | None = None
    path: str | None = None
    access: StoreAccess = field(default_factory=StoreAccess)

    def __post_init__(self) -> None:
        if (self.name is None) == (self.path is None):
            raise SinkError("a table has either a name or a path")
        if self.name is not None and _NAME.fullmatch(self.name) is None:
            raise SinkError(f"{self.name!r} is not a table name of the form catalog.schema.table")

    @classmethod
    def named(cls, name: str) -> Table:
        return cls(name=name)

    @classmethod
    def at(cls, path: Path | str, access: StoreAccess | None = None) -> Table:
        """Makes a local path absolute; leaves a URI unchanged."""
        text = str(path)
        return cls(path=text if "://" in text else str(Path(text).absolute()), access=access or StoreAccess.of({}))

    def __str__(self) -> str:
        return self.name or self.path or ""

    @property
    def identifier(self) -> str:
        """For SQL: the name, or Delta's notation for a path."""
        return self.name if self.name is not None else f"delta.`{self.path}`"

    @property
    def is_for_one_writer(self) -> bool:
        """Whether either Spark, in one process, or deltalake may write it: Spark's commits to S3 replace a commit that
        another program made in the same moment."""
        return self.path is not None and is_s3(self.path)

    def delta(self) -> DeltaTable:
        """The newest version of a table by path, without a JVM. Raises deltalake's errors."""
        return DeltaTable(self.path or "", storage_options=self.access.deltalake())

    def is_there(self) -> bool:
        """Like `exists` for a table by path, without a JVM."""
        return bool(DeltaTable.is_deltatable(self.path or "", storage_options=self.access.deltalake()))

    def exists(self, spark: SparkSession) -> bool:
        """Whether a Delta table exists there."""
        if self.name is not None:
            return bool(spark.catalog.tableExists(self.name))
        if is_connect(spark):
            # Delta's own question needs a plugin at the server.
            return _can_be_read(self.read(spark))
        from delta.tables import DeltaTable as SparkTable

        return bool(SparkTable.isDeltaTable(spark, self.path))

    def read(self, spark: SparkSession) -> DataFrame:
        reader: DataFrameReader = spark.read
        return reader.table(self.name) if self.name is not None else reader.format("delta").load(self.path)


def _can_be_read(rows: DataFrame) -> bool:
    try:
        rows.schema  # noqa: B018 (asks the server)
    except PySparkException as error:
        if any(sign in str(error) for sign in _NO_TABLE):
            return False
        raise
    return True


_NO_TABLE = ("DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "DELTA_MISSING_DELTA_TABLE", "PATH_NOT_FOUND")
