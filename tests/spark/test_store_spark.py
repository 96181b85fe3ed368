"""Tables and checkpoints in S3 through Spark: bronze, silver and a restart, secrets, and who may commit to a table."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession
from support.flight_server import FlightServer
from support.s3 import SECRET, S3Server, s3_server

from broker_edge.errors import SetupError, SinkError, StoreRefusedError
from pipelines.jobs.retry import is_final
from pipelines.maintenance import silver_tables, tables_of, tend_all
from pipelines.settings import (
    BronzeSettings,
    MaintenanceSettings,
    Settings,
    SilverSettings,
    StorageSettings,
    TelemetrySettings,
)
from pipelines.silver.job import start_silver
from pipelines.spark.stores import reach_stores
from pipelines.telemetry import start_telemetry
from sinks.table import Table

CONF = Path(__file__).parents[2] / "conf"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


def read(s3: S3Server, name: str) -> DeltaTable:
    return DeltaTable(f"{s3.root}/{name}", storage_options=s3.access.deltalake())


def settings(s3: S3Server, source: FlightServer, *, writer: str = "auto") -> Settings:
    return Settings(
        servers=[source.location],
        tenant="t1",
        storage=StorageSettings(options=s3.options()),
        bronze=BronzeSettings.model_validate({"writer": writer}),
        telemetry=TelemetrySettings(
            table_path="s3://tables/bronze",
            checkpoint="s3a://tables/checkpoints/bronze",
            trigger="0 seconds",
        ),
        silver=SilverSettings(
            schemas=str(CONF / "schemas"),
            rules=str(CONF / "quality"),
            root="s3a://tables/silver",
            checkpoint="s3://tables/checkpoints/silver",
            trigger="0 seconds",
        ),
    )


def fill(source: FlightServer, count: int) -> None:
    for number in range(count):
        value = b'{"temperature": %d.5, "ts": 1790000000000}' % (number % 40) if number % 10 else b"not JSON"
        source.log.append(f"devices/d{number % 5}/telemetry", value, client_id="c")


def test_bronze_and_silver_in_s3(
    spark: SparkSession, s3: S3Server, flight_server: FlightServer, subtests: pytest.Subtests
) -> None:
    chosen = settings(s3, flight_server)
    for count in (200, 100):
        fill(flight_server, count)
        start_telemetry(spark, chosen, available_now=True).awaitTermination()
    start_silver(spark, chosen, available_now=True).awaitTermination()

    with subtests.test("each row is there once, also after a restart from the checkpoint"):
        bronze = read(s3, "bronze").to_pyarrow_table(columns=["offset", "partition"])
        assert len({tuple(row.values()) for row in bronze.to_pylist()}) == bronze.num_rows == 300
        assert read(s3, "silver/silver_telemetry").to_pyarrow_table().num_rows == 270
        assert read(s3, "silver/quarantine").to_pyarrow_table().num_rows == 30

    with subtests.test("no secret is stored, planned, shown, or in a process list"):
        stored = [path for path in s3.folder.rglob("*") if path.is_file()]
        assert len(stored) > 20
        assert [path for path in stored if SECRET.encode() in path.read_bytes()] == []
        plan = Table.at("s3://tables/bronze", s3.access).read(spark)._jdf.queryExecution().toString()
        shown = str(spark.sparkContext.getConf().getAll()) + str(dict(spark.conf.getAll)) + plan
        processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        assert SECRET not in shown
        assert SECRET not in processes

    with subtests.test("maintenance leaves the tables of silver to its process"):
        of_spark = silver_tables(chosen)
        alone = {one.table: one for one in tend_all(tables_of(chosen), MaintenanceSettings(), of_spark=of_spark)}
        assert "headwater jobs run silver maintenance" in (alone["silver_telemetry"].problem or "")
        assert alone["bronze"].problem is None
        before = read(s3, "silver/silver_telemetry").version()
        done = tend_all(of_spark, MaintenanceSettings(), spark=spark, of_spark=of_spark, is_with_spark=True)
        assert [one.problem for one in done if "silver_telemetry" in one.table] == [None]
        after = read(s3, "silver/silver_telemetry")
        assert after.version() > before
        assert "delta.logRetentionDuration" in after.metadata().configuration


def test_sparks_own_sink_is_refused_for_bronze_in_s3(
    spark: SparkSession, s3: S3Server, flight_server: FlightServer
) -> None:
    fill(flight_server, 1)
    with pytest.raises(SinkError, match="Spark's commits to S3 would replace those of maintenance"):
        start_telemetry(spark, settings(s3, flight_server, writer="spark"), available_now=True)


@pytest.mark.parametrize("job", [start_telemetry, start_silver])
@pytest.mark.parametrize(
    ("options", "paths"),
    [
        ({"aws_secret_access_key": "env:WRONG_KEY"}, {}),
        ({}, {"checkpoint": "s3://nothing/checkpoint"}),
    ],
    ids=["wrong key", "missing bucket"],
)
def test_a_store_that_refuses_is_one_sentence_and_final(
    spark: SparkSession,
    s3: S3Server,
    flight_server: FlightServer,
    monkeypatch: pytest.MonkeyPatch,
    job: Callable[..., object],
    options: dict[str, str],
    paths: dict[str, str],
) -> None:
    monkeypatch.setenv("WRONG_KEY", "hunter2")
    right = settings(s3, flight_server)
    chosen = right.model_copy(
        update={
            "storage": StorageSettings(options=s3.options() | options),
            "telemetry": right.telemetry.model_copy(update=paths),
            "silver": right.silver.model_copy(update=paths),
        }
    )
    try:
        with pytest.raises(StoreRefusedError, match="check the bucket, its permissions and storage") as caught:
            job(spark, chosen, available_now=True)
    finally:
        reach_stores(spark, s3.access, ["s3://tables"])
    assert is_final(caught.value)
    assert "hunter2" not in str(caught.value)


def test_control_two_files_of_one_name_are_both_created_by_s3a(spark: SparkSession, s3: S3Server) -> None:
    """Why a table has one kind of writer: Delta's log store relies on `create(path, overwrite=false)`, and S3A checks
    only at the beginning. Once the second close fails, Spark may write tables beside others."""
    reach_stores(spark, s3.access, ["s3://tables"])
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    path = spark._jvm.org.apache.hadoop.fs.Path("s3a://tables/control/00000000000000000001.json")
    store = path.getFileSystem(configuration)
    streams = [store.create(path, False), store.create(path, False)]
    for number, stream in enumerate(streams):
        stream.write(ord("a") + number)
        stream.close()
    assert (s3.folder / "tables/control/00000000000000000001.json").read_bytes() == b"b"


def test_a_store_that_spark_cannot_open_is_one_sentence(spark: SparkSession, s3: S3Server, tmp_path: Path) -> None:
    jvm = spark._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    configuration.set("fs.gone.impl", "org.example.Missing")
    with pytest.raises(Py4JJavaError, match="ClassNotFound"):
        jvm.org.apache.hadoop.fs.Path("gone://x").getFileSystem(configuration)
    known = configuration.get("fs.s3.impl")
    configuration.set("fs.s3.impl", "org.example.Missing")
    try:
        with pytest.raises(SetupError, match=r"no jars for s3://other/x: set spark\.packages to .*hadoop-aws"):
            reach_stores(spark, s3.access, ["s3://other/x"])
    finally:
        if known is None:
            configuration.unset("fs.s3.impl")
        else:
            configuration.set("fs.s3.impl", known)
