"""The source and the telemetry pipeline against the real broker: what is in the log is in Spark, byte for byte and
once.

Everything else about the source is shown against a broker in memory, which can lose records on demand.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.broker_process import BrokerProcess
from support.programs import headwaterd

from broker_edge import Client, Row
from pipelines.settings import Settings, TelemetrySettings
from pipelines.telemetry import start_telemetry
from sinks import Table, duplicates

FILTER = "devices/+/telemetry"
SEED = 20_261_121


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A real broker with an empty log."""
    headwaterd()
    with BrokerProcess(data_dir=tmp_path / "log", log_file=tmp_path / "broker.txt") as process:
        process.start()
        yield process


def server(broker: BrokerProcess) -> str:
    return "grpc://{}:{}".format(*broker.flight)


def publish(broker: BrokerProcess, count: int, *, kind: str = "telemetry") -> dict[tuple[int, int], Row]:
    """Records with random payloads and headers; where each of them is."""
    chance = random.Random(SEED + count)
    rows = [
        Row(
            topic=f"devices/d{chance.randrange(50)}/{kind}",
            value=chance.randbytes(chance.randrange(400)),
            headers=(("unit", b"C"), ("", b"")) if chance.random() < 0.3 else (),
        )
        for _ in range(count)
    ]
    with Client(server(broker)) as client:
        places = client.produce(rows)
    return {(place.partition, place.offset): row for place, row in zip(places, rows, strict=True)}


def settings(broker: BrokerProcess, folder: Path) -> Settings:
    telemetry = TelemetrySettings(
        table_path=str(folder / "bronze"), checkpoint=str(folder / "checkpoint"), max_offsets_per_trigger=700
    )
    return Settings(servers=[server(broker)], telemetry=telemetry)


def test_a_batch_read_equals_what_was_published(spark: SparkSession, broker: BrokerProcess) -> None:
    published = publish(broker, 5_000)
    publish(broker, 500, kind="status")
    options = {"servers": server(broker), "subscribe": FILTER, "includeHeaders": "true"}
    rows = spark.read.format("headwater").options(**options).load().collect()
    assert len(rows) == 5_000
    with Client(server(broker)) as client:
        log_id = client.version().log_id
    for row in rows:
        sent = published[(row.partition, row.offset)]
        assert (row.topic, bytes(row.value), row.log_id, row.timestampType) == (sent.topic, sent.value, log_id, 1)
        assert bytes(row.key) == sent.topic.split("/")[1].encode()
        headers = () if row.headers is None else tuple((one.key, bytes(one.value)) for one in row.headers)
        assert headers == tuple(sent.headers)


def test_every_record_is_in_bronze_once_over_restarts_of_broker_and_query(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    published = set(publish(broker, 2_000))
    start_telemetry(spark, settings(broker, tmp_path), available_now=True).awaitTermination()
    broker.kill()
    broker.start()
    published |= set(publish(broker, 1_000))
    publish(broker, 300, kind="status")
    query = start_telemetry(spark, settings(broker, tmp_path), available_now=True)
    query.awaitTermination()
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert max(sizes) <= 700
    rows = Table.at(tmp_path / "bronze").read(spark)
    assert {(row.partition, row.offset) for row in rows.select("partition", "offset").collect()} == published
    assert rows.count() == 3_000
    assert duplicates(rows).count() == 0
    with Client(server(broker)) as client:
        group = client.committed("telemetry")
        heads = client.plan(dict.fromkeys(client.offsets(filters=FILTER).partitions, 0), filters=FILTER)
    committed = {number: place.committed for number, place in group.partitions.items()}
    assert committed == {number: place.end for number, place in heads.partitions.items()}


def test_epochs_grow_with_restarts_and_are_in_the_checkpoint(
    spark: SparkSession, broker: BrokerProcess, tmp_path: Path
) -> None:
    publish(broker, 100)
    broker.stop()
    broker.start()
    publish(broker, 100)
    start_telemetry(spark, settings(broker, tmp_path), available_now=True).awaitTermination()
    rows = Table.at(tmp_path / "bronze").read(spark)
    assert rows.select("epoch").distinct().count() == 2
    newest = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offset = json.loads(newest.read_text().splitlines()[-1])
    ends = {place[1] for places in offset["logs"].values() for place in places.values()}
    assert ends == {max(row.epoch for row in rows.select("epoch").distinct().collect())}
