"""A query of the real Spark at a real cluster whose leader is killed: the same checkpoint goes on at the next leader,
also after a restart of the query. Nothing acknowledged is missing, nothing is there twice.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.following import FILTER, Publisher, Subscriber, address_of, in_log, publishing, until, without_repeats
from support.programs import headwaterd, program

from broker_edge.local_cluster import LocalCluster
from pipelines.settings import Settings, TelemetrySettings
from pipelines.telemetry import start_telemetry
from sinks import Table


@pytest.mark.timeout(900)
def test_a_query_goes_on_with_its_checkpoint_at_the_next_leader(spark: SparkSession, tmp_path: Path) -> None:
    program("etcd", "etcd-server")
    bronze = tmp_path / "bronze"
    with LocalCluster(tmp_path / "cluster", command=[headwaterd()]) as cluster:
        cluster.start()
        nodes = list(cluster.nodes.values())
        address = address_of(nodes)
        telemetry = TelemetrySettings(
            table_path=str(bronze), checkpoint=str(tmp_path / "checkpoint"), trigger="200 milliseconds"
        )
        settings = Settings(servers=[address], telemetry=telemetry)
        publishers = [Publisher(nodes, topic=f"devices/d{at}/telemetry", qos=qos) for at, qos in enumerate((1, 1, 2))]
        (once,) = (one.topic for one in publishers if one.qos == 2)

        def acknowledged() -> int:
            return sum(one.acknowledged for one in publishers)

        def leader() -> str | None:
            found = cluster.status()
            return found.leader if found.leader in found.reports else None

        with Subscriber(nodes, FILTER) as subscriber:
            with publishing(publishers):
                query = start_telemetry(spark, settings)
                until("rows of the first leader", lambda: _rows(spark, bronze) > 50 or None)
                first = until("a leader", leader)
                cluster.nodes[first].process.kill()
                before = acknowledged()
                until("acknowledgements of the next leader", lambda: acknowledged() > before + 100 or None)
                until("rows of the next leader", lambda: _rows(spark, bronze) > before + 50 or None)
                assert query.exception() is None, "the query that saw the first leader die still runs"
                query.stop()
                until("records between two runs", lambda: acknowledged() > before + 300 or None)
            assert until("a leader", leader) != first
            start_telemetry(spark, settings, available_now=True).awaitTermination()
            wanted = {one.topic: list(range(one.acknowledged)) for one in publishers}

            def got_all() -> bool | None:
                return all(set(subscriber.numbers[topic]) >= set(numbers) for topic, numbers in wanted.items()) or None

            until("all deliveries", got_all)
        logged = in_log(address)
        for topic, numbers in wanted.items():
            assert without_repeats(subscriber.numbers[topic]) == numbers, "no hole, and in order"
            assert {number for of, number in logged.values() if of == topic} == set(numbers)
        assert not subscriber.has_lost_session
        assert subscriber.numbers[once] == wanted[once], "at QoS 2 none twice"
        assert sorted(number for of, number in logged.values() if of == once) == wanted[once]
        rows = Table.at(bronze).read(spark).select("partition", "offset", "topic", "value").collect()
        assert {(row.partition, row.offset): (row.topic, int(row.value)) for row in rows} == logged, "missing 0"
        assert len(rows) == len(logged), "duplicates 0"
        batch = spark.read.format("headwater").options(servers=address, subscribe=FILTER).load()
        assert {(row.partition, row.offset) for row in batch.select("partition", "offset").collect()} == set(logged)


def _rows(spark: SparkSession, bronze: Path) -> int:
    return Table.at(bronze).read(spark).count() if (bronze / "_delta_log").is_dir() else 0
