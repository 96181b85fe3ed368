"""A worker, the driver and the broker of a running telemetry job are killed in turn: 0 missing, 0 doubled.

HEADWATER_FLEET_ROUNDS sets the number of rounds (default 2).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from deltalake import DeltaTable
from support.netns_nodes import Node
from support.spark_cluster import WAIT_S, Cluster, Publisher, offsets_in, pack_for, running_cluster, until

ROUNDS = int(os.environ.get("HEADWATER_FLEET_ROUNDS", "2"))
MESSAGES = 600
RATE = 200
BEFORE = 100


def test_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    with running_cluster(tmp_path, pack_for(tmp_path)) as cluster:
        broker = cluster.start_broker("broker")
        start_job(cluster, broker)
        faults: tuple[Callable[[], None], ...] = (
            lambda: kill_worker(cluster),
            lambda: kill_driver(cluster, broker),
            lambda: kill_broker(cluster, broker),
        )
        acknowledged: set[int] = set()
        for _ in range(ROUNDS):
            for fault in faults:
                publisher = Publisher(broker, MESSAGES, rate=RATE)
                publisher.until(BEFORE)
                wait_for_rows(cluster, len(acknowledged) + 1)
                fault()
                acknowledged |= publisher.acknowledged()
                wait_for_rows(cluster, len(acknowledged))
        offsets = offsets_in(cluster.store / "bronze")
        # A message whose acknowledgement was cut off may be there, too.
        assert acknowledged - set(offsets) == set(), "missing"
        assert len(offsets) == len(set(offsets)), "doubled"
        assert len(acknowledged) > ROUNDS * len(faults) * BEFORE


def test_control_without_the_archive_the_job_ends_with_one_sentence(tmp_path: Path) -> None:
    with running_cluster(tmp_path, pack_for(tmp_path)) as cluster:
        broker = cluster.start_broker("broker")
        assert Publisher(broker, 1).acknowledged() == {0}
        options = [*cluster.telemetry_options(broker), "--available-now"]
        job = cluster.submit("telemetry", *options, without=["--archives"])
        assert job.wait(WAIT_S) == 1
        last = cluster.said("job").strip().splitlines()[-1]
        assert "cannot start ./headwater/bin/python: give spark-submit the archive of `headwater spark pack`" in last


def start_job(cluster: Cluster, broker: Node) -> None:
    # A batch waits for a broker that is away; a job that fails all the same is started again by kill_broker.
    cluster.submit("telemetry", *cluster.telemetry_options(broker))


def wait_for_rows(cluster: Cluster, count: int) -> None:
    table = cluster.store / "bronze"

    def is_there() -> bool:
        return DeltaTable.is_deltatable(str(table)) and len(set(offsets_in(table))) >= count

    until(is_there, f"{count} rows", lambda: cluster.said("job")[-4_000:])


def kill_worker(cluster: Cluster) -> None:
    cluster.workers[0].kill()
    cluster.start_worker(0)


def kill_driver(cluster: Cluster, broker: Node) -> None:
    cluster.node("driver").kill()
    start_job(cluster, broker)


def kill_broker(cluster: Cluster, broker: Node) -> None:
    broker.kill()
    cluster.start_broker("broker")
