"""Splits a batch of bronze by one message schema: rows for silver, rows for quarantine.

Data frames in, data frames out; `silver.batch` decides what is written, and in which order, and `silver.new_columns`
which fields become columns.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from broker_edge.fields import Field, FieldTable
from pipelines.silver import columns
from pipelines.silver.payloads import decoded
from pipelines.silver.rules import OnFail, Rule, Rules, breach, broken, column_types
from pipelines.silver.schema import MessageSchema, SchemaField, sql_type
from sinks.tables.records import silver_table

REASON = "_reason"
_JSON, _PROBLEM = "_json", "_problem"
_KEY, _VALUE, _TIME = "_key", "_value", "_time"
"""Bronze's `key`, `value` and `timestamp`, renamed so that fields can use these names."""
_PLACE = ("log_id", "partition", "offset", "epoch")
_RECORD = (*_PLACE, "topic", _KEY, _VALUE, _TIME, "tenant", "ingest_date")


@dataclass(frozen=True, slots=True)
class Counts:
    """Counts of one batch and schema. `broken` counts by rule, among the rows whose fields are valid."""

    rows: int
    readable: int
    good: int
    broken: dict[str, int]
    with_new: int

    @property
    def bad(self) -> int:
        return self.rows - self.good


def parsed(bronze: DataFrame, schema: MessageSchema) -> DataFrame:
    """The schema's records of the batch with their payloads as variants. Parsing is expensive: persist the result."""
    rows = bronze.where(F.col("topic").rlike(schema.pattern)).withColumnsRenamed(
        {"key": _KEY, "value": _VALUE, "timestamp": _TIME}
    )
    rows = rows.select(*_RECORD, decoded(F.col(_VALUE), schema).alias("_decoded"))
    rows = rows.select(*_RECORD, F.col("_decoded.json").alias(_JSON), F.col("_decoded.problem").alias(_PROBLEM))
    payload = (
        columns.parsed(F.col(_JSON)).alias(columns.PAYLOAD),
        columns.is_long(F.col(_JSON)).alias(columns.IS_LONG),
    )
    rows = rows.select(*_RECORD, _PROBLEM, *payload)
    unread = F.when(F.col(columns.PAYLOAD).isNull(), F.lit(columns.NOT_JSON))
    return rows.withColumn(_PROBLEM, F.coalesce(F.col(_PROBLEM), unread))


def judged(rows: DataFrame, schema: MessageSchema, rules: Rules | None) -> DataFrame:
    """The silver columns, `_reason` (null for a good row), and the columns of the record that quarantine needs."""
    fields = [columns.field_value(schema, field).alias(field.name) for field in schema.fields]
    wrong = [columns.field_problem(schema, field) for field in schema.fields]
    # A payload that is not an object has no fields either; reporting them as missing would add nothing.
    whole = columns.payload_problem(F.col(_PROBLEM))
    problem = F.coalesce(whole, _sentence([columns.time_problem(schema.time), *wrong]))
    taken = rows.select("*", *columns.kinds(schema)).select(
        "*",
        F.col(_TIME).alias("ingest_time"),
        columns.event_time(schema.time, F.col(_TIME)).alias("event_time"),
        _device(schema).alias("device_id"),
        columns.rescued(schema).alias("_rescued_data"),
        problem.alias("_wrong"),
        *fields,
    )
    types = column_types(schema)
    hard = [rule for rule in _rules(rules) if rule.on_fail is OnFail.QUARANTINE]
    reason = F.coalesce(F.col("_wrong"), _sentence([breach(rule, types) for rule in hard]))
    return taken.withColumn(REASON, reason)


def count(rows: DataFrame, schema: MessageSchema, rules: Rules | None) -> Counts:
    """The counts, in one pass over judged rows."""
    types = column_types(schema)
    readable = F.col("_wrong").isNull()
    has_new = functools.reduce(
        Column.__or__, [F.size(columns.unnamed(prefix)) > 0 for prefix in columns.new_column_prefixes(schema)]
    )
    breaks = [F.count_if(readable & broken(rule, types)).alias(f"rule_{rule.name}") for rule in _rules(rules)]
    found = rows.agg(
        F.count("*").alias("rows"),
        F.count_if(readable).alias("readable"),
        F.count_if(F.col(REASON).isNull()).alias("good"),
        F.count_if(F.col(REASON).isNull() & has_new).alias("with_new"),
        *breaks,
    ).collect()[0]
    broken_by = {rule.name: int(found[f"rule_{rule.name}"]) for rule in _rules(rules)}
    return Counts(int(found["rows"]), int(found["readable"]), int(found["good"]), broken_by, int(found["with_new"]))


def silver_rows(rows: DataFrame, schema: MessageSchema) -> DataFrame:
    """The good rows, with the columns of the silver table."""
    names = list(silver_fields(schema).names)
    return rows.where(F.col(REASON).isNull()).select(*[F.col(f"`{name}`") for name in names])


def quarantine_rows(rows: DataFrame, schema: MessageSchema) -> DataFrame:
    """The bad rows, with their bytes and the reason."""
    return rows.where(F.col(REASON).isNotNull()).select(
        "tenant",
        F.lit(f"silver/{schema.name}").alias("pipeline"),
        F.col(REASON).alias("reason"),
        "topic",
        F.col(_KEY).alias("key"),
        F.col(_VALUE).alias("value"),
        *_PLACE,
        F.col(_TIME).alias("at"),
        F.current_timestamp().alias("quarantined_at"),
    )


def silver_fields(schema: MessageSchema) -> FieldTable:
    """The table of the schema."""
    fields = [Field(field.name, sql_type(field.type), _told(schema, field)) for field in schema.fields]
    return silver_table(schema.table, tuple(fields))


def _told(schema: MessageSchema, field: SchemaField) -> str:
    parts = [field.comment, f"unit: {field.unit}" if field.unit else None]
    if field.inferred:
        parts.append(f"added when payloads contained {'.'.join(schema.path_of(field))}")
    return "; ".join(part for part in parts if part)


def _rules(rules: Rules | None) -> Sequence[Rule]:
    return rules.rules if rules is not None else ()


def _device(schema: MessageSchema) -> Column:
    if schema.device_level is None:
        return F.try_validate_utf8(F.col(_KEY).cast("string"))
    # Null if the topic has no such level.
    return F.get(F.split("topic", "/"), schema.device_level)


def _sentence(problems: Sequence[Column]) -> Column:
    """All problems in one text, or null."""
    if not problems:
        return F.lit(None).cast("string")
    text = F.concat_ws("; ", *problems)
    return F.when(text != "", text)
