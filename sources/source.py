"""The data source `headwater`: hands options and schema to the readers. Nothing connects before a reader is asked."""

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
    """The same, in a session that hands the filters of batch queries down."""

    def reader(self, schema: StructType) -> BatchReader:
        return FilteringBatchReader(self._parsed)


PUSHDOWN_CONF = "spark.sql.python.filterPushdown.enabled"


def register(spark: SparkSession) -> None:
    """Makes `format("headwater")` known to a session, and lets it hand down filters, where it may be told to."""
    try:
        spark.conf.set(PUSHDOWN_CONF, "true")
    except PySparkException:
        # A platform may keep its settings to itself; then batch queries read more.
        spark.dataSource.register(HeadwaterDataSource)
    else:
        spark.dataSource.register(FilteringDataSource)
