"""A query of the real Spark at a real cluster whose etcd has stopped: it goes on, and so do publishers and sessions."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.following import FILTER, Publisher, Subscriber, address_of, in_log, publishing, until, without_repeats
from support.programs import headwaterd, program

from broker_edge.local_cluster import LocalCluster
from pipelines.settings import Settings, TelemetrySettings
from pipelines.telemetry import start_telemetry
from sinks import Table


@pytest.mark.timeout(1800)
def test_a_query_goes_on_while_etcd_is_away(spark: SparkSession, tmp_path: Path) -> None:
    program("etcd", "etcd-server")
    bronze = tmp_path / "bronze"
    with LocalCluster(tmp_path / "cluster", command=[headwaterd()]) as cluster:
        cluster.start()
        until("a whole cluster", lambda: cluster.status().is_whole or None)
        nodes = list(cluster.nodes.values())
        address = address_of(nodes)
        telemetry = TelemetrySettings(
            table_path=str(bronze), checkpoint=str(tmp_path / "checkpoint"), trigger="200 milliseconds"
        )
        publisher = Publisher(nodes)

        def rows() -> int:
            return Table.at(bronze).read(spark).count() if (bronze / "_delta_log").is_dir() else 0

        def knows_that_etcd_is(reached: bool) -> bool | None:
            reports = cluster.status().reports.values()
            return (len(reports) == len(nodes) and all(one["etcd"]["reachable"] is reached for one in reports)) or None

        with Subscriber(nodes, FILTER) as subscriber, publishing([publisher]):
            query = start_telemetry(spark, Settings(servers=[address], telemetry=telemetry))
            until("rows before", lambda: rows() > 50 or None)
            cluster.etcd.send_signal(signal.SIGSTOP)
            until("nodes that know it", lambda: knows_that_etcd_is(False))
            import time; t0 = (publisher.acknowledged, rows(), time.time()); time.sleep(600); print("SCRATCH", t0, publisher.acknowledged, rows(), time.time())
            before, read = publisher.acknowledged, rows()
            until("acknowledgements without etcd", lambda: publisher.acknowledged > before + 200 or None)
            until("rows without etcd", lambda: rows() > read + 200 or None)
            cluster.etcd.send_signal(signal.SIGCONT)
            until("nodes that reach it again", lambda: knows_that_etcd_is(True))
            until("acknowledgements with etcd", lambda: publisher.acknowledged > before + 400 or None)
            assert query.exception() is None
            query.stop()
        start_telemetry(spark, Settings(servers=[address], telemetry=telemetry), available_now=True).awaitTermination()
        wanted = list(range(publisher.acknowledged))
        until("all deliveries", lambda: set(subscriber.numbers[publisher.topic]) >= set(wanted) or None)
        assert without_repeats(subscriber.numbers[publisher.topic]) == wanted
        assert not subscriber.has_lost_session
        assert cluster.status().epoch == 1, "nobody else has led"
        logged = in_log(address)
        found = Table.at(bronze).read(spark).select("partition", "offset", "value").collect()
        assert {(row.partition, row.offset): int(row.value) for row in found} == {
            place: number for place, (_, number) in logged.items()
        }
        assert len(found) == len(logged), "duplicates 0"
