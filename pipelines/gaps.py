"""Gaps: copies the gaps that the brokers report into `ingest_gaps`, each report once.

    python -m pipelines.gaps [--config FILE] [--root DIR] [--server grpc://…] [--once]

A report is a record of `$gaps` (docs/protocols.md, 5). Reports come from retention that removed records before a
consumer group had read them, and from readers that found damage or skipped lost records. Needs no Spark if tables have
a path.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import QueryBuilder
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from broker_edge.access import BrokerAccess, accesses
from broker_edge.errors import JobFailedError, UnavailableError
from pipelines.jobs.process import StopSignal, run_job
from pipelines.settings import load_settings
from pipelines.settings.job_options import add_broker_options, add_place_options, with_options
from pipelines.settings.places import TablePlace
from pipelines.spark.session import session_of
from sinks.once import append_few_once
from sinks.rows import arrow_of, now_us, rows_of
from sinks.table import Table
from sinks.tables import INGEST_GAPS, QUARANTINE
from sources.gaps import TOPIC, BrokenReport, Places, ReportedGap, owners_of, read_reports

log = logging.getLogger(__name__)

JOB_NAME = "gaps"

Reports = dict[str, int]
"""By the log of the reports: the newest report that has been copied."""


class GapCopier:
    """Copies from `servers` into the table at `place`. `spark` is needed if tables are given by name.

    Run only one copier at a time: two would both find a report missing and copy it twice.
    """

    def __init__(
        self,
        servers: Sequence[BrokerAccess | str],
        place: TablePlace,
        *,
        tenant: str,
        spark: SparkSession | None = None,
    ) -> None:
        self._servers = accesses(servers)
        self._table = place.table(INGEST_GAPS.name)
        self._tenant = tenant
        self._spark = spark
        self._quarantine = place.table(QUARANTINE.name)
        place.make(spark, (INGEST_GAPS, QUARANTINE))
        self._places: Places = {}
        self._newest = copied(self._table, spark)
        self._owners: Mapping[str, str] = tellers(self._table, spark)
        self._newest_broken = _quarantined(self._quarantine, spark)

    def copy(self) -> int:
        """Copies new reports and returns their number. Skips an unreachable broker until the next call, and one that
        says the log of another one. Raises UnavailableError if no broker answers, and OptionError if two say one log
        and neither was the first."""
        count, answered, problem = 0, 0, None
        self._owners = owners_of(self._servers, self._owners)
        places = dict(self._places)
        for server in self._servers:
            try:
                found, broken = read_reports([server], places=places, owners=self._owners, fleet=self._servers)
                answered += 1
            except UnavailableError as error:
                log.warning("cannot read gaps from %s, skipping it for now: %s", server.server, error)
                problem = error
                continue
            self._set_aside(broken)
            count += self._append(found)
            self._places = dict(places)
        if problem is not None and not answered:
            raise problem
        return count

    def _append(self, found: Iterable[ReportedGap]) -> int:
        by_log: dict[str, list[ReportedGap]] = {}
        for gap in found:
            if gap.report_offset > self._newest.get(gap.report_log_id, -1):
                by_log.setdefault(gap.report_log_id, []).append(gap)
        for log_id, gaps in by_log.items():
            newest = max(gap.report_offset for gap in gaps)
            rows = arrow_of([self._row(gap) for gap in gaps], INGEST_GAPS)
            append_few_once(self._spark, rows, self._table, app_id=f"headwater-gaps:{log_id}", version=newest)
            self._newest[log_id] = newest
        return sum(len(gaps) for gaps in by_log.values())

    def _set_aside(self, found: Iterable[BrokenReport]) -> None:
        """Writes records that are not valid reports to `quarantine`, once."""
        by_log: dict[str, list[BrokenReport]] = {}
        for report in found:
            if report.offset > self._newest_broken.get(report.log_id, -1):
                by_log.setdefault(report.log_id, []).append(report)
        for log_id, reports in by_log.items():
            newest = max(report.offset for report in reports)
            rows = arrow_of([self._quarantine_row(report) for report in reports], QUARANTINE)
            app_id = f"headwater-gaps:{log_id}:quarantine"
            append_few_once(self._spark, rows, self._quarantine, app_id=app_id, version=newest)
            self._newest_broken[log_id] = newest
            log.warning(
                "%d records of %s of log %s are not valid reports and are in quarantine", len(reports), TOPIC, log_id
            )

    def _quarantine_row(self, report: BrokenReport) -> dict[str, Any]:
        return {
            "tenant": self._tenant,
            "pipeline": JOB_NAME,
            "reason": report.problem,
            "topic": TOPIC,
            "key": report.key,
            "value": report.value,
            "log_id": report.log_id,
            "partition": report.partition,
            "offset": report.offset,
            "epoch": report.epoch,
            "at": report.at_us,
            "quarantined_at": now_us(),
        }

    def _row(self, gap: ReportedGap) -> dict[str, Any]:
        return {
            "tenant": self._tenant,
            "log_id": gap.log_id,
            "partition": gap.partition,
            "partition_name": gap.name,
            "start": gap.start,
            "end": gap.end,
            "reason": gap.reason,
            "consumer_group": gap.group,
            "reported_at": gap.reported_at,
            "report_log_id": gap.report_log_id,
            "report_offset": gap.report_offset,
            "broker": self._owners.get(gap.report_log_id),
            "recorded_at": now_us(),
        }


def copied(table: Table, spark: SparkSession | None) -> Reports:
    """How far reports have been copied, according to the table."""
    return _newest_of(table, spark, "report_log_id", "report_offset")


def tellers(table: Table, spark: SparkSession | None) -> dict[str, str]:
    """By the log of the reports: the broker that told the newest one, according to the table."""
    if table.path is None and spark is not None:
        rows = table.read(spark).where("broker IS NOT NULL")
        newest = rows.groupBy("report_log_id", "broker").agg(F.max("report_offset").alias("last"))
        found = [row.asDict() for row in newest.collect()]
    else:
        sql = "SELECT report_log_id, broker, max(report_offset) AS last FROM reports WHERE broker IS NOT NULL "
        found = _asked(table, sql + "GROUP BY report_log_id, broker")
    return {row["report_log_id"]: row["broker"] for row in sorted(found, key=lambda row: int(row["last"]))}


def _asked(table: Table, sql: str) -> list[dict[str, Any]]:
    """The rows of a statement about `reports`, which is the table."""
    try:
        return list(rows_of(pa.table(QueryBuilder().register("reports", table.delta()).execute(sql).read_all())))
    except DeltaError as error:
        raise JobFailedError(f"the table {table} cannot be read: {error}") from error


def _quarantined(table: Table, spark: SparkSession | None) -> Reports:
    """How far invalid reports have been copied to quarantine."""
    return _newest_of(table, spark, "log_id", "offset", pipeline=JOB_NAME)


def _newest_of(
    table: Table, spark: SparkSession | None, log_id: str, offset: str, *, pipeline: str | None = None
) -> Reports:
    if table.path is None and spark is not None:
        rows = table.read(spark)
        rows = rows if pipeline is None else rows.where(F.col("pipeline") == pipeline)
        newest = rows.groupBy(F.col(log_id).alias("log_id")).agg(F.max(offset).alias("last"))
        return {row["log_id"]: row["last"] for row in newest.collect() if row["last"] is not None}
    where = f'"{offset}" IS NOT NULL' + ("" if pipeline is None else f" AND pipeline = '{pipeline}'")
    sql = f'SELECT {log_id} AS log_id, max("{offset}") AS last FROM reports WHERE {where} GROUP BY {log_id}'
    return {row["log_id"]: row["last"] for row in _asked(table, sql)}


def copy_until(copier: GapCopier, stop: Callable[[float], bool], *, every_s: float) -> None:
    """Copies repeatedly; `stop(seconds)` waits that long and returns whether to end."""
    while True:
        count = copier.copy()
        if count:
            log.info("copied %d reports of gaps", count)
        if stop(every_s):
            return


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; see `pipelines.jobs.process` for the exit codes."""
    parser = argparse.ArgumentParser(
        prog="python -m pipelines.gaps", description="Copies reported gaps into ingest_gaps."
    )
    parser.add_argument("--config", type=Path, help="settings file (default: the defaults of conf/pipelines.yaml)")
    add_place_options(parser)
    add_broker_options(parser)
    parser.add_argument("--tenant", help="tenant to write into every row")
    parser.add_argument("--once", action="store_true", help="copy the existing reports, then exit")
    options = parser.parse_args(arguments)

    def work() -> None:
        settings = with_options(load_settings(options.config), options)
        place = TablePlace.of(settings.silver, settings.storage.access())
        spark = session_of(JOB_NAME, settings.spark) if place.root is None else None
        stop = StopSignal()
        copier = GapCopier(settings.fleet(), place, tenant=settings.tenant, spark=spark)
        end = (lambda _: True) if options.once else stop.wait
        copy_until(copier, end, every_s=settings.gaps.every_s)

    return run_job(work)


if __name__ == "__main__":
    import sys

    sys.exit(main())
