"""How every pipeline opens the source: the same brokers, its own consumer group, headers included."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from broker_edge.access import BrokerAccess
from sources.access import access_options
from sources.options import parse_options
from sources.splits import Split, read_split


def headwater_options(
    *,
    servers: Sequence[BrokerAccess | str],
    subscribe: Sequence[str],
    consumer_group: str,
    places: Mapping[str, Any] | None = None,
    max_offsets_per_trigger: int | None = None,
    fail_on_data_loss: bool = True,
) -> dict[str, str]:
    """The options of a stream of the records published to `subscribe`. They hold references, never secrets.

    With an empty checkpoint, a partition starts at `places` (`{log id: {partition: [next, epoch]}}`) if it is named
    there, otherwise where the group started, otherwise at the oldest record.
    """
    options = {
        **access_options(servers),
        "subscribe": ",".join(subscribe),
        "consumerGroup": consumer_group,
        "startingOffsets": json.dumps(places) if places else "earliest",
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "includeHeaders": "true",
    }
    if max_offsets_per_trigger is not None:
        options["maxOffsetsPerTrigger"] = str(max_offsets_per_trigger)
    return options


def headwater_stream(
    spark: SparkSession,
    *,
    servers: Sequence[BrokerAccess | str],
    subscribe: Sequence[str],
    consumer_group: str,
    places: Mapping[str, Any] | None = None,
    max_offsets_per_trigger: int | None = None,
    fail_on_data_loss: bool = True,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """The records in the canonical schema; see `headwater_options`. `options` overrides them."""
    chosen = headwater_options(
        servers=servers,
        subscribe=subscribe,
        consumer_group=consumer_group,
        places=places,
        max_offsets_per_trigger=max_offsets_per_trigger,
        fail_on_data_loss=fail_on_data_loss,
    )
    return spark.readStream.format("headwater").options(**(chosen | dict(options or {}))).load()


def headwater_splits(spark: SparkSession, options: Mapping[str, str]) -> tuple[DataFrame, SplitReader]:
    """A stream of splits in place of rows, for the same `options`, and the object that reads the splits in tasks."""
    splits = spark.readStream.format("headwater").options(**options, **{"yield": "splits"}).load()
    return splits, SplitReader(options)


@dataclass(frozen=True, slots=True)
class SplitReader:
    """Reads, in a task, the splits that the rows of a stream with `yield=splits` name. `options` are those of that
    stream."""

    options: Mapping[str, str]

    def __call__(self, rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        options = parse_options(self.options)
        for batch in rows:
            for row in batch.to_pylist():
                yield from read_split(Split.of(row), options)
