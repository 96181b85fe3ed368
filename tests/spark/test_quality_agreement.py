"""The compiled rules and the suite agree on any rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pipelines.quality.suite import Suite
from pipelines.silver.rules import Rules, broken, column_types
from pipelines.silver.schema import MessageSchema

SCHEMA = MessageSchema.model_validate(
    {
        "name": "any",
        "topics": ["#"],
        "fields": [
            {"name": "n", "type": "bigint"},
            {"name": "x", "type": "double"},
            {"name": "t", "type": "string"},
            {"name": "b", "type": "boolean"},
            {"name": "m", "type": "bigint"},
        ],
    }
)
RULES = Rules.model_validate(
    {
        "message": "any",
        "rules": [
            {"name": "n_there", "column": "n", "check": "not_null"},
            {"name": "x_there", "column": "x", "check": "not_null"},
            {"name": "n_range", "column": "n", "check": "between", "min": -3, "max": 5},
            {"name": "x_low", "column": "x", "check": "between", "min": -1.5},
            {"name": "x_high", "column": "x", "check": "between", "max": 1e9},
            {"name": "n_set", "column": "n", "check": "in_set", "values": [1, 2, 3]},
            {"name": "t_set", "column": "t", "check": "in_set", "values": ["a", "b", ""]},
            {"name": "t_not", "column": "t", "check": "not_in_set", "values": ["bad", "ä"]},
            {"name": "b_set", "column": "b", "check": "in_set", "values": [True]},
            {"name": "t_like", "column": "t", "check": "matches", "pattern": "[a-z]*"},
            {"name": "t_long", "column": "t", "check": "length_between", "min": 1, "max": 3},
            {"name": "n_below_m", "column": "n", "check": "at_most_column", "other": "m"},
        ],
    }
)
ARROW = pa.schema([("n", pa.int64()), ("x", pa.float64()), ("t", pa.string()), ("b", pa.bool_()), ("m", pa.int64())])

_INTEGERS = st.none() | st.integers(-4, 6) | st.sampled_from([2**53 + 1, -(2**63), 2**63 - 1])
_TEXTS = ["", "a", "b", "bad", "ä", "a\n", "A", "abcd", "𝔘𝔘𝔘"]
_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "n": _INTEGERS,
            "x": st.none() | st.floats() | st.sampled_from([-1.5, 1e9, float("nan"), float("inf")]),
            "t": st.none()
            | st.sampled_from(["", "a", "b", "bad", "ä", "a\n", "A", "abcd", "𝔘𝔘𝔘"])
            | st.text(max_size=4),
            "b": st.none() | st.booleans(),
            "m": _INTEGERS,
        }
    ),
    min_size=1,
    max_size=4,
)
_SUITE = Suite(RULES)
_TYPES = column_types(SCHEMA)


def compiled(spark: SparkSession, rows: pa.Table) -> dict[str, bool]:
    found = spark.createDataFrame(rows).agg(
        *[F.count_if(broken(rule, _TYPES)).alias(rule.name) for rule in RULES.rules]
    )
    return {name: count == 0 for name, count in found.collect()[0].asDict().items()}


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(rows=_ROWS)
@example(rows=[{"n": None, "x": float("nan"), "t": None, "b": None, "m": None}])
@example(rows=[{"n": 5, "x": -1.5, "t": "a\n", "b": True, "m": 5}, {"n": None, "x": 0.0, "t": "", "b": None, "m": 1}])
@example(rows=[{"n": 2**53 + 1, "x": float("inf"), "t": "𝔘𝔘𝔘", "b": False, "m": 2**53}])
def test_the_compiled_rules_and_the_suite_agree(spark: SparkSession, rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, schema=ARROW)
    assert compiled(spark, table) == _SUITE.judge(table)


def test_the_two_can_disagree(spark: SparkSession) -> None:
    """Negative control: applied to different rows they disagree."""
    good = pa.Table.from_pylist([{"n": 1, "x": 0.0, "t": "a", "b": True, "m": 1}], schema=ARROW)
    bad = pa.Table.from_pylist([{"n": 9, "x": 0.0, "t": "a", "b": True, "m": 1}], schema=ARROW)
    assert all(_SUITE.judge(good).values())
    assert compiled(spark, bad) != _SUITE.judge(good)
