"""The bronze table: each record once for the life of a checkpoint and beyond it (I10), and no commit without rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from support.flight_server import FlightServer

from pipelines.settings import BronzeSettings, Settings, TelemetrySettings
from pipelines.telemetry import start_telemetry
from sinks import SinkError, Table, duplicates
from sinks.bronze import ENVELOPE


def fill(server: FlightServer, count: int) -> None:
    for number in range(count):
        server.log.append(f"devices/d{number % 20}/telemetry", b"%d" % number, client_id="c")


def settings(server: FlightServer, folder: Path, *, checkpoint: str = "checkpoint", writer: str = "spark") -> Settings:
    telemetry = TelemetrySettings(
        table_path=str(folder / "bronze"),
        checkpoint=str(folder / checkpoint),
        trigger="0 seconds",
        max_offsets_per_trigger=400,
    )
    bronze = BronzeSettings.model_validate({"writer": writer})
    return Settings(servers=[server.location], tenant="t1", telemetry=telemetry, bronze=bronze)


def drain(spark: SparkSession, chosen: Settings) -> DataFrame:
    start_telemetry(spark, chosen, available_now=True).awaitTermination()
    return Table.at(chosen.telemetry.table_path or "").read(spark)


def versions(spark: SparkSession, folder: Path) -> int:
    return spark.sql(f"DESCRIBE HISTORY delta.`{folder / 'bronze'}`").count()


def forget_last_commit(checkpoint: Path) -> None:
    """What a kill between Delta's commit and Spark's leaves: the batch is written, and will be replayed."""
    commits = checkpoint / "commits"
    newest = max(int(entry.name) for entry in commits.iterdir() if entry.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)


def test_bronze_holds_the_envelope_the_tenant_and_the_day(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    fill(flight_server, 1_000)
    rows = drain(spark, settings(flight_server, tmp_path))
    assert rows.columns == [*ENVELOPE, "tenant", "ingest_date"]
    assert rows.count() == 1_000
    assert rows.where("tenant = 't1' AND ingest_date = to_date(timestamp)").count() == 1_000
    assert duplicates(rows).count() == 0
    detail = spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path / 'bronze'}`").collect()[0]
    assert detail.partitionColumns == ["ingest_date"]


def test_a_replayed_batch_adds_no_rows(spark: SparkSession, flight_server: FlightServer, tmp_path: Path) -> None:
    chosen = settings(flight_server, tmp_path)
    fill(flight_server, 300)
    drain(spark, chosen)
    # The first batch, whose start is asked for again, and then a later one.
    for total in (300, 500):
        forget_last_commit(tmp_path / "checkpoint")
        assert drain(spark, chosen).count() == total
        fill(flight_server, 200)
        rows = drain(spark, chosen)
        assert rows.count() == total + 200
        assert duplicates(rows).count() == 0


def test_without_the_transaction_a_replay_would_double(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    """Negative control: the same replay into the same kind of table, appended plainly."""
    fill(flight_server, 100)
    for _ in range(2):
        records = spark.readStream.format("headwater").option("servers", flight_server.location)
        rows = records.option("subscribe", "devices/+/telemetry").load()

        def append(batch: DataFrame, batch_id: int) -> None:
            batch.write.format("delta").mode("append").save(str(tmp_path / "plain"))

        sink = rows.writeStream.foreachBatch(append).option("checkpointLocation", str(tmp_path / "checkpoint"))
        sink.trigger(availableNow=True).start().awaitTermination()
        forget_last_commit(tmp_path / "checkpoint")
    table = Table.at(tmp_path / "plain").read(spark)
    assert table.count() == 200
    assert duplicates(table).count() == 100


def test_a_new_checkpoint_goes_on_behind_bronze(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    fill(flight_server, 500)
    drain(spark, settings(flight_server, tmp_path))
    fill(flight_server, 100)
    rows = drain(spark, settings(flight_server, tmp_path, checkpoint="other"))
    assert rows.count() == 600
    assert duplicates(rows).count() == 0
    forget_last_commit(tmp_path / "other")
    fill(flight_server, 50)
    rows = drain(spark, settings(flight_server, tmp_path, checkpoint="other"))
    assert rows.count() == 650
    assert duplicates(rows).count() == 0


def test_an_idle_query_writes_no_empty_commits(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    fill(flight_server, 100)
    query = start_telemetry(spark, settings(flight_server, tmp_path))
    query.processAllAvailable()
    before = versions(spark, tmp_path)
    for number in range(200):
        flight_server.log.append(f"devices/d{number}/status", b"{}")
    asked = flight_server.calls["offsets"]
    # Spark has looked again, more than once, after the records that do not match.
    while flight_server.calls["offsets"] < asked + 3 and query.isActive:
        query.awaitTermination(1)
    query.stop()
    assert versions(spark, tmp_path) == before


def test_bronze_files_is_refused_by_name(spark: SparkSession, flight_server: FlightServer, tmp_path: Path) -> None:
    with pytest.raises(SinkError, match=r"bronze\.writer: files is not supported yet"):
        start_telemetry(spark, settings(flight_server, tmp_path, writer="files"))


def test_tables_by_name_are_checked_before_they_reach_sql() -> None:
    assert Table.named("main.iot.bronze").identifier == "main.iot.bronze"
    for name in ("a.b.c.d", "a b", "x; DROP TABLE y", ""):
        with pytest.raises(SinkError, match="not a table name"):
            Table.named(name)
    with pytest.raises(SinkError, match="not both"):
        Table(name="a", path="/b")
