"""Sparkplug B: every value that the Python reader finds in a payload is in a column, in `_rescued_data` or in the
reason.

The reader turns bytes into JSON, and column expressions judge it; a plain Python model of the rules checks both.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from support.bronze_rows import BronzeTable
from support.sparkplug_bytes import reading

from pipelines.silver import split
from pipelines.silver.payloads import PayloadError, sparkplug_to_json
from pipelines.silver.schema import MessageSchema

SCHEMA = MessageSchema.model_validate(
    {
        "name": "plant",
        "topics": ["spBv1.0/+/NDATA/+"],
        "format": "sparkplug_b",
        "evolution": "rescue",
        "device_level": 3,
        "fields": [
            {"name": "temperature", "path": ["metrics", "Air/Temperature"], "type": "double", "required": True},
            {"name": "flow", "path": "aliases.7", "type": "bigint"},
            {"name": "open", "path": ["metrics", "7"], "type": "boolean"},
        ],
    }
)
TOPIC = "spBv1.0/g/NDATA/edge-1"
COLUMNS = {("metrics", "Air/Temperature"): "temperature", ("aliases", "7"): "flow", ("metrics", "7"): "open"}
_SHOWN = 10

Metric = tuple[str | None, int | None, Any]
"""Name, alias, value."""

_WHOLE = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1)
# Halves are exact in JSON text and as doubles; the other values must come back as they were written.
_VALUES = _WHOLE | st.integers(-(10**9), 10**9).map(lambda number: number / 2)
_OTHER_NAMES = st.sampled_from(["7", "alias_7", "aliases.7", "a.b\\c", "Ünïcode", "'", '"', ""])
_ALIASES = st.sampled_from([0, 7, 8, 2**64 - 1]) | st.integers(0, 40)
_METRICS: st.SearchStrategy[Metric] = st.one_of(
    st.tuples(st.just("Air/Temperature"), st.none() | _ALIASES, _VALUES),
    st.tuples(_OTHER_NAMES, st.none(), _WHOLE),
    st.tuples(_OTHER_NAMES.filter(bool), _ALIASES, _WHOLE),
    st.tuples(st.sampled_from([None, ""]), _ALIASES, _WHOLE),
)
_PAYLOADS = st.lists(st.lists(_METRICS, max_size=16), min_size=1, max_size=40)


def payload(metrics: list[Metric]) -> bytes:
    return b"".join(reading(value, name=name, alias=alias) for name, alias, value in metrics)


def expected(value: bytes) -> dict[str, Any]:
    """The expected result of silver for a payload, according to docs/tables.md."""
    row: dict[str, Any] = dict.fromkeys([*COLUMNS.values(), "_rescued_data", "_reason"])
    try:
        found = json.loads(sparkplug_to_json(value))
    except PayloadError as error:
        return row | {"_reason": str(error)}
    readings = {
        (place, key): one
        for place in ("metrics", "aliases")
        for key, one in found.get(place, {}).items()
        if one is not None
    }
    unnamed = {path: one for path, one in readings.items() if path not in COLUMNS}
    problems = [_problem(path, readings.get(path), unnamed) for path in COLUMNS]
    for path, name in COLUMNS.items():
        if _fits(path, readings.get(path)):
            row[name] = float(readings[path]) if name == "temperature" else readings[path]
    row["_rescued_data"] = {f"{place}.{_escaped(key)}": one for (place, key), one in unnamed.items()} or None
    row["_reason"] = "; ".join(filter(None, problems)) or None
    return row


def _problem(path: tuple[str, str], value: Any, unnamed: dict[tuple[str, str], Any]) -> str | None:
    shown, type_ = ".".join(path), {field.name: field.type for field in SCHEMA.fields}[COLUMNS[path]]
    if value is None:
        if path != ("metrics", "Air/Temperature"):
            return None
        numbers = sorted(key for place, key in unnamed if place == "aliases")
        if not numbers:
            return f"{shown} is missing"
        listed = ", ".join(numbers[:_SHOWN]) + (", …" if len(numbers) > _SHOWN else "")
        return f"{shown} is missing, and metrics arrived with only an alias: {listed}"
    if _fits(path, value):
        return None
    kind = "boolean" if isinstance(value, bool) else "bigint"
    return f"{shown} must be {type_}, not {kind}"


def _fits(path: tuple[str, str], value: Any) -> bool:
    is_boolean = isinstance(value, bool)
    return value is not None and is_boolean == (COLUMNS[path] == "open")


def _escaped(key: str) -> str:
    return key.replace("\\", "\\\\").replace(".", "\\.")


def judged(spark: SparkSession, values: list[bytes], folder: Path) -> list[dict[str, Any]]:
    """The results of the compiled expressions for the payloads."""
    bronze = BronzeTable(folder)
    bronze.append(values, topic=TOPIC)
    rows = split.judged(split.parsed(spark.read.format("delta").load(str(folder)), SCHEMA), SCHEMA, None)
    names = [*COLUMNS.values(), "_rescued_data", split.REASON]
    found = [row.asDict() for row in rows.orderBy("offset").select(*names).collect()]
    for row in found:
        row["_rescued_data"] = None if row["_rescued_data"] is None else json.loads(row["_rescued_data"])
    return found


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(payloads=_PAYLOADS)
@example(payloads=[[(None, 7, 3)], [("Air/Temperature", 1, 2.5), ("", 7, 4)], [(None, n, n) for n in range(12)], []])
@example(payloads=[[("Air/Temperature", None, 1), ("Air/Temperature", None, 2)], [("7", None, True), (None, 7, False)]])
def test_expressions_find_what_the_reader_found(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, payloads: list[list[Metric]]
) -> None:
    values = [payload(metrics) for metrics in payloads]
    folder = tmp_path_factory.mktemp("bronze")
    assert judged(spark, values, folder / "bronze") == [expected(value) for value in values]


def test_no_reading_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    """Payloads as devices of a real plant send them: a birth with names and aliases, then data by alias only."""
    birth = payload([("Air/Temperature", 1, 21.5), ("Flow", 7, 3), ("Unknown", 9, True)])
    data = payload([("Air/Temperature", None, 22.0), (None, 7, 4), (None, 9, False)])
    nameless = payload([(None, 1, 22.5), (None, 7, 5)])
    one, two, three = judged(spark, [birth, data, nameless], tmp_path / "bronze")
    assert (one["temperature"], one["flow"]) == (21.5, None)
    assert one["_rescued_data"] == {"metrics.Flow": 3, "metrics.Unknown": True}
    assert (two["temperature"], two["flow"], two["_rescued_data"]) == (22.0, 4, {"aliases.9": False})
    assert three["_reason"] == ("metrics.Air/Temperature is missing, and metrics arrived with only an alias: 1"), (
        "the quarantine shows which aliases the birth certificate would have named"
    )
