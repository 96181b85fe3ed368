"""The data source `headwater`: passes options and schema to the readers. Opens no connection itself."""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from sources.batch import BatchReader, FilteringBatchReader
from sources.options import parse_options
from sources.schema import spark_schema
from sources.splits import spark_split_schema
from sources.stream import StreamReader


class HeadwaterDataSource(DataSource):  # type: ignore[misc]
    """`spark.read` and `spark.readStream`, `.format("headwater")`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = parse_options(dict(options))

    @classmethod
    def name(cls) -> str:
        return "headwater"

    def schema(self) -> StructType:
        if self._parsed.yields_splits:
            return spark_split_schema()
        return spark_schema(include_headers=self._parsed.include_headers)

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self._parsed)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(self._parsed)


class FilteringDataSource(HeadwaterDataSource):
    """The data source for a session that enables filter push-down for batch queries."""

    def reader(self, schema: StructType) -> BatchReader:
        return FilteringBatchReader(self._parsed)


PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Registers `format("headwater")` in a session, and enables filter push-down if the platform allows that."""
    try:
        spark.conf.set(PUSHDOWN_CONF, "true")
    except PySparkException:
        # Some platforms do not allow changing the setting; batch queries then read more.
        spark.dataSource.register(HeadwaterDataSource)
    else:
        spark.dataSource.register(FilteringDataSource)
