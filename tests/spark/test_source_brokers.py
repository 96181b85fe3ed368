"""The source in real Spark over real brokers: one restarts, one joins late, one requires credentials. No record is
missing or duplicated, and no secret is disclosed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from support.flight_server import FlightServer
from support.ports import free_port
from support.programs import headwaterd, run

from broker_edge import Client, Credentials, Row
from broker_edge.torture.process import BrokerProcess
from pipelines.gaps import GapCopier
from pipelines.settings.places import TablePlace
from pipelines.spark.errors import own_error
from sources.gaps import gap_rows
from sources.listener import Lag, LagListener

FILTER = "devices/+/telemetry"
PASSWORD = "correct-horse-battery"
DEVICES = 60
WAIT_S = 300.0

Place = tuple[str, int, int]


@contextmanager
def broker(folder: Path, name: str, **settings: str) -> Iterator[BrokerProcess]:
    """A broker with three telemetry partitions whose Flight address survives restarts; not started yet."""
    headwaterd()
    bound = {
        "listeners.flight.bind": f"127.0.0.1:{free_port()}",
        "log.classes.telemetry.partitions": "3",
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    with BrokerProcess(data_dir=folder / name, settings=bound, log_file=folder / f"{name}.txt") as process:
        process.address = "grpc://" + bound["listeners.flight.bind"]  # type: ignore[attr-defined]
        yield process


def publish(address: str, count: int, credentials: Credentials | None = None) -> set[Place]:
    rows = [Row(topic=f"devices/d{n % DEVICES}/telemetry", value=b"%d" % n) for n in range(count)]
    with Client(address, credentials=credentials, timeout_s=30) as client:
        log_id = client.version().log_id
        return {(log_id, place.partition, place.offset) for place in client.produce(rows)}


def start(spark: SparkSession, folder: Path, *, available_now: bool = False, **options: str) -> StreamingQuery:
    base = {"subscribe": FILTER, "pollTimeoutMs": "60000", "consumerGroup": "g"}
    records = spark.readStream.format("headwater").options(**{**base, **options}).load()
    sink = records.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    sink = sink.option("path", str(folder / "rows"))
    return (
        sink.trigger(availableNow=True) if available_now else sink.trigger(processingTime="200 milliseconds")
    ).start()


def written(spark: SparkSession, folder: Path) -> list[Place]:
    rows = spark.read.parquet(str(folder / "rows")).select("log_id", "partition", "offset").collect()
    return [(row["log_id"], row["partition"], row["offset"]) for row in rows]


class Collected:
    """The lags of one query, and a way to wait for them."""

    def __init__(self) -> None:
        self.lags: list[Lag] = []
        self._changed = threading.Condition()

    def __call__(self, lag: Lag) -> None:
        with self._changed:
            self.lags.append(lag)
            self._changed.notify_all()

    def until_read(self, rows: int) -> None:
        with self._changed:
            done = self._changed.wait_for(lambda: sum(lag.input_rows for lag in self.lags) >= rows, WAIT_S)
        assert done, f"{sum(lag.input_rows for lag in self.lags)} of {rows} rows after {WAIT_S} s"


def test_one_broker_restarts_and_one_joins_late_and_nothing_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    collected = Collected()
    listener = LagListener([collected])
    spark.streams.addListener(listener)
    with broker(tmp_path, "first") as first, broker(tmp_path, "late") as late:
        servers = ",".join([first.address, late.address])  # type: ignore[attr-defined]
        first.start()
        published = publish(first.address, 1_000)  # type: ignore[attr-defined]
        query = start(spark, tmp_path, servers=servers, maxOffsetsPerTrigger="700")
        try:
            collected.until_read(1_000)
            late.start()
            published |= publish(late.address, 1_000)  # type: ignore[attr-defined]
            first.kill()
            collected.until_read(2_000)
            first.start()
            published |= publish(first.address, 500)  # type: ignore[attr-defined]
            late.kill()
            late.start()
            published |= publish(late.address, 500)  # type: ignore[attr-defined]
            collected.until_read(3_000)
        finally:
            query.stop()
            spark.streams.removeListener(listener)
        # The records that exist when a run starts, and no more, in several batches.
        published |= publish(late.address, 800)  # type: ignore[attr-defined]
        again = start(spark, tmp_path, available_now=True, servers=servers, maxOffsetsPerTrigger="300")
        again.awaitTermination()
        assert max(progress["numInputRows"] for progress in again.recentProgress) <= 300
    rows = written(spark, tmp_path)
    assert set(rows) == published
    assert len(rows) == len(published)
    assert max(lag.records for lag in collected.lags) > 0, "records waiting behind the limit are reported"
    newest = max((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    offset = json.loads(newest.read_text().splitlines()[-1])
    assert {len(places) for places in offset["logs"].values()} == {3}


def test_the_older_of_two_queries_of_a_group_stops_and_says_why(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    for number in range(20):
        flight_server.log.append(f"devices/d{number}/telemetry", b"x")
    older = start(spark, tmp_path / "older", servers=flight_server.location)
    older.processAllAvailable()
    newer = start(spark, tmp_path / "newer", servers=flight_server.location)
    try:
        newer.processAllAvailable()
        flight_server.log.append("devices/d1/telemetry", b"x")
        with pytest.raises(PySparkException) as error:
            older.awaitTermination(int(WAIT_S))
        found = own_error(error.value)
        assert found is not None
        assert "another query reads with consumer group g" in found[1]
        assert newer.isActive
    finally:
        newer.stop()
        older.stop()


def test_retention_that_overtook_a_stopped_query_is_an_error_or_a_gap(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    log = flight_server.log
    for _ in range(20):
        log.append("devices/d1/telemetry", b"x", partition=3)
    start(spark, tmp_path, available_now=True, servers=flight_server.location).awaitTermination()
    for _ in range(30):
        log.append("devices/d1/telemetry", b"x", partition=3)
    log.expire(3, 35)
    with pytest.raises(PySparkException) as error:
        start(spark, tmp_path, available_now=True, servers=flight_server.location).awaitTermination()
    found = own_error(error.value)
    assert found is not None
    for words in (FILTER, "offset 20 of partition 3", "the oldest kept is 35"):
        assert words in found[1]
    passing = start(spark, tmp_path, available_now=True, servers=flight_server.location, failOnDataLoss="false")
    passing.awaitTermination()
    assert sorted(offset for _, number, offset in written(spark, tmp_path) if number == 3) == [
        *range(20),
        *range(35, 50),
    ]
    options = {"servers": flight_server.location, "subscribe": "$gaps"}
    (gap,) = gap_rows(spark.read.format("headwater").options(**options).load()).collect()
    assert (gap["log_id"], gap["partition"], gap["start"], gap["end"], gap["group"]) == (log.log_id, 3, 20, 35, "g")
    copier = GapCopier([flight_server.location], TablePlace(root=str(tmp_path / "tables")), tenant="t1")
    assert copier.copy() == 1
    (row,) = DeltaTable(tmp_path / "tables" / "ingest_gaps").to_pyarrow_table().to_pylist()
    assert (row["partition"], row["start"], row["end"], row["consumer_group"]) == (3, 20, 35, "g")


def test_sql_reads_through_a_view_and_less_where_filters_say_so(
    spark: SparkSession, flight_server: FlightServer
) -> None:
    for number in range(400):
        flight_server.log.append(f"devices/d{number % 20}/telemetry", b"x", timestamp_us=number * 1_000_000)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW telemetry USING headwater "
        f"OPTIONS (servers '{flight_server.location}', subscribe '{FILTER}', maxClockSetBack '0s')"
    )
    query = "SELECT count(*) AS n FROM telemetry WHERE topic = 'devices/d3/telemetry'"
    assert spark.sql(query).first()["n"] == 20
    assert flight_server.calls["topics"] == 1
    since = "SELECT count(*) AS n FROM telemetry WHERE timestamp >= timestamp_seconds(390) AND `partition` IN (3, 4)"
    assert spark.sql(since).first()["n"] == 10
    until = "SELECT count(*) AS n FROM telemetry WHERE timestamp < timestamp_seconds({})"
    assert spark.sql(until.format(10)).first()["n"] == 10
    reads = flight_server.calls["DoGet"]
    assert spark.sql("SELECT count(*) AS n FROM telemetry WHERE topic = 'elsewhere'").first()["n"] == 0
    assert spark.sql(until.format(250) + " AND timestamp >= timestamp_seconds(300)").first()["n"] == 0
    assert flight_server.calls["DoGet"] == reads, "nothing is read where nothing can pass"


def test_a_view_is_read_by_name_and_a_stored_table_is_not(spark: SparkSession, flight_server: FlightServer) -> None:
    """As docs/spark.md says. When Spark no longer refuses this, update that page and README.md."""
    for number in range(10):
        flight_server.log.append(f"devices/d{number}/telemetry", b"x")
    options = f"OPTIONS (servers '{flight_server.location}', subscribe '{FILTER}')"
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW by_name USING headwater {options}")
    assert spark.sql("SELECT count(*) AS n FROM by_name").first()["n"] == spark.table("by_name").count() == 10
    spark.sql("CREATE TABLE kept USING delta AS SELECT topic, offset FROM by_name")
    assert spark.table("kept").count() == 10
    spark.sql(f"CREATE TABLE stored USING headwater {options}")
    try:
        for read in (lambda: spark.sql("SELECT count(*) FROM stored"), lambda: spark.table("stored")):
            with pytest.raises(AnalysisException, match="headwater is not a valid Spark SQL Data Source"):
                read()
    finally:
        spark.sql("DROP TABLE stored")
        spark.sql("DROP TABLE kept")


def test_credentials_are_never_told(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users, log_file = tmp_path / "users", tmp_path / "spark.log"
    added = run(headwaterd(), "users", "add", str(users), "ann", stdin=f"{PASSWORD}\n")
    assert added.code == 0, added.err
    (tmp_path / "password").write_text(PASSWORD)
    reference = f"file:{tmp_path / 'password'}"
    options: dict[str, Any] = {"user": "ann", "password": reference}
    with broker(tmp_path, "secure", auth__password_file=str(users)) as secure, logged(spark, log_file):
        secure.start()
        address: str = secure.address  # type: ignore[attr-defined]
        publish(address, 50, Credentials(user="ann", password=reference))
        rows = spark.read.format("headwater").options(servers=address, subscribe=FILTER, **options).load()
        assert rows.count() == 50
        told = [rows._jdf.queryExecution().toString()]
        query = start(spark, tmp_path, available_now=True, servers=address, **options)
        query.awaitTermination()
        told += [json.dumps(dict(query.lastProgress), default=str), str(query.explain)]
        (tmp_path / "password").write_text(PASSWORD + "x")
        with pytest.raises(PySparkException) as error:
            rows.count()
        assert "unauthenticated" in str(error.value)
        told.append(str(error.value))
        with pytest.raises(PySparkException) as literal:
            spark.read.format("headwater").options(servers=address, subscribe=FILTER, token=PASSWORD).load()
        assert "is a reference" in str(literal.value)
        told.append(str(literal.value))
    told += [path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()]
    logs = log_file.read_text(errors="replace")
    assert "PythonMicroBatchStream" in logs or "headwater" in logs, "the log is that of the queries"
    assert not [text for text in [*told, logs] if PASSWORD in text]


@contextmanager
def logged(spark: SparkSession, path: Path) -> Iterator[None]:
    """Writes everything that log4j logs in the meantime to a file."""
    jvm = spark._jvm
    assert jvm is not None
    log4j = jvm.org.apache.logging.log4j
    context = log4j.LogManager.getContext(False)
    root = context.getConfiguration().getRootLogger()
    builder = log4j.core.appender.FileAppender.newBuilder()
    builder.setName("test")
    builder.withFileName(str(path))
    appender = builder.build()
    appender.start()
    level = root.getLevel()
    root.addAppender(appender, log4j.Level.INFO, None)
    root.setLevel(log4j.Level.INFO)
    context.updateLoggers()
    try:
        yield
    finally:
        root.removeAppender("test")
        root.setLevel(level)
        context.updateLoggers()
        appender.stop()
