"""The views show the same rows in Spark, DuckDB and Polars, by path and by name, and no job depends on them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from actions.engine.model import TERMINAL, ActionPhase, TargetState
from broker_edge.errors import SettingsError
from sinks import tables
from sinks.bronze import make_bronze
from sinks.rows import arrow_of
from sinks.table import Table
from sinks.tables.views import BRONZE_TEXT, OPEN_TARGETS, VIEWS, temporary_views
from sources.schema import spark_schema

AT = datetime(2026, 11, 23, 12, tzinfo=UTC)
PAYLOADS = {"d1": b'{"air": {"celsius": 21.5}}', "d2": "\u00fc".encode(), "d3": b"\xff\xfe", "d4": b""}


def bronze_rows() -> pa.Table:
    """One record per payload. d1 is of an older version, which wrote no `device_id`."""
    rows = [
        {
            "key": device.encode(),
            "device_id": None if device == "d1" else device,
            "value": payload,
            "topic": f"devices/{device}/telemetry",
            "partition": 3,
            "offset": offset,
            "timestamp": AT,
            "log_id": "log-a",
            "epoch": 1,
            "client_id": device,
            "tenant": "t1",
            "ingest_date": AT.date(),
        }
        for offset, (device, payload) in enumerate(PAYLOADS.items())
    ]
    return pa.Table.from_pylist(rows, tables.BRONZE.arrow_schema())


def fill(root: Path) -> dict[str, str]:
    """Tables by path with a few rows; returns their places."""
    tables.create_by_path(root)

    def insert(table: tables.FieldTable, *rows: Mapping[str, Any]) -> None:
        write_deltalake(tables.uri_of(root, table.name), arrow_of(rows, table), mode="append")

    insert(tables.ACTIONS, *({"action_id": f"a{n}", "name": "echo", "created_by": "ann"} for n in range(8)))
    insert(tables.ACTION_STATE, *({"action_id": f"a{n}", "phase": p.value} for n, p in enumerate(ActionPhase)))
    targets = ({"action_id": "a1", "device_id": f"d{n}", "state": s.value} for n, s in enumerate(TargetState))
    insert(tables.ACTION_TARGETS, *targets)
    moved = {"action_id": "a1", "state": "FAILED", "wave": 1}
    insert(tables.ACTION_TARGETS_ARCHIVE, {**moved, "device_id": "d1"}, {**moved, "device_id": "old"})
    for number, table in enumerate((tables.ACTION_REQUESTS, tables.ACTION_REQUESTS_ARCHIVE)):
        # `moving` is just being moved, so both have it.
        ids = ("moving", f"r{number}")
        insert(table, *({"request_id": id_, "action_id": id_, "kind": "pause", "by": "ann"} for id_ in ids))
    for number, table in enumerate((tables.ACTION_EVENTS, tables.ACTION_EVENTS_ARCHIVE)):
        ids = ("moving", f"e{number}")
        insert(table, *({"event_id": id_, "action_id": id_, "source": "engine", "at": 5} for id_ in ids))
    insert(tables.DEVICES, {"device_id": "d1", "labels": {"a": "b"}}, {"device_id": "d2", "retired_at": 5})
    insert(tables.DEVICE_STATE, {"device_id": "d1", "version": "1.0", "last_seen_at": 9})
    write_deltalake(str(root / "bronze_telemetry"), bronze_rows(), partition_by=["ingest_date"])
    return {name: str(root / name) for name in [*tables.TABLES, "bronze_telemetry"]}


def test_spark_duckdb_and_polars_show_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    places = fill(tmp_path)
    assert temporary_views(spark, places) == [view.name for view in VIEWS]
    connection = duckdb.connect()
    connection.sql("SET TimeZone = 'UTC'")
    for name, place in places.items():
        connection.register(name, DeltaTable(place).to_pyarrow_table())
    for view in VIEWS:
        names = {name: name for name in places}
        asked = connection.sql(view.select(names, dialect="duckdb"))
        there = spark.table(view.name)
        assert there.columns == asked.columns == [column.name.strip("`") for column in view.columns]
        frame = pl.from_arrow(asked.to_arrow_table())
        assert isinstance(frame, pl.DataFrame)
        # The columns keep their names and types; comments and what is nullable are Spark's.
        found = spark.createDataFrame(frame.to_arrow().cast(there.toArrow().schema)).to(there.schema)
        order = [name for name in ("action_id", "device_id") if name in there.columns]
        assert_df_equality(found.orderBy(order), there.orderBy(order))
        assert there.count() > 0
    text = {row["device_id"]: row["text"] for row in spark.table("bronze_telemetry_text").collect()}
    assert text == {"d1": '{"air": {"celsius": 21.5}}', "d2": "\u00fc", "d3": None, "d4": ""}
    said = spark.sql(
        "SELECT get_json_object(text, '$.air.celsius') AS c FROM bronze_telemetry_text WHERE device_id = 'd1'"
    )
    assert said.collect()[0]["c"] == "21.5"
    phases = {row["phase"] for row in spark.table("open_actions").collect()}
    assert phases == {phase.value for phase in ActionPhase if not phase.over}
    states = {row["state"] for row in spark.table("open_targets").collect()}
    assert states == {state.value for state in TargetState if state not in TERMINAL}
    assert [row["device_id"] for row in spark.table("devices_now").collect()] == ["d1"]
    assert {"product", "hardware"} <= set(spark.table("devices_now").columns)
    targets = {row["device_id"]: row["state"] for row in spark.table("all_targets").collect()}
    assert targets == {f"d{number}": state.value for number, state in enumerate(TargetState)} | {"old": "FAILED"}
    for name, key in (("all_requests", "request_id"), ("all_events", "event_id")):
        assert sorted(row[key] for row in spark.table(name).collect()) == sorted(["moving", f"{key[0]}0", f"{key[0]}1"])
    for name in [view.name for view in VIEWS]:
        spark.catalog.dropTempView(name)


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE SCHEMA views_by_name")
    yield "views_by_name"
    spark.sql("DROP SCHEMA views_by_name CASCADE")


def test_tables_by_name_have_views_and_get_what_they_lack(
    spark: SparkSession, schema: str, caplog: pytest.LogCaptureFixture
) -> None:
    spark.sql(f"CREATE TABLE {schema}.devices (device_id string COMMENT 'old', rack int) USING delta")
    spark.sql(f"INSERT INTO {schema}.devices VALUES ('d1', 7)")
    columns = ", ".join(f"`{field.name}` {field.type}" for field in tables.BRONZE.fields if field.name != "device_id")
    spark.sql(f"CREATE TABLE {schema}.bronze ({columns}) USING delta PARTITIONED BY (ingest_date)")
    bronze = Table.named(f"{schema}.bronze")
    wanted = (tables.DEVICES, tables.DEVICE_STATE)

    def start() -> dict[str, int]:
        """What the jobs do when they start; returns the number of commits of each table."""
        tables.create_by_name(spark, schema, tables=wanted)
        make_bronze(spark, bronze, spark_schema(include_headers=True))
        names = [*(table.name for table in wanted), "bronze"]
        return {name: spark.sql(f"DESCRIBE HISTORY {schema}.{name}").count() for name in names}

    first = start()
    assert first["bronze"] == 4, "its creation, then columns, comments, and the comment of the table"
    assert start() == first, "nothing differs, so nothing is committed"
    for table, name in ((tables.DEVICES, "devices"), (tables.BRONZE, "bronze")):
        fields = {field.name: field.metadata.get("comment") for field in spark.table(f"{schema}.{name}").schema.fields}
        assert {field.name: field.meaning for field in table.fields}.items() <= fields.items()
        assert spark.sql(f"DESCRIBE DETAIL {schema}.{name}").collect()[0]["description"] == table.meaning
    assert tuple(spark.table(f"{schema}.bronze").columns) == tables.BRONZE.names
    assert spark.table(f"{schema}.devices").select("device_id", "rack", "labels").collect() == [("d1", 7, None)]
    assert [row["device_id"] for row in spark.table(f"{schema}.devices_now").collect()] == ["d1"]
    view = spark.table(f"{schema}.bronze_text")
    assert {field.name: field.metadata.get("comment") for field in view.schema.fields} == {
        column.name.strip("`"): column.meaning for column in BRONZE_TEXT.columns
    }
    assert not spark.catalog.tableExists(f"{schema}.{OPEN_TARGETS.name}"), "its table is not there"

    # Something else has the name of a view: the job goes on, and says it.
    spark.sql(f"DROP VIEW {schema}.bronze_text")
    spark.sql(f"CREATE TABLE {schema}.bronze_text (a int) USING delta")
    with caplog.at_level(logging.WARNING):
        start()
    assert f"there is no view {schema}.bronze_text" in caplog.text
    assert spark.table(f"{schema}.bronze_text").columns == ["a"]


def test_a_view_without_its_table_is_refused() -> None:
    with pytest.raises(SettingsError, match="the view open_targets needs the table action_targets"):
        OPEN_TARGETS.select({})
