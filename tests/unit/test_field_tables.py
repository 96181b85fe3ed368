"""Field tables: what derives from them agrees, and code that names the columns of a table names all of them."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from support.doc_reference import TABLE_FAMILIES, check, table_columns

from actions.engine import ActionState, DeviceState, Target
from actions.fleet_desk import Order
from actions.rows import action_of, device_states_table, states_table, targets_table
from broker_edge.fields import ARROW, RECORD, FieldTable, comment
from pipelines.silver.rules import column_types
from pipelines.silver.schema import ENVELOPE, MessageSchema
from pipelines.silver.split import silver_fields
from sinks.tables import (
    ACTION_STATE,
    ACTION_TARGETS,
    ACTIONS,
    BESIDE_SILVER,
    BRONZE,
    DEVICE_STATE,
    DEVICES,
    QUARANTINE,
    QUARANTINE_ARCHIVE,
    SILVER,
    TABLES,
    create_by_path,
)
from sources.schema import arrow_schema, spark_schema
from sources.splits import SPLIT_SCHEMA, Split, spark_split_schema

ALL = [table for _, tables in TABLE_FAMILIES for table in tables]


@pytest.mark.parametrize("table", ALL, ids=lambda table: table.name)
def test_a_declaration_is_sound(table: FieldTable) -> None:
    assert len(set(table.names)) == len(table.names)
    assert {*table.key, *table.partitioned_by} <= set(table.names)
    assert {field.type for field in table.fields} <= set(ARROW)
    assert table.meaning.endswith(".")
    assert table.arrow_schema().names == list(table.names)
    assert [one.split("`")[0] for one in table.ddl().split(", `")[1:]] == list(table.names[1:])
    assert all(field.meaning for field in table.fields), "every column explains itself"
    # The engine puts reports into quarantine, which have no epoch.
    may_be_null = {"tenant", *(["epoch"] if table in (QUARANTINE, QUARANTINE_ARCHIVE) else [])}
    assert not {field.name for field in table.fields if field.nullable and field.name in table.key} - may_be_null


def test_every_table_is_in_the_reference() -> None:
    assert {*TABLES.values(), *BESIDE_SILVER, RECORD, BRONZE, SILVER} == set(ALL)
    check("tables.md", table_columns())


def test_spark_and_arrow_schemas_of_records_are_the_declaration() -> None:
    arrow, spark = arrow_schema(include_headers=True), spark_schema(include_headers=True)
    assert arrow.names == spark.names == list(RECORD.names)
    assert [field.dataType.simpleString() for field in spark] == [field.type for field in RECORD.fields]
    assert arrow.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert all(field.nullable for field in [*arrow, *spark])
    assert "headers" not in {*arrow_schema(include_headers=False).names, *spark_schema(include_headers=False).names}
    assert SPLIT_SCHEMA.names == spark_split_schema().names == [field.name for field in dataclasses.fields(Split)]


def test_bronze_is_the_records_with_tenant_and_day() -> None:
    assert BRONZE.names == ("key", "device_id", *RECORD.names[1:], "tenant", "ingest_date")
    assert BRONZE.ddl().endswith(
        "`tenant` string COMMENT 'owner of the record', `ingest_date` date COMMENT 'the UTC day of `timestamp`'"
    )


def test_silver_has_the_fields_of_its_schema_before_the_rescued_ones() -> None:
    fields = [{"name": "seq", "type": "bigint", "comment": "counts"}, {"name": "site", "type": "string"}]
    schema = MessageSchema.model_validate({"name": "w", "topics": ["a"], "format": "json", "fields": fields})
    table = silver_fields(schema)
    assert table.names == (*SILVER.names[:-1], "seq", "site", "_rescued_data")
    assert table.names[:-3] == ENVELOPE[:-1]
    assert "`seq` bigint COMMENT 'counts', `site` string, `_rescued_data`" in table.ddl()
    assert set(column_types(schema)) == {*SILVER.names, "seq", "site"} - {"log_id", "ingest_date", "_rescued_data"}


def test_an_order_has_every_column_that_a_person_may_set() -> None:
    asked = {field.name.removesuffix("_us") for field in dataclasses.fields(Order)}
    assert asked == set(ACTIONS.names) - {"action_id", "tenant", "created_by", "confirmed_by", "created_at"}


def test_the_engine_reads_every_column_of_an_action() -> None:
    asked: set[str] = set()

    class Row(dict[str, object]):
        def get(self, name: str, default: object = None) -> object:
            asked.add(name)
            return default

    assert action_of(Row(), commit_version=3).commit_version == 3
    assert asked == set(ACTIONS.names)


def test_what_the_engine_writes_has_the_declared_columns() -> None:
    for kind, table, made in (
        (Target, ACTION_TARGETS, targets_table),
        (ActionState, ACTION_STATE, states_table),
        (DeviceState, DEVICE_STATE, device_states_table),
    ):
        columns = {
            f"{field.name.removesuffix('_us')}_at" if field.name.endswith("_us") else field.name
            for field in dataclasses.fields(kind)
        }
        assert columns == set(table.names)
        assert made([]).schema.equals(table.arrow_schema())


def test_tables_by_path_have_the_declared_columns_and_comments(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    create_by_path(tmp_path)
    for table in TABLES.values():
        made = DeltaTable(str(tmp_path / table.name))
        assert made.metadata().description == table.meaning
        fields = made.schema().fields
        assert [field.name for field in fields] == list(table.names)
        assert [field.metadata.get("comment", "") for field in fields] == [field.meaning for field in table.fields]
        assert all(field.nullable for field in fields)


def test_a_table_of_an_older_version_gets_columns_and_comments_and_keeps_rows_and_columns_of_its_own(
    tmp_path: Path,
) -> None:
    from deltalake import DeltaTable, write_deltalake

    old = pa.schema([("device_id", pa.string()), ("labels", pa.map_(pa.string(), pa.string())), ("rack", pa.int32())])
    place = str(tmp_path / "devices")
    DeltaTable.create(place, old, description="old words")
    DeltaTable(place).alter.set_column_metadata("device_id", {"comment": "old words"})
    DeltaTable(place).alter.set_column_metadata("rack", {"comment": "the owner's"})
    row = {"device_id": "d1", "labels": [("site", "roof")], "rack": 7}
    write_deltalake(place, pa.Table.from_pylist([row], old), mode="append")

    create_by_path(tmp_path)
    found = DeltaTable(place)
    fields = {field.name: field for field in found.schema().fields}
    assert set(fields) == {*DEVICES.names, "rack"}
    assert {name: fields[name].metadata["comment"] for name in DEVICES.names} == {
        field.name: field.meaning for field in DEVICES.fields
    }
    assert fields["rack"].metadata == {"comment": "the owner's"}
    assert found.metadata().description == DEVICES.meaning
    (kept,) = found.to_pyarrow_table().to_pylist()
    assert kept == {**dict.fromkeys(DEVICES.names), **row}
    version = found.version()
    create_by_path(tmp_path)
    assert DeltaTable(place).version() == version, "nothing differs, so nothing is committed"


def test_jobs_that_bring_one_table_up_to_date_together_all_succeed(tmp_path: Path) -> None:
    from deltalake import DeltaTable

    DeltaTable.create(str(tmp_path / "devices"), pa.schema([("device_id", pa.string())]), description="old")
    with ThreadPoolExecutor(8) as jobs:
        for done in [jobs.submit(create_by_path, tmp_path, tables=[DEVICES]) for _ in range(8)]:
            done.result()
    assert [field.name for field in DeltaTable(str(tmp_path / "devices")).schema().fields] == list(DEVICES.names)


def test_a_comment_cannot_end_its_text_or_name_a_setting() -> None:
    assert comment("") == ""
    assert comment("it's ${spark.app.name} \\") == " COMMENT 'it\\'s $\\{spark.app.name} \\\\'"
