"""The code accepts the examples of docs/tables.md: its schema, its rules, and access to the tables without a JVM."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from support.doc_snippets import snippets

from pipelines.settings import load_settings
from pipelines.silver.rules import load_rules
from pipelines.silver.schema import load_schemas
from pipelines.spark.jars import DELTA_PACKAGE, S3A_EXCLUDES, S3A_PACKAGES
from sinks.tables import BRONZE
from sinks.tables.views import BRONZE_TEXT


def test_the_schema_and_the_rules_of_the_page_are_right(tmp_path: Path) -> None:
    for folder, text in zip(("schemas", "quality"), snippets("tables.md", "yaml")[:2], strict=True):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "weather.yaml").write_text(text, encoding="utf-8")
    (schema,) = load_schemas(tmp_path / "schemas")
    rules = load_rules(tmp_path / "quality", [schema])
    assert [rule.column for rule in rules["weather"].rules] == ["seq", "celsius"]


def test_the_settings_of_the_page_reach_a_store(tmp_path: Path) -> None:
    path = tmp_path / "pipelines.yaml"
    path.write_text("".join(snippets("tables.md", "yaml")[2:]), encoding="utf-8")
    settings = load_settings(path)
    assert len(settings.storage.access().options) == 4
    assert tuple(settings.spark.packages) == S3A_PACKAGES
    assert settings.spark.conf == {"spark.jars.excludes": ",".join(S3A_EXCLUDES)}


def test_the_packages_of_spark_submit_are_those_of_the_settings() -> None:
    (text,) = [one for one in snippets("spark.md", "sh") if "--packages" in one]
    said = re.findall(r'--(\S+) "([^"]+)"', text.replace("\\\n", ""))
    assert {name: value.split(",") for name, value in said} == {
        "packages": [DELTA_PACKAGE, *S3A_PACKAGES],
        "exclude-packages": list(S3A_EXCLUDES),
    }


def test_tables_are_read_without_a_jvm_as_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = pa.table({"device_id": ["d1", "d2"], "celsius": [20.5, 21.5]})
    write_deltalake(tmp_path / "data" / "tables" / "silver_weather", rows)
    keys = pa.array([b"d1", b"d2"], pa.binary())
    payloads = pa.array([b'{"celsius": 20.5}', b"\xff"], pa.binary())
    columns = {name: pa.nulls(2, kind) for name, kind in zip(BRONZE.names, BRONZE.arrow_schema().types, strict=True)}
    bronze = pa.table({**columns, "key": keys, "value": payloads})
    write_deltalake(tmp_path / "data" / "bronze" / "telemetry", bronze)
    (text,) = snippets("tables.md", "python")
    names: dict[str, Any] = {}
    exec(text, names)
    assert names["rows"].num_rows == 2
    assert sorted(names["celsius"]) == [("d1", "20.5"), ("d2", None)]
    assert names["arrow"].column_names == [column.name.strip("`") for column in BRONZE_TEXT.columns]
    # Python ends well after a query that needs only some of many files.
    for _ in range(20):
        write_deltalake(tmp_path / "data" / "bronze" / "telemetry", bronze, mode="append")
    program = f"{text}\nprint(duckdb.sql('select device_id from text limit 1').fetchall())"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[('d1',)]\n", "")
