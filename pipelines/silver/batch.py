"""Processes one batch of bronze: plans it, saves the plan, then writes each step once.

The order matters: nothing is written before the plan is on disk. A replay of the batch loads the plan and skips every
step that its table already contains.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from broker_edge.errors import NewFieldsError, SinkError
from broker_edge.fields import quoted
from pipelines.settings.places import TablePlace
from pipelines.silver import split
from pipelines.silver.new_columns import NewColumns, columns_for, new_fields
from pipelines.silver.payloads import WORKER_BATCHES
from pipelines.silver.plan import BatchPlan, PlanStore
from pipelines.silver.rules import OnFail, Rule, Rules
from pipelines.silver.schema import ENVELOPE, Evolution, MessageSchema, SchemaField, known_type
from sinks import tables
from sinks.once import add_missing_columns, append_few_once, append_once, column_types, folded
from sinks.rows import arrow_of, now_us, rows_of
from sinks.table import Table
from sinks.tables import DQ_RESULTS

log = logging.getLogger(__name__)

_TOLD_MAX = 1_000
"""Devices and days over their quota that one process names in its log."""

PROPERTIES: Mapping[str, str] = {"delta.autoOptimize.autoCompact": "true"}


@dataclass(frozen=True, slots=True)
class SilverSetup:
    """The current contents of the files. `tenant` is the tenant whose rows `dq_results` counts."""

    schemas: tuple[MessageSchema, ...]
    rules: Mapping[str, Rules]
    place: TablePlace
    tenant: str


@dataclass(frozen=True, slots=True)
class _Part:
    """One schema's part of a batch, judged and persisted."""

    schema: MessageSchema
    rows: DataFrame
    parsed: DataFrame
    counts: split.Counts


class SilverBatches:
    """Writes batches one after the other, on the thread of the stream."""

    def __init__(self, setup: SilverSetup, plans: PlanStore) -> None:
        self._setup = setup
        self._plans = plans
        self._known: dict[str, frozenset[str]] = {}
        """By schema, the known columns of its table."""
        self._told: set[tuple[str, str, str]] = set()

    def write(self, bronze: DataFrame, batch_id: int, query_id: str) -> None:
        spark = bronze.sparkSession  # The query's own session: its settings affect no other query.
        for name, value in WORKER_BATCHES.items():
            spark.conf.set(name, value)
        bronze.persist()
        kept: list[DataFrame] = [bronze]
        try:
            saved = self._plans.load(batch_id)
            plan = self._base(batch_id) if saved is None else _without_doubles(saved)
            rules = {one.message: one for one in plan.rules}
            parts = [self._part(bronze, schema, rules.get(schema.name), kept) for schema in plan.schemas]
            parts = [part for part in parts if part.counts.rows]
            if saved is None:
                found = {part.schema.name: self._new_columns(part) for part in parts}
                schemas = [one.with_fields(found[one.name].added) if one.name in found else one for one in plan.schemas]
                over = {name: new.over_quota for name, new in found.items() if new.over_quota}
                plan = plan.model_copy(update={"schemas": schemas, "over_quota": over})
                self._plans.save(plan)
            final = {schema.name: schema for schema in plan.schemas}
            for part in parts:
                self._write_part(spark, part, final[part.schema.name], rules.get(part.schema.name), plan, query_id)
        finally:
            for rows in kept:
                rows.unpersist()

    def _base(self, batch_id: int) -> BatchPlan:
        """The current files, plus the fields that payloads have added so far."""
        before = self._plans.newest_before(batch_id)
        schemas = []
        for schema in self._setup.schemas:
            brought = before.inferred(schema.name) if before is not None else []
            schemas.append(schema.with_fields(_still_free(schema, brought)))
        return BatchPlan(batch_id=batch_id, schemas=schemas, rules=list(self._setup.rules.values()))

    def _part(self, bronze: DataFrame, schema: MessageSchema, rules: Rules | None, kept: list[DataFrame]) -> _Part:
        parsed = split.parsed(bronze, schema).persist()
        kept.append(parsed)
        rows = split.judged(parsed, schema, rules)
        return _Part(schema, rows, parsed, split.count(rows, schema, rules))

    def _new_columns(self, part: _Part) -> NewColumns:
        schema = part.schema
        if not part.counts.with_new or schema.evolution not in (Evolution.ADD_NEW_COLUMNS, Evolution.FAIL_ON_NEW):
            return NewColumns(())
        found = new_fields(part.rows, schema)
        if schema.evolution is Evolution.FAIL_ON_NEW:
            names = ", ".join(".".join(new.path) for new in found[:5])
            raise NewFieldsError(
                f"payloads of {schema.name} have fields that its schema does not name ({names}), and its evolution is "
                "fail_on_new: add them to the schema, or choose another evolution"
            )
        new = columns_for(schema, found, frozenset(self._types(schema)))
        self._tell_quota(schema, new)
        added = [self._as_the_table_has_it(schema, field) for field in new.added]
        return replace(new, added=tuple(field for field in added if field is not None))

    def _tell_quota(self, schema: MessageSchema, new: NewColumns) -> None:
        """Says once for each device and day that its further fields are rescued."""
        for device, day in new.over_quota_of:
            if (schema.name, device, day) in self._told or len(self._told) >= _TOLD_MAX:
                continue
            self._told.add((schema.name, device, day))
            log.warning(
                "device %.100r has brought %d new columns of %s on %s: its further fields stay in _rescued_data; add "
                "them to the schema, or raise new_columns_per_device_max",
                device,
                schema.new_columns_per_device_max,
                schema.name,
                day,
            )

    def _as_the_table_has_it(self, schema: MessageSchema, field: SchemaField) -> SchemaField | None:
        """The field with the type of an existing column of the table, which may exist after a new checkpoint."""
        there = self._types(schema).get(folded(field.name))
        if there is None:
            return field
        if not self._has(schema, field.name):
            return None  # Spark would treat it as that column, and Delta would not.
        try:
            return field.model_copy(update={"type": known_type(there)})
        except ValueError:
            return None

    def _types(self, schema: MessageSchema) -> dict[str, str]:
        spark = SparkSession.getActiveSession()
        table = self._setup.place.table(schema.table)
        if spark is None or not table.exists(spark):
            return {}
        return column_types(table.read(spark).schema)

    def _has(self, schema: MessageSchema, name: str) -> bool:
        """Whether the table has a column of this name, compared without regard to case only."""
        spark = SparkSession.getActiveSession()
        assert spark is not None, "a session found the table"
        names = self._setup.place.table(schema.table).read(spark).columns
        return name.lower() in {column.lower() for column in names}

    def _write_part(
        self,
        spark: SparkSession,
        part: _Part,
        schema: MessageSchema,
        rules: Rules | None,
        plan: BatchPlan,
        query_id: str,
    ) -> None:
        place, step = self._setup.place, f"{query_id}:{schema.name}"
        counts, batch_id, over_quota = part.counts, plan.batch_id, plan.over_quota.get(schema.name, 0)
        # Judged again, now with the columns that this batch adds.
        rows = part.rows if schema is part.schema else split.judged(part.parsed, schema, rules)
        if counts.bad:
            bad = split.quarantine_rows(rows, schema)
            quarantine = place.table(tables.QUARANTINE.name)
            if quarantine.is_for_one_writer:
                # Other jobs write it too, without Spark. A batch is bounded by max_bytes_per_trigger.
                found = arrow_of(rows_of(bad.toArrow()), tables.QUARANTINE)
                append_few_once(spark, found, quarantine, app_id=f"{step}:quarantine", version=batch_id)
            else:
                append_once(bad, quarantine, app_id=f"{step}:quarantine", version=batch_id)
        if counts.good:
            table = place.table(schema.table)
            self._make_ready(spark, table, schema)
            append_once(split.silver_rows(rows, schema), table, app_id=f"{step}:silver", version=batch_id)
        judged = rules.rules if rules is not None else []
        if judged or over_quota:
            found = self._results(schema, judged, counts, over_quota, batch_id, query_id)
            table = place.table(DQ_RESULTS.name)
            append_few_once(spark, found, table, app_id=f"{step}:dq_results", version=batch_id)
        log.info("batch %d: %d rows to %s, %d to quarantine", batch_id, counts.good, schema.table, counts.bad)

    def _make_ready(self, spark: SparkSession, table: Table, schema: MessageSchema) -> None:
        """Makes sure that the table has every column of the schema."""
        wanted = split.silver_fields(schema)
        names = frozenset(wanted.names)
        if self._known.get(schema.name) == names:
            return
        if table.exists(spark):
            add_missing_columns(spark, table, wanted.fields)
            tables.describe_in_spark(spark, table.identifier, wanted)
        else:
            make_silver(spark, table, schema)
        self._known[schema.name] = names

    def _results(
        self,
        schema: MessageSchema,
        rules: Sequence[Rule],
        counts: split.Counts,
        over_quota: int,
        batch_id: int,
        query_id: str,
    ) -> pa.Table:
        batch = {
            "tenant": self._setup.tenant,
            "source": "batch",
            "message": schema.name,
            "query_id": query_id,
            "batch_id": batch_id,
            "at": now_us(),
        }
        rows: list[dict[str, Any]] = [
            {
                **batch,
                "rule": rule.name,
                "column": rule.column,
                "check": rule.check.value,
                "on_fail": rule.on_fail.value,
                "success": counts.broken[rule.name] == 0,
                "checked": counts.readable,
                "failed": counts.broken[rule.name],
            }
            for rule in rules
        ]
        if over_quota:
            rows.append(
                {
                    **batch,
                    "rule": "new_columns_per_device_max",
                    "column": "_rescued_data",
                    "check": "quota",
                    "on_fail": OnFail.WARN.value,
                    "success": False,
                    "checked": counts.readable,
                    "failed": over_quota,
                }
            )
        return arrow_of(rows, DQ_RESULTS)


def make_silver(spark: SparkSession, table: Table, schema: MessageSchema) -> None:
    """Creates the schema's table, empty, unless it exists."""
    wanted = split.silver_fields(schema)
    properties = ", ".join(f"'{name}' = '{value}'" for name, value in PROPERTIES.items())
    spark.sql(
        f"CREATE TABLE IF NOT EXISTS {table.identifier} ({wanted.ddl()}) USING delta "
        f"COMMENT '{quoted(wanted.meaning)}' PARTITIONED BY (ingest_date) TBLPROPERTIES ({properties})"
    )


def check_tables(spark: SparkSession, setup: SilverSetup) -> None:
    """Raises SinkError, before the first batch, if an existing table has a declared field with another type."""
    for schema in setup.schemas:
        table = setup.place.table(schema.table)
        known = column_types(table.read(spark).schema) if table.exists(spark) else {}
        for field in split.silver_fields(schema).fields:
            there = known.get(folded(field.name))
            if there is not None and there != field.type:
                raise SinkError(
                    f"column {field.name} of {table} is {there}, but the schema {schema.name} says {field.type}: give "
                    "the field another name, or create the table again"
                )


def _still_free(schema: MessageSchema, brought: Sequence[SchemaField]) -> list[SchemaField]:
    """Those fields from payloads that the table can still have besides the fields that the file now declares."""
    names = {folded(field.name) for field in schema.fields} | {folded(name) for name in ENVELOPE}
    paths = {schema.path_of(field) for field in schema.fields}
    free = []
    for field in brought:
        if folded(field.name) not in names and schema.path_of(field) not in paths:
            names.add(folded(field.name))
            free.append(field)
    return free


def _without_doubles(plan: BatchPlan) -> BatchPlan:
    """The plan without inferred columns whose names collide with others. An older version planned such columns, and the
    batch then failed at every start."""
    schemas = []
    for schema in plan.schemas:
        declared = [field for field in schema.fields if not field.inferred]
        brought = [field for field in schema.fields if field.inferred]
        base = schema.model_copy(update={"fields": declared})
        free = _still_free(base, brought)
        schemas.append(schema if len(free) == len(brought) else base.with_fields(free))
    return plan.model_copy(update={"schemas": schemas})
