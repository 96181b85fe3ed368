"""Comments set through Spark where it refuses a statement: one column at a time, or a line in the log. The statements
themselves run in tests/spark/test_views.py."""

from __future__ import annotations

import logging
from typing import Any, cast

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from broker_edge.fields import Field, FieldTable
from sinks.tables import describe_in_spark

PLACES = FieldTable(
    "places", "Where things are.", "people", (Field("x", "string", "east"), Field("y", "string", "it's"))
)


class Session:
    """A session with one table without comments, which refuses statements."""

    def __init__(self, *, refuses: str, error: type[Exception]) -> None:
        self.done: list[str] = []
        self._refuses, self._error = refuses, error
        self.schema = StructType([StructField("x", StringType()), StructField("y", StringType())])

    def table(self, name: str) -> Session:
        return self

    def sql(self, text: str) -> Session:
        if self._refuses in text:
            raise self._error("[REFUSED] no\nand a plan")
        self.done.append(text)
        return self

    def select(self, *names: str) -> Session:
        return self

    def collect(self) -> list[dict[str, Any]]:
        return [{"description": None, "properties": {"a": "1"}}]


def test_an_older_spark_gets_one_column_per_statement() -> None:
    spark = Session(refuses=", `y`", error=ParseException)
    describe_in_spark(cast(SparkSession, spark), "t", PLACES, properties={"a": "1", "b": "2"})
    assert spark.done == [
        "ALTER TABLE t ALTER COLUMN `x` COMMENT 'east'",
        "ALTER TABLE t ALTER COLUMN `y` COMMENT 'it\\'s'",
        "DESCRIBE DETAIL t",
        "ALTER TABLE t SET TBLPROPERTIES ('b' = '2', 'comment' = 'Where things are.')",
    ]


def test_without_the_right_to_change_a_table_the_job_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    spark = Session(refuses="ALTER", error=AnalysisException)
    with caplog.at_level(logging.WARNING):
        describe_in_spark(cast(SparkSession, spark), "t", PLACES)
    assert [record.getMessage() for record in caplog.records] == ["the comments of t are not set: [REFUSED] no"]
