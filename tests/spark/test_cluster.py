"""A standalone cluster of machines that share only network and store: telemetry by `spark-submit` with the archive of
`headwater spark pack`. `make test-fleet` kills what runs there, and uses Spark Connect."""

from __future__ import annotations

from pathlib import Path

from support.cluster_load import Publisher, offsets_in
from support.spark_cluster import WAIT_S, pack_for, running_cluster

MESSAGES = 2_000


def test_telemetry_runs_on_machines_that_have_only_the_archive(tmp_path: Path) -> None:
    with running_cluster(tmp_path, pack_for(tmp_path)) as cluster:
        broker = cluster.start_broker("broker")
        acknowledged = Publisher(broker, MESSAGES).acknowledged()
        assert len(acknowledged) == MESSAGES
        job = cluster.submit("telemetry", *cluster.telemetry_options(broker), "--available-now")
        assert job.wait(WAIT_S) == 0, cluster.said("job")[-6_000:]
        offsets = offsets_in(cluster.store / "bronze")
        assert len(offsets) == MESSAGES
        assert set(offsets) == acknowledged
