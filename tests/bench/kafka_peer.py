"""Kafka from Maven, as one process or several, and the jars of Spark's Kafka source: the peer of `spark_kafka.py` and
`cluster.py`.

The jars are fetched once into the project's cache. All files of the brokers are in the folder given to them.
"""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
import time
import uuid
from pathlib import Path
from types import TracebackType

import pyspark

from broker_edge.free_ports import free_ports
from pipelines.spark.jars import default_folder, fetch_packages
from pipelines.spark.java import require_java

BROKER_PACKAGES = (
    "org.apache.kafka:kafka_2.13:4.3.0",
    "org.apache.kafka:kafka-tools:4.3.0",
    "org.slf4j:slf4j-nop:1.7.36",
)
SOURCE_PACKAGES = (
    "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
    "org.apache.kafka:kafka-clients:3.9.2",
    "org.apache.commons:commons-pool2:2.13.1",
)
# This artifact is not published for this version of Spark, so use the newest that exists.
TOKEN_ARTIFACT = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
TOKEN_VERSION = "4.0.0"
START_SECONDS = 60.0

_PROPERTIES = """
process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/log-{node}
default.replication.factor={nodes}
min.insync.replicas={in_sync}
offsets.topic.replication.factor={nodes}
transaction.state.log.replication.factor={nodes}
transaction.state.log.min.isr={in_sync}
group.initial.rebalance.delay.ms=0
"""


def source_jars() -> list[Path]:
    """The jars of `format("kafka")`, fetched on first use."""
    cache = default_folder().parent
    tokens = fetch_packages(cache / "jars-kafka-tokens", [f"{TOKEN_ARTIFACT}:{TOKEN_VERSION}"])
    return [
        *fetch_packages(cache / "jars-kafka-source", SOURCE_PACKAGES, excludes=[TOKEN_ARTIFACT]),
        *(jar for jar in tokens if jar.name.startswith("org.apache.spark_")),
    ]


class Kafka:
    """Brokers on their own ports; a context manager. Of three nodes, two have to have a record."""

    def __init__(self, folder: Path, *, nodes: int = 1) -> None:
        self._folder = folder
        jars = fetch_packages(default_folder().parent / "jars-kafka-broker", BROKER_PACKAGES)
        # Ivy inside Spark omits jars that Spark already has.
        jars += (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
        self._command = [str(require_java()), "-Xmx1g", "-cp", ":".join(str(jar) for jar in jars)]
        ports = free_ports(2 * nodes)
        self._ports, self._controllers = ports[:nodes], ports[nodes:]
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def servers(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._ports)

    @property
    def pids(self) -> list[int]:
        assert self._processes, "Kafka is not running"
        return [process.pid for process in self._processes]

    def __enter__(self) -> Kafka:
        self._folder.mkdir(parents=True)
        files = [self._write_properties(number) for number in range(len(self._ports))]
        cluster = base64.urlsafe_b64encode(uuid.UUID(int=1).bytes).decode().rstrip("=")
        for file in files:
            self._run("kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(file))
        with (self._folder / "kafka.txt").open("ab") as log:
            for file in files:
                self._processes.append(
                    subprocess.Popen(
                        [*self._command, "kafka.Kafka", str(file)],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
        for port in self._ports:
            self._wait(port)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.kill()
            process.wait(timeout=30)

    def _write_properties(self, number: int) -> Path:
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(self._controllers, 1))
        count = len(self._ports)
        file = self._folder / f"server-{number + 1}.properties"
        file.write_text(
            _PROPERTIES.format(
                node=number + 1,
                voters=voters,
                broker=self._ports[number],
                controller=self._controllers[number],
                folder=self._folder,
                nodes=count,
                in_sync=min(count, 2),
            )
        )
        return file

    def make_topic(self, topic: str, *, partitions: int) -> None:
        self._run(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", self.servers, "--create", "--topic", topic, "--partitions", str(partitions)),
        )

    def start_producer(self, topic: str, *, records: int, size_bytes: int, per_second: int) -> subprocess.Popen[bytes]:
        """Starts Kafka's own load program, at a steady rate or, with -1, as fast as it can. The caller waits for its
        end."""
        return subprocess.Popen(
            [
                *(*self._command, "org.apache.kafka.tools.ProducerPerformance", "--topic", topic),
                *("--num-records", str(records), "--record-size", str(size_bytes), "--throughput", str(per_second)),
                *("--bootstrap-server", self.servers, "--command-property", "acks=all", "linger.ms=5"),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [*self._command, program, *arguments], capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {(done.stdout + done.stderr).strip()[-2_000:]}")

    def _wait(self, port: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if any(process.poll() is not None for process in self._processes):
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.1)
        raise RuntimeError(f"Kafka did not start: {(self._folder / 'kafka.txt').read_text(errors='replace')[-2_000:]}")
