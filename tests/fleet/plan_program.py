"""Prints what Spark shows of the jobs: the session's settings, and the plans of reads from brokers and from bronze.

A program for `spark-submit`, in the folder of the jobs: plan_program.py pipelines.yaml
"""

from __future__ import annotations

import sys
from pathlib import Path

from pipelines.settings import load_settings
from pipelines.source import headwater_options
from pipelines.spark.session import open_session
from pipelines.spark.stores import reach_stores
from sinks.table import Table


def main(config: Path) -> None:
    settings = load_settings(config)
    session = open_session("plans", settings.spark)
    spark, access = session.spark, settings.storage.access()
    bronze = Table.at(settings.telemetry.table_path or "", access)
    reach_stores(spark, access, [bronze.path])
    for name, value in (*spark.sparkContext.getConf().getAll(), *spark.conf.getAll.items()):
        sys.stdout.write(f"{name}={value}\n")
    options = headwater_options(
        servers=settings.fleet(), subscribe=settings.telemetry.subscribe, consumer_group="plans"
    )
    records = spark.read.format("headwater").options(**options).load()
    records.explain("formatted")
    records.groupBy("topic").count().explain(extended=True)
    rows = bronze.read(spark)
    rows.explain("formatted")
    sys.stdout.write(f"{records.count()} records, {rows.count()} rows\n")
    session.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
