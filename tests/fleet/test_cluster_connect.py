"""Jobs over Spark Connect: the server runs on the cluster, the jobs on a machine without Spark and Java."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from deltalake import DeltaTable
from support.cluster_load import Publisher, offsets_in
from support.netns_nodes import Node
from support.spark_cluster import Cluster, pack_for, running_cluster

MESSAGES = 1_000
REPORTS = 50
RUN_S = 480.0
"""Of the jobs: each session sends its archive to the executors, which unpack it."""
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(1_800)
def test_jobs_run_over_connect_and_continue_at_the_same_checkpoints(tmp_path: Path) -> None:
    with running_cluster(tmp_path, pack_for(tmp_path, extras=("spark", "connect"))) as cluster:
        broker = cluster.start_broker("broker")
        remote = {"SPARK_REMOTE": cluster.start_connect_server()}
        configure(cluster, broker)
        sent: set[int] = set()
        reported: set[int] = set()
        for boot in ("b1", "b2"):
            sent |= Publisher(broker, MESSAGES).acknowledged()
            about = {"state": "ONLINE", "boot": boot}
            reported |= Publisher(broker, REPORTS, topic="devices/d1/status", fields=about).acknowledged()
            jobs = ["jobs", "telemetry", "status", "silver", "--available-now", "--config", "pipelines.yaml"]
            client = cluster.start_client(*jobs, environment=remote)
            assert client.wait(RUN_S) == 0, cluster.said("client")[-4_000:] + cluster.said("connect")[-6_000:]
            for table, wanted in (("bronze", sent), ("action_events", reported), ("silver_telemetry", sent)):
                offsets = offsets_in(cluster.store / "tables" / table)
                assert len(offsets) == len(set(offsets)), f"doubled in {table}"
                assert set(offsets) == wanted, table
        assert DeltaTable(cluster.store / "tables/quarantine").to_pyarrow_table().num_rows == 0
        assert "is decided by SPARK_REMOTE" in cluster.said("client")
        assert (len(sent), len(reported)) == (2 * MESSAGES, 2 * REPORTS)


def configure(cluster: Cluster, broker: Node) -> None:
    """The settings of the jobs. The client reaches the store, too: it looks there where a job begins."""
    tables, checkpoints = "/opt/store/tables", "/opt/store/checkpoints"
    (cluster.packed / "schemas").mkdir()
    shutil.copy(ROOT / "conf/schemas/telemetry.yaml", cluster.packed / "schemas")
    chosen = {
        "servers": [f"grpc://{broker.address}:8815"],
        "telemetry": {"table_path": f"{tables}/bronze", "checkpoint": f"{checkpoints}/telemetry"},
        "status": {"checkpoint": f"{checkpoints}/status"},
        "actions": {"root": tables},
        "silver": {"root": tables, "checkpoint": f"{checkpoints}/silver", "schemas": "schemas", "rules": None},
    }
    (cluster.packed / "pipelines.yaml").write_text(yaml.safe_dump(chosen))
