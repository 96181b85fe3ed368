"""Payloads of silver that are long: what they mean does not depend on their length, and their cost follows from it."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from support.bronze_rows import BronzeTable

from pipelines.silver import split
from pipelines.silver.new_columns import new_fields
from pipelines.silver.schema import MessageSchema

SCHEMA = MessageSchema.model_validate(
    {
        "name": "weather",
        "topics": ["devices/+/telemetry"],
        "time": {"path": "ts", "unit": "iso"},
        "fields": [
            {"name": "seq", "type": "bigint"},
            {"name": "celsius", "path": "air.temperature", "type": "double"},
            {"name": "words", "type": "array<string>"},
            {"name": "numbers", "type": "array<double>"},
            {"name": "all", "type": "json"},
            {"name": "seen", "type": "double", "inferred": True},
        ],
    }
)
VALUES: tuple[Any, ...] = (
    1, 2.5, "x", True, None, {}, {"a": 1}, {"temperature": 3}, {"temperature": {"a": 1}}, [], [1], [None, 2], [1, 2.5],
    ["a", "{"], [1, "a"], [[1]], [{"a": 1}], [{"a": 1}, {"b": 2}], [1, {"a": 1}], [[], [2]], [None],
    "2026-01-02T03:04:05Z",
)  # fmt: skip
NAMES = ("seq", "air", "words", "numbers", "all", "seen", "ts", "unnamed")


class World:
    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.number = itertools.count()

    def parsed(self, payloads: list[dict[str, Any]]) -> DataFrame:
        table = BronzeTable(self.folder / f"bronze-{next(self.number)}")
        table.append(payloads)
        return split.parsed(self.spark.read.format("delta").load(str(table.path)), SCHEMA)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path)


def rows_of(parsed: DataFrame) -> list[Row]:
    judged = split.judged(parsed, SCHEMA, None)
    columns = ["celsius", "seq", "words", "numbers", "all", "seen", "event_time", "_reason"]
    rescued = F.from_json(F.coalesce("_rescued_data", F.lit("{}")), "map<string,string>")
    without = F.map_filter(rescued, lambda key, _: key != "padding")
    return judged.orderBy("offset").select(*columns, F.map_entries(without).alias("rescued")).collect()


def test_a_long_payload_means_what_a_short_one_means(world: World) -> None:
    payloads = [{name: value} for name in NAMES for value in VALUES]
    long = [{**one, "padding": "x" * 4_000} for one in payloads]
    assert len(json.dumps(payloads[-1])) < 100
    for payload, short, of_long in zip(
        payloads, rows_of(world.parsed(payloads)), rows_of(world.parsed(long)), strict=True
    ):
        # Without a time in the payload, it is when the record was received.
        assert short == of_long, payload


def test_objects_in_the_place_of_the_object_with_the_fields_are_rescued(world: World) -> None:
    values = [[{"temperature": 3}], [[1]], [1], "x"]
    found = rows_of(world.parsed([{"air": value, "padding": "x" * pad} for value in values for pad in (1, 4_000)]))
    rescued = [[tuple(entry) for entry in row["rescued"]] for row in found]
    texts = [value if isinstance(value, str) else json.dumps(value, separators=(",", ":")) for value in values]
    assert rescued == [[("air", text)] for text in texts for _ in range(2)]


def test_new_fields_of_a_long_payload_have_the_same_types(world: World) -> None:
    payload = {f"f{at}": value for at, value in enumerate(VALUES)}
    found = []
    for more in ({}, {"padding": "x" * 4_000}):
        parsed = world.parsed([payload | more])
        schema = SCHEMA.model_copy(update={"new_columns_max": 100})
        new = new_fields(split.judged(parsed, schema, None), schema)
        kinds = {field.path: field.kinds[0].partition("<")[0] for field in new if field.path != ("padding",)}
        found.append(kinds)
    assert found[0] == found[1]
    assert len(found[0]) == len(VALUES) - 1


@pytest.mark.parametrize("name", ["unnamed", "words", "air"])
def test_objects_with_keys_of_their_own_cost_what_their_length_costs(world: World, name: str) -> None:
    """The keys of all objects of an array were merged again for each of them."""

    def seconds(objects: int) -> float:
        parsed = world.parsed([{"seq": 1, name: [{f"k{at}": 1} for at in range(objects)]}]).persist()
        try:
            parsed.count()
            began_s = time.monotonic()
            split.count(split.judged(parsed, SCHEMA, None), SCHEMA, None)
            return time.monotonic() - began_s
        finally:
            parsed.unpersist()

    seconds(100)
    few, many = min(seconds(4_000) for _ in range(2)), min(seconds(32_000) for _ in range(2))
    # Eight times the length; the square would be 64.
    assert many < 8 * few, (few, many)
