"""The telemetry job over Spark Connect: the server runs on the cluster, the job on a machine without Spark and Java."""

from __future__ import annotations

from pathlib import Path

from support.spark_cluster import WAIT_S, Publisher, offsets_in, pack_for, running_cluster

MESSAGES = 2_000


def test_telemetry_runs_over_connect_and_continues_at_the_same_checkpoint(tmp_path: Path) -> None:
    with running_cluster(tmp_path, pack_for(tmp_path, extras=("spark", "connect"))) as cluster:
        broker = cluster.start_broker("broker")
        remote = {"SPARK_REMOTE": cluster.start_connect_server()}
        acknowledged: set[int] = set()
        for _ in range(2):
            acknowledged |= Publisher(broker, MESSAGES).acknowledged()
            options = [*cluster.telemetry_options(broker), "--available-now"]
            client = cluster.start_client("telemetry", *options, environment=remote)
            assert client.wait(WAIT_S) == 0, cluster.said("client")[-4_000:] + cluster.said("connect")[-4_000:]
            offsets = offsets_in(cluster.store / "bronze")
            assert len(offsets) == len(set(offsets)), "doubled"
            assert set(offsets) == acknowledged
        assert "is decided by SPARK_REMOTE" in cluster.said("client")
        assert len(acknowledged) == 2 * MESSAGES
