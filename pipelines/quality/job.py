"""The scheduled check: applies the rules as a suite to the newest rows of each silver table and writes `dq_results`.

    python -m pipelines.quality [--config FILE] [--root DIR] [--once]

The silver batches judge every row on arrival; this job checks what is in the tables, with another engine. Needs no JVM
if the tables have paths.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from broker_edge.errors import JobFailedError
from pipelines.jobs.process import StopSignal, run_job
from pipelines.quality.suite import Suite
from pipelines.settings import Settings, load_settings
from pipelines.settings.job_options import add_file_options, add_place_options, with_options
from pipelines.settings.places import TablePlace
from pipelines.silver.rules import Rules, load_rules
from pipelines.silver.schema import MessageSchema, load_schemas
from pipelines.spark.session import session_of
from sinks.conflicts import committed
from sinks.rows import arrow_of, now_us
from sinks.table import Table
from sinks.tables import DQ_RESULTS

log = logging.getLogger(__name__)

JOB_NAME = "quality"


class QualityJob:
    """Builds the suites once; `check` may be called any number of times."""

    def __init__(self, settings: Settings, *, spark: SparkSession | None = None) -> None:
        self._settings = settings
        self._spark = spark
        self._place = TablePlace.of(settings.silver, settings.storage.access())
        self._place.make(spark, (DQ_RESULTS,))
        schemas = load_schemas(Path(settings.silver.schemas))
        rules = load_rules(Path(settings.silver.rules) if settings.silver.rules is not None else None, schemas)
        self._judged = [(one, rules[one.name], Suite(rules[one.name])) for one in schemas if one.name in rules]

    def check(self) -> dict[str, dict[str, bool]]:
        """Checks a sample of each existing table. Returns the results by schema and rule."""
        found: dict[str, dict[str, bool]] = {}
        for schema, rules, suite in self._judged:
            rows = self._sample(schema, rules)
            if rows is None or not rows.num_rows:
                continue
            found[schema.name] = suite.judge(rows)
            self._append(schema, rules, found[schema.name], rows.num_rows)
            for name, kept in found[schema.name].items():
                if not kept:
                    log.warning("the newest %d rows of %s break the rule %s", rows.num_rows, schema.table, name)
        return found

    def _sample(self, schema: MessageSchema, rules: Rules) -> pa.Table | None:
        """The newest rows, with the columns that the rules use."""
        table = self._place.table(schema.table)
        names = {column for rule in rules.rules for column in (rule.column, rule.other) if column is not None}
        columns = sorted(names)
        limit = self._settings.quality.sample_rows
        if table.path is None:
            if self._spark is None or not table.exists(self._spark):
                return None
            newest = table.read(self._spark).orderBy(F.desc("ingest_time")).limit(limit)
            return newest.select(*columns).toArrow()
        return _newest(table, columns, limit) if table.is_there() else None

    def _append(self, schema: MessageSchema, rules: Rules, found: dict[str, bool], checked: int) -> None:
        rows: list[dict[str, Any]] = [
            {
                "tenant": self._settings.tenant,
                "source": "suite",
                "message": schema.name,
                "rule": rule.name,
                "column": rule.column,
                "check": rule.check.value,
                "on_fail": rule.on_fail.value,
                "success": found[rule.name],
                "checked": checked,
                "at": now_us(),
            }
            for rule in rules.rules
        ]
        table, values = self._place.table(DQ_RESULTS.name), arrow_of(rows, DQ_RESULTS)
        if table.path is None:
            assert self._spark is not None
            self._spark.createDataFrame(values).write.format("delta").mode("append").saveAsTable(table.name or "")
            return
        try:
            committed(lambda: write_deltalake(table.delta(), values, mode="append"), f"an append to {table}")
        except DeltaError as error:
            raise JobFailedError(f"the table {table} cannot be written: {error}") from error


def _newest(table: Table, columns: Sequence[str], limit: int) -> pa.Table:
    shown = ", ".join(f'"{column}"' for column in columns)
    try:
        query = QueryBuilder().register("silver", table.delta())
        found = query.execute(f"SELECT {shown} FROM silver ORDER BY ingest_time DESC LIMIT {limit:d}").read_all()
    except DeltaError as error:
        raise JobFailedError(f"the table {table} cannot be read: {error}") from error
    return plain(pa.table(found))


def plain(rows: pa.Table) -> pa.Table:
    """Converts string and binary views to strings and bytes, because later readers may not support views."""
    kinds = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    fields = [field.with_type(kinds.get(field.type, field.type)) for field in rows.schema]
    return rows.cast(pa.schema(fields))


def check_until(job: QualityJob, stop: Callable[[float], bool], *, every_s: float) -> None:
    """Checks repeatedly; `stop(seconds)` waits that long and returns whether to end."""
    while True:
        job.check()
        if stop(every_s):
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see `pipelines.jobs.process` for the exit codes."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.quality", description="Checks the rules on a sample.")
    parser.add_argument("--config", type=Path, help="settings file (default: the defaults of conf/pipelines.yaml)")
    add_place_options(parser)
    add_file_options(parser)
    parser.add_argument("--tenant", help="tenant to write into every row")
    parser.add_argument("--once", action="store_true", help="check once, then exit")
    options = parser.parse_args(arguments)

    def work() -> None:
        settings = with_options(load_settings(options.config), options)
        stop = StopSignal()
        spark = None if settings.silver.root is not None else session_of(JOB_NAME, settings.spark)
        end = (lambda _: True) if options.once else stop.wait
        check_until(QualityJob(settings, spark=spark), end, every_s=settings.quality.every_s)

    return run_job(work)
