"""The source in real Spark: behaviour that the reader tests cannot show, which is Spark's order of calls and its
workers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.flight_server import FlightServer

from pipelines.spark.errors import own_error

FILTER = "devices/+/telemetry"
COLUMNS = [
    ("key", "binary"),
    ("value", "binary"),
    ("topic", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("timestamp", "timestamp"),
    ("timestampType", "int"),
    ("headers", "array<struct<key:string,value:binary>>"),
    ("log_id", "string"),
    ("epoch", "bigint"),
    ("qos", "tinyint"),
    ("retain", "boolean"),
    ("client_id", "string"),
]


def fill(server: FlightServer, count: int) -> None:
    for number in range(count):
        headers = [("unit", b"C")] if number % 2 else None
        server.log.append(f"devices/d{number % 20}/telemetry", b"%d" % number, headers=headers, client_id="c")


def batch(spark: SparkSession, server: FlightServer, **options: str) -> DataFrame:
    base = {"servers": server.location, "subscribe": FILTER}
    return spark.read.format("headwater").options(**base, **options).load()


def drain(
    spark: SparkSession, server: FlightServer, folder: Path, **options: str
) -> tuple[list[dict[str, Any]], list[int]]:
    """Runs an AvailableNow query into Parquet; returns all rows of the table, and the sizes of this run's batches."""
    query = start(spark, server, folder, **options)
    query.awaitTermination()
    sizes = [progress["numInputRows"] for progress in query.recentProgress]
    rows = [row.asDict() for row in spark.read.parquet(str(folder / "rows")).collect()]
    return rows, [size for size in sizes if size]


def start(spark: SparkSession, server: FlightServer, folder: Path, **options: str) -> StreamingQuery:
    base = {"servers": server.location, "subscribe": FILTER, "pollTimeoutMs": "2000"}
    records = spark.readStream.format("headwater").options(**{**base, **options}).load()
    sink = records.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    return sink.option("path", str(folder / "rows")).trigger(availableNow=True).start()


def failure(action: Any) -> str:
    """Our own message inside Spark's error."""
    with pytest.raises(PySparkException) as error:
        action()
    found = own_error(error.value)
    assert found is not None, str(error.value)
    return found[1]


def test_a_batch_read_equals_the_records(spark: SparkSession, flight_server: FlightServer) -> None:
    fill(flight_server, 1_000)
    rows = batch(spark, flight_server, includeHeaders="true")
    assert [(field.name, field.dataType.simpleString()) for field in rows.schema.fields] == COLUMNS
    found = {(row.partition, row.offset): row for row in rows.collect()}
    log = flight_server.log
    expected = {(n, record.offset): record for n in (3, 4) for record in log.partitions[n].records}
    assert set(found) == set(expected)
    for place, record in expected.items():
        row = found[place]
        assert (bytes(row.key), bytes(row.value), row.topic) == (record.key, record.value, record.topic)
        assert (row.log_id, row.epoch, row.qos, row.retain) == (log.log_id, record.epoch, record.qos, record.retain)
        assert (row.timestampType, row.client_id) == (1, "c")
        headers = None if row.headers is None else tuple((one.key, bytes(one.value)) for one in row.headers)
        assert headers == record.headers
    stamps = rows.selectExpr("unix_micros(timestamp) AS us", "partition", "offset").collect()
    assert {(row.partition, row.offset): row.us for row in stamps} == {
        place: record.timestamp_us for place, record in expected.items()
    }


def test_a_batch_read_keeps_to_its_bounds(spark: SparkSession, flight_server: FlightServer) -> None:
    fill(flight_server, 1_000)
    log = flight_server.log
    bounds = {"startingOffsets": {"3": 10, "4": 20}, "endingOffsets": {"3": 15, "4": 20}}
    rows = batch(spark, flight_server, **{name: json.dumps({log.log_id: value}) for name, value in bounds.items()})
    assert [field.name for field in rows.schema.fields] == [name for name, _ in COLUMNS if name != "headers"]
    assert sorted((row.partition, row.offset) for row in rows.collect()) == [(3, offset) for offset in range(10, 15)]
    later = {"startingTimestamp": "2100-01-01T00:00:00Z"}
    assert batch(spark, flight_server, startingOffsetsByTimestampStrategy="latest", **later).count() == 0
    assert "startingOffsetsByTimestampStrategy=latest" in failure(lambda: batch(spark, flight_server, **later).count())
    assert batch(spark, flight_server, minPartitions="8").rdd.getNumPartitions() == 8


def test_a_stream_reads_what_is_there_in_bounded_batches(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    fill(flight_server, 1_000)
    rows, sizes = drain(spark, flight_server, tmp_path, maxOffsetsPerTrigger="400", consumerGroup="g")
    assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows) == 1_000
    assert sizes == [400, 400, 200]
    group = flight_server.log.groups["g"]
    assert sum(group.committed.values()) == 1_000, "the last batch of a run is committed too"
    fill(flight_server, 100)
    rows, sizes = drain(spark, flight_server, tmp_path, maxOffsetsPerTrigger="400", consumerGroup="g")
    assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows) == 1_100
    assert sizes == [100]


def test_latest_is_kept_over_a_first_batch_that_is_replayed(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    fill(flight_server, 100)
    options = {"startingOffsets": "latest", "consumerGroup": "g", "pollTimeoutMs": "500"}
    _, sizes = drain_nothing(spark, flight_server, tmp_path, **options)
    assert sizes == []
    fill(flight_server, 50)

    def refuse(name: str) -> None:
        if name == "DoGet":
            raise ConnectionError("not now")

    # The first batch is planned and fails while it is read; then more records arrive.
    flight_server.before = refuse
    query = start(spark, flight_server, tmp_path, **options)
    with pytest.raises(PySparkException):
        query.awaitTermination()
    flight_server.before = lambda name: None
    fill(flight_server, 25)
    rows, _ = drain(spark, flight_server, tmp_path, **options)
    assert len({(row["partition"], row["offset"]) for row in rows}) == len(rows) == 75


def drain_nothing(
    spark: SparkSession, server: FlightServer, folder: Path, **options: str
) -> tuple[list[dict[str, Any]], list[int]]:
    query = start(spark, server, folder, **options)
    query.awaitTermination()
    return [], [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]


def test_bad_input_is_one_sentence(spark: SparkSession, flight_server: FlightServer, tmp_path: Path) -> None:
    # Spark passes the names of options in lower case.
    sentence = failure(lambda: batch(spark, flight_server, startingOffset="earliest"))
    assert sentence == "unknown option startingoffset of the source headwater: did you mean startingOffsets?"
    assert "for streams" in failure(lambda: batch(spark, flight_server, maxOffsetsPerTrigger="5").count())
    fill(flight_server, 10)
    flight_server.log.expire(3, 1)
    flight_server.log.expire(4, 1)
    wanted = json.dumps({flight_server.log.log_id: {"3": 0}})
    sentence = failure(lambda: batch(spark, flight_server, startingOffsets=wanted).count())
    assert "offset 0 of partition 3" in sentence
    assert "the oldest kept is 1" in sentence


def test_a_server_that_is_down_is_one_sentence(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    flight_server.down()
    expected = (
        f"cannot reach the broker at {flight_server.location}: Connection refused; "
        "check that it runs and that `servers` names its Flight port"
    )
    assert failure(lambda: batch(spark, flight_server).count()) == expected
    assert failure(lambda: start(spark, flight_server, tmp_path).awaitTermination()) == expected
