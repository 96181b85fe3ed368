"""How every pipeline opens the source: the same brokers, a consumer group of its own, headers included."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def headwater_stream(
    spark: SparkSession,
    *,
    servers: Sequence[str],
    subscribe: Sequence[str],
    consumer_group: str,
    places: Mapping[str, Any] | None = None,
    max_offsets_per_trigger: int | None = None,
    fail_on_data_loss: bool = True,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The stream of what is published to `subscribe`, in the canonical schema.

    It begins at `places` (`{log id: {partition: [next, epoch]}}`) where that names a partition, else where the group
    began, else at the oldest record; all that only with an empty checkpoint.
    """
    reader = (
        spark.readStream.format("headwater")
        .option("servers", ",".join(servers))
        .option("subscribe", ",".join(subscribe))
        .option("consumerGroup", consumer_group)
        .option("startingOffsets", json.dumps(places) if places else "earliest")
        .option("failOnDataLoss", str(fail_on_data_loss).lower())
        .option("includeHeaders", "true")
    )
    if max_offsets_per_trigger is not None:
        reader = reader.option("maxOffsetsPerTrigger", str(max_offsets_per_trigger))
    return reader.options(**(options or {})).load()
