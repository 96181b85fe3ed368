"""Python workers of a local session: the modules that are imported before the fork."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession


def test_workers_are_forked_with_what_they_share_and_keep_it_out_of_garbage_collection(spark: SparkSession) -> None:
    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pylist([{"frozen": gc.get_freeze_count()}])

    found = spark.range(1).mapInArrow(look, "frozen long").collect()
    assert [row["frozen"] > 10_000 for row in found] == [True]
