"""A single-node Kafka from Maven as a process, and the jars of Spark's Kafka source: the peer of `spark_kafka.py`.

The jars are fetched once into the project's cache. All files of the broker are in the folder given to it.
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
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
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
    """One broker on its own ports; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        jars = fetch_packages(default_folder().parent / "jars-kafka-broker", BROKER_PACKAGES)
        # Ivy inside Spark omits jars that Spark already has.
        jars += (Path(pyspark.__file__).parent / "jars").glob("scala-library-*.jar")
        self._command = [str(require_java()), "-Xmx1g", "-cp", ":".join(str(jar) for jar in jars)]
        self._port, self._controller_port = _free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "Kafka is not running"
        return self._process.pid

    def __enter__(self) -> Kafka:
        self._folder.mkdir(parents=True)
        properties = self._folder / "server.properties"
        properties.write_text(
            _PROPERTIES.format(broker=self._port, controller=self._controller_port, folder=self._folder)
        )
        cluster = base64.urlsafe_b64encode(uuid.UUID(int=1).bytes).decode().rstrip("=")
        self._run("kafka.tools.StorageTool", "format", "--cluster-id", cluster, "--config", str(properties))
        with (self._folder / "kafka.txt").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, "kafka.Kafka", str(properties)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(timeout=30)

    def make_topic(self, topic: str, *, partitions: int) -> None:
        self._run(
            "org.apache.kafka.tools.TopicCommand",
            *("--bootstrap-server", self.servers, "--create", "--topic", topic, "--partitions", str(partitions)),
        )

    def start_producer(self, topic: str, *, records: int, size_bytes: int, per_second: int) -> subprocess.Popen[bytes]:
        """Starts Kafka's own load program at a steady rate. The caller waits for its end."""
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

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self._process is not None
            if self._process.poll() is not None:
                break
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=1):
                return
            time.sleep(0.1)
        raise RuntimeError(f"Kafka did not start: {(self._folder / 'kafka.txt').read_text(errors='replace')[-2_000:]}")


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]
