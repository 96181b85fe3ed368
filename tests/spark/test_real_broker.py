"""The source and the telemetry pipeline against the real broker: Spark gets each record of the log once, byte for byte.

Other tests of the source use a broker in memory, which can lose records on demand.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.programs import headwaterd
from support.source_driver import open_reader, read_rows

from broker_edge import Client, Row
from broker_edge.errors import DataLossError, FencedError, RefusedError, UnavailableError
from broker_edge.torture.process import BrokerProcess
from pipelines.settings import Settings, TelemetrySettings
from pipelines.telemetry import start_telemetry
from sinks import Table, duplicates
from sources.log_server import LogServer

FILTER = "devices/+/telemetry"
SEED = 20_261_121
RETAINED_BYTES = 256 << 10


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
    """Publishes records with random payloads and headers; returns their positions."""
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


def commit_sizes(table: Path) -> list[int]:
    """Records added by each commit; one batch is one commit."""
    logs = [log.read_text().splitlines() for log in (table / "_delta_log").glob("*.json")]
    adds = [[line["add"] for line in map(json.loads, lines) if "add" in line] for lines in logs]
    return [sum(json.loads(one["stats"])["numRecords"] for one in found) for found in adds if found]


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
    start_telemetry(spark, settings(broker, tmp_path), available_now=True).awaitTermination()
    assert max(commit_sizes(tmp_path / "bronze")) <= 700
    rows = Table.at(tmp_path / "bronze").read(spark)
    assert {(row.partition, row.offset) for row in rows.select("partition", "offset").collect()} == published
    assert rows.count() == 3_000
    assert duplicates(rows).count() == 0
    with Client(server(broker)) as client:
        group = client.committed("telemetry")
        heads = client.plan(dict.fromkeys(client.offsets(filters=FILTER).partitions, 0), filters=FILTER)
    committed = {number: place.committed for number, place in group.partitions.items()}
    assert committed == {number: place.end for number, place in heads.partitions.items()}


def test_the_broker_s_refusals_are_understood(broker: BrokerProcess) -> None:
    """gRPC adds its own text to errors; the reader must find the protocol's JSON in it."""
    partition, _ = next(iter(publish(broker, 10)))
    log = LogServer(server(broker))
    head = log.offsets(partitions=[partition])["partitions"][str(partition)]["high_watermark"]
    for action in (
        lambda: list(log.get(partition, 0, head + 5, filters=None, timeout_seconds=10)),
        lambda: log.plan({partition: head + 5}, filters=None, max_records=None, max_bytes=None),
    ):
        with pytest.raises(RefusedError) as refused:
            action()
        assert refused.value.code == "out_of_range"
        assert (refused.value.detail["log_start"], refused.value.detail["high_watermark"]) == (0, head)
    with pytest.raises(RefusedError) as refused:
        log.offsets(partitions=[999])
    assert refused.value.code == "not_found"
    log.commit("g", 7, initial={partition: 3})
    assert log.commit("g", 7, initial={partition: 5})["partitions"][str(partition)]["initial"] == 3
    with pytest.raises(FencedError, match="another query reads with consumer group g"):
        log.commit("g", 6, finished={partition: (4, None)})
    broker.kill()
    with pytest.raises(UnavailableError, match="Connection refused"):
        log.version()


def test_offsets_that_retention_removed_are_named_and_can_be_passed(spark: SparkSession, tmp_path: Path) -> None:
    small = {"log.segment_bytes": "64KiB", "log.classes.telemetry.partitions": "1"}
    small["log.classes.telemetry.retention.bytes"] = str(RETAINED_BYTES)
    # The subject is a reader that retention overtakes.
    small["log.classes.telemetry.retention.hold_for_groups"] = "false"
    with BrokerProcess(data_dir=tmp_path / "log", settings=small, log_file=tmp_path / "broker.txt") as broker:
        broker.start()
        publish(broker, 300)
        reader = open_reader(server(broker), consumerGroup="g")
        start = reader.initialOffset()
        log_start = 0
        deadline = time.monotonic() + 240
        size = 0
        while (log_start == 0 or size > RETAINED_BYTES) and time.monotonic() < deadline:
            if log_start == 0:
                publish(broker, 1_000)
            with Client(server(broker)) as client:
                (number, state), *_ = client.offsets(filters=FILTER).partitions.items()
            log_start, size = state.log_start, state.bytes
        assert log_start > 0
        assert size <= RETAINED_BYTES, "retention still removes"
        with pytest.raises(DataLossError, match=rf"offset 0 of partition {number} .* the oldest kept is {log_start} "):
            reader.latestOffset(start, ReadAllAvailable())
        passing = open_reader(server(broker), failOnDataLoss="false")
        end = passing.latestOffset(start, ReadAllAvailable())
        first = min(row["offset"] for row in read_rows(passing, start, end))
        assert first >= log_start
        with Client(server(broker)) as client:
            (place,) = client.offsets(filters="$gaps").partitions
            table = client.fetch(
                place, 0, client.offsets(partitions=[place]).partitions[place].high_watermark, filters="$gaps"
            )
            gaps = [json.loads(value) for value in table.to_table().column("value").to_pylist()]
        assert {(gap["start"], gap["end"]) for gap in gaps} == {(0, first)}


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


def test_a_query_with_rare_records_lets_the_log_go_on(spark: SparkSession, tmp_path: Path) -> None:
    """Its group holds all that follows its position, which follows what it has passed in a few batches without
    records; and after a restart nothing of that is a loss."""
    small = {"log.segment_bytes": "256KiB", "log.classes.telemetry.partitions": "1"}
    small["log.classes.telemetry.retention.bytes"] = "1MiB"
    alarms = "devices/alarm/telemetry"
    written: list[tuple[int, int]] = []

    def start(server: str) -> StreamingQuery:
        options = {"servers": server, "subscribe": alarms, "consumerGroup": "alarms"}
        stream = spark.readStream.format("headwater").options(**options).load()
        writer = stream.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.foreachBatch(lambda batch, number: written.append((number, batch.count()))).start()

    with BrokerProcess(data_dir=tmp_path / "log", settings=small, log_file=tmp_path / "broker.txt") as broker:
        broker.start()
        with Client(server(broker)) as client:

            def ordinary(count: int) -> None:
                client.produce(
                    [Row(topic="devices/d1/telemetry", value=random.randbytes(32_768)) for _ in range(count)]
                )

            client.produce([Row(topic=alarms, value=b"on")])
            query = start(server(broker))
            try:
                query.processAllAvailable()
                deadline = time.monotonic() + 240
                while (bounds := next(iter(client.offsets(filters=FILTER).partitions.values()))).log_start == 0:
                    assert time.monotonic() < deadline, bounds
                    assert bounds.high_watermark < 2_000, "the group holds all of it"
                    ordinary(20)
                    query.processAllAvailable()
            finally:
                query.stop()
            assert sum(count for _, count in written) == 1
            assert 2 <= len(written) <= 40
            client.produce([Row(topic=alarms, value=b"off")])
            query = start(server(broker))
            try:
                query.processAllAvailable()
            finally:
                query.stop()
    assert sum(count for _, count in written) == 2
