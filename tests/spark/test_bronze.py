"""The bronze table: each record once for the life of a checkpoint and beyond it (I10), and no commit without rows.

Requirements of both writers are tested with both, and one test compares their tables.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from support.flight_server import FlightServer

from pipelines.settings import BronzeSettings, Settings, TelemetrySettings
from pipelines.telemetry import start_telemetry
from sinks import SinkError, Table, duplicates
from sinks.tables import BRONZE

WRITERS = ("files", "spark")
ODD_KEYS = [b"", "\u00fc\U0001f4a7".encode(), b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]
ODD_IDS = ["", "\u00fc\U0001f4a7", None, None, None, None, None]
"""Keys of records as text: what is not UTF-8 is null with both writers."""


def fill(server: FlightServer, count: int) -> None:
    for number in range(count):
        server.log.append(f"devices/d{number % 20}/telemetry", b"%d" % number, client_id="c")


def settings(
    server: FlightServer, folder: Path, *, writer: str = "files", checkpoint: str = "checkpoint", table: str = "bronze"
) -> Settings:
    telemetry = TelemetrySettings(
        table_path=str(folder / table),
        checkpoint=str(folder / checkpoint),
        trigger="0 seconds",
        max_offsets_per_trigger=400,
    )
    bronze = BronzeSettings.model_validate({"writer": writer})
    return Settings(servers=[server.location], tenant="t1", telemetry=telemetry, bronze=bronze)


def drain(spark: SparkSession, chosen: Settings) -> DataFrame:
    start_telemetry(spark, chosen, available_now=True).awaitTermination()
    return Table.at(chosen.telemetry.table_path or "").read(spark)


def statistics_of(table: Path) -> list[str]:
    """Delta's JSON statistics of each file that a commit names."""
    lines = [line for log in (table / "_delta_log").glob("*.json") for line in log.read_text().splitlines()]
    return [entry["add"]["stats"] for entry in map(json.loads, lines) if "add" in entry]


def versions(spark: SparkSession, folder: Path) -> int:
    return spark.sql(f"DESCRIBE HISTORY delta.`{folder / 'bronze'}`").count()


def forget_last_commit(checkpoint: Path) -> None:
    """The state after a kill between Delta's commit and Spark's: the batch is written, and will be replayed."""
    commits = checkpoint / "commits"
    newest = max(int(entry.name) for entry in commits.iterdir() if entry.name.isdigit())
    (commits / str(newest)).unlink()
    (commits / f".{newest}.crc").unlink(missing_ok=True)


def test_both_writers_give_the_same_table(spark: SparkSession, flight_server: FlightServer, tmp_path: Path) -> None:
    fill(flight_server, 700)
    flight_server.log.append("devices/d1/telemetry", b"", headers=[("a", b"1"), ("b", b"")], qos=0, retain=True)
    for key in ODD_KEYS:
        flight_server.log.append("devices/odd/telemetry", b"", key=key)
    total = 701 + len(ODD_KEYS)
    tables: dict[str, DataFrame] = {}
    bounds: dict[str, Any] = {}
    for writer in WRITERS:
        chosen = settings(flight_server, tmp_path, writer=writer, checkpoint=f"{writer}-checkpoint", table=writer)
        # Each is a separate reader.
        telemetry = chosen.telemetry.model_copy(update={"consumer_group": writer})
        tables[writer] = drain(spark, chosen.model_copy(update={"telemetry": telemetry}))
        # Retention at the broker follows the table: its last batch is committed too.
        assert sum(flight_server.log.groups[writer].committed.values()) == total
        statistics = [json.loads(add) for add in statistics_of(tmp_path / writer)]
        assert sum(one["numRecords"] for one in statistics) == total
        bounds[writer] = {frozenset(one["minValues"]) for one in statistics}
    files, native = tables["files"], tables["spark"]
    assert tuple(files.columns) == BRONZE.names
    assert_df_equality(files, native, ignore_row_order=True)
    assert files.where("tenant = 't1' AND ingest_date = to_date(timestamp)").count() == total
    odd = files.where("topic = 'devices/odd/telemetry'").orderBy("offset").select("key", "device_id").collect()
    assert {bytes(row["key"]): row["device_id"] for row in odd} == dict(zip(ODD_KEYS, ODD_IDS, strict=True))
    assert files.where("device_id = 'd7'").count() == 35
    for rows in (files, native):
        comments = {field.name: field.metadata.get("comment") for field in rows.schema.fields}
        assert comments == {field.name: field.meaning for field in BRONZE.fields}
    assert duplicates(files).count() == 0
    assert bounds["files"] == bounds["spark"]
    detail = {writer: spark.sql(f"DESCRIBE DETAIL delta.`{tmp_path / writer}`").collect()[0] for writer in WRITERS}
    for name in (
        "description",
        "partitionColumns",
        "properties",
        "minReaderVersion",
        "minWriterVersion",
        "tableFeatures",
    ):
        assert detail["files"][name] == detail["spark"][name]
    assert detail["files"].partitionColumns == ["ingest_date"]
    # Queries skip files by their bounds, and must still find the outermost records.
    last = files.selectExpr("max(timestamp) AS at", "max(offset) AS offset").collect()[0]
    assert files.where((F.col("timestamp") >= last["at"]) & (F.col("offset") == last["offset"])).count() > 0
    assert files.where("topic = 'devices/d7/telemetry'").count() == 35


@pytest.mark.parametrize("writer", WRITERS)
def test_a_replayed_batch_adds_no_rows(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path, writer: str
) -> None:
    chosen = settings(flight_server, tmp_path, writer=writer)
    fill(flight_server, 300)
    drain(spark, chosen)
    # The first batch, whose start Spark asks for again, and then a later one.
    for total in (300, 500):
        forget_last_commit(tmp_path / "checkpoint")
        assert drain(spark, chosen).count() == total
        fill(flight_server, 200)
        rows = drain(spark, chosen)
        assert rows.count() == total + 200
        assert duplicates(rows).count() == 0


def test_a_checkpoint_goes_from_one_writer_to_the_other(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    total = 0
    for writer in ("spark", "files", "spark"):
        if total:
            # The other writer gets the same batch again, and the records after it.
            forget_last_commit(tmp_path / "checkpoint")
        fill(flight_server, 100)
        total += 100
        rows = drain(spark, settings(flight_server, tmp_path, writer=writer))
        assert rows.count() == total
        assert duplicates(rows).count() == 0


def test_without_the_transaction_a_replay_would_double(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    """Negative control: the same replay with plain appends to the same kind of table."""
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


@pytest.mark.parametrize(("first", "second"), [("spark", "files"), ("files", "spark")])
def test_a_new_checkpoint_goes_on_behind_bronze(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path, first: str, second: str
) -> None:
    fill(flight_server, 500)
    drain(spark, settings(flight_server, tmp_path, writer=first))
    fill(flight_server, 100)
    other = settings(flight_server, tmp_path, writer=second, checkpoint="other")
    rows = drain(spark, other)
    assert rows.count() == 600
    assert duplicates(rows).count() == 0
    forget_last_commit(tmp_path / "other")
    fill(flight_server, 50)
    rows = drain(spark, other)
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
    # Spark has asked again, more than once, after the records that do not match.
    while flight_server.calls["offsets"] < asked + 3 and query.isActive:
        query.awaitTermination(1)
    query.stop()
    assert versions(spark, tmp_path) == before


def test_files_of_a_table_by_name_are_refused(spark: SparkSession, flight_server: FlightServer, tmp_path: Path) -> None:
    chosen = settings(flight_server, tmp_path)
    telemetry = chosen.telemetry.model_copy(update={"table": "bronze_by_name", "table_path": None})
    with pytest.raises(SinkError, match=r"bronze_by_name is a name: use bronze\.writer: spark"):
        start_telemetry(spark, chosen.model_copy(update={"telemetry": telemetry}))


def test_how_files_are_compressed_is_a_setting(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path
) -> None:
    fill(flight_server, 10)
    chosen = settings(flight_server, tmp_path)
    bronze = BronzeSettings(writer="auto", compression="snappy")
    drain(spark, chosen.model_copy(update={"bronze": bronze}))
    assert all(uri.endswith(".snappy.parquet") for uri in DeltaTable(str(tmp_path / "bronze")).file_uris())


def test_tables_by_name_are_checked_before_they_reach_sql() -> None:
    assert Table.named("main.iot.bronze").identifier == "main.iot.bronze"
    for name in ("a.b.c.d", "a b", "x; DROP TABLE y", ""):
        with pytest.raises(SinkError, match="not a table name"):
            Table.named(name)
    with pytest.raises(SinkError, match="either a name or a path"):
        Table(name="a", path="/b")
