"""A standalone cluster of machines that share only network and store: telemetry by `spark-submit` with the archive of
`headwater spark pack`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.netns_nodes import Network, Node, within
from support.programs import clean_environment
from support.spark_cluster import WAIT_S, Cluster

from pipelines.spark.pack import pack

MESSAGES = 2_000
_HEADWATER = [sys.executable, "-c", "import sys; from headwater_cli import main; sys.exit(main())"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packed")
    # Other users enter it.
    folder.chmod(0o755)
    pack(folder)
    return folder


@pytest.fixture
def cluster(packed: Path, tmp_path: Path) -> Iterator[Cluster]:
    with Network(tmp_path) as network:
        found = Cluster(network, packed, tmp_path / "store", tmp_path / "logs")
        found.start()
        yield found


def publish(broker: Node, count: int) -> set[int]:
    """Publishes to one partition, and returns the offsets that the broker acknowledged."""
    command = [*within(broker), *_HEADWATER, "pub", "--mqtt", f"{broker.address}:1883", "--ack", "--json", "--lines"]
    lines = "".join(f"{number}\n" for number in range(count))
    done = subprocess.run(
        [*command, "--file", "-", "devices/d1/telemetry"],
        input=lines,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
        env=clean_environment(None),
    )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {int(one["offset"]) for one in answers}


def test_telemetry_runs_on_machines_that_have_only_the_archive(cluster: Cluster) -> None:
    broker = cluster.start_broker("broker", {"auth.allow_anonymous": "true"})
    acknowledged = publish(broker, MESSAGES)
    assert len(acknowledged) == MESSAGES
    job = ["telemetry", "--server", f"grpc://{broker.address}:8815", "--available-now"]
    job += ["--table-path", "/opt/store/bronze", "--checkpoint", "/opt/store/checkpoint"]
    process = cluster.submit(*job)
    assert process.wait(WAIT_S) == 0, cluster.said("job")[-6_000:]
    rows = DeltaTable(str(cluster.store / "bronze")).to_pyarrow_table(columns=["offset"])
    offsets = rows["offset"].to_pylist()
    assert len(offsets) == MESSAGES
    assert set(offsets) == acknowledged
