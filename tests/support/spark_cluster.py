"""A standalone Spark cluster of a test: master, two workers and a driver on machines of their own (`netns_nodes`).

The machines share nothing but the network and a store: a real S3 server on a machine of its own (`start_store`), or
the folder `store`. They have Java, Python and Spark; headwater is only in the archive that the driver sends. The
commands are those of deploy/spark/standalone.md.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyspark

from broker_edge.torture.waiting import wait_until
from pipelines.spark.jars import default_folder, delta_jars, s3a_jars
from pipelines.spark.java import SHORT_RUN_JVM
from pipelines.spark.pack import JOB, PYTHON, pack
from support.doc_blocks import blocks
from support.netns_nodes import Network, Node
from support.programs import headwaterd, program
from support.s3 import S3Server, s3_on_machine

MASTER_PORT = 7077
WAIT_S = 240.0
_DAEMON_MB = 256
# An interpreter outside of the system's folders is mounted, because the caller's home folder is hidden.
_OWN_PYTHON = None if sys.base_prefix == "/usr" else Path(sys.base_prefix)


_SMALL = (
    # The store is a folder here, in which every machine writes as another user.
    "spark.hadoop.fs.permissions.umask-mode=000",
    "spark.ui.enabled=false",
    "spark.executor.memory=512m",
    "spark.sql.shuffle.partitions=2",
    "spark.databricks.delta.snapshotPartitions=2",
)


def page_commands() -> list[str]:
    """Master, worker, pack and job."""
    found = [block.text.replace("\\\n", " ") for block in blocks("deploy/spark/standalone.md", "sh")]
    assert len(found) == 4, found
    return found


def until(
    condition: Callable[[], bool],
    what: str,
    said: Callable[[], str],
    process: subprocess.Popen[bytes] | None = None,
    *,
    seconds: float = WAIT_S,
) -> None:
    """Waits for an event; fails with `said()` when the time is over or the process has ended."""

    def has_ended() -> bool:
        return process is not None and process.poll() is not None

    is_there = False

    def is_known() -> bool:
        nonlocal is_there
        is_there = condition()
        return is_there or has_ended()

    try:
        wait_until(is_known, seconds=seconds, what=what)
    except TimeoutError as error:
        raise AssertionError(f"no {what}:\n{said()}") from error
    assert is_there, f"no {what}:\n{said()}"


@dataclass(slots=True)
class Cluster:
    """Machines by role; `packed` is the folder that `headwater spark pack` made. `worker_cores` and `worker_memory` are
    those of each worker, if not as on the page."""

    network: Network
    packed: Path
    store: Path
    logs: Path
    worker_cores: int = 1
    worker_memory: str = "1500m"
    s3: S3Server | None = None
    workers: list[Node] = field(default_factory=list)
    _nodes: dict[str, Node] = field(default_factory=dict)

    def start(self, *, workers: int = 2) -> None:
        if self.s3 is None:
            self.store.mkdir(exist_ok=True)
            self.store.chmod(0o777)
        self._nodes["master"] = self.network.add("master", self._spark())
        self.network.start(
            self._nodes["master"],
            self._words(page_commands()[0]),
            environment=self.environment(self.node("master")),
            log=self.logs / "master.txt",
        )
        until(lambda: "I have been elected leader" in self.said("master"), "master", lambda: self.said("master"))
        for number in range(workers):
            self.workers.append(self.network.add(f"worker{number}", self._spark()))
            self.start_worker(number)
        until(lambda: self.said("master").count("Registering worker") >= workers, "worker", lambda: self.said("master"))
        # The driver has no checkout either: it runs what the executors run.
        driver = self._spark() | {"job": self.packed, "jars": default_folder()}
        if self.s3 is not None:
            driver["s3a"] = s3a_jars()[0].parent
        self._nodes["driver"] = self.network.add("driver", driver)

    def start_store(self) -> S3Server:
        """Before `start`: the machines then share the network and this server, and no folder."""
        self.s3 = s3_on_machine(self.network, self.logs / "store.txt")
        return self.s3

    def start_worker(self, number: int) -> None:
        """Also after it was killed: then as a machine that comes back."""
        node = self.workers[number]
        self.network.start(
            node,
            self._words(page_commands()[1]),
            environment=self.environment(node),
            log=self.logs / f"{node.name}.txt",
        )

    @property
    def master(self) -> str:
        return f"spark://{self.node('master').address}:{MASTER_PORT}"

    def node(self, name: str) -> Node:
        return self._nodes[name]

    def said(self, name: str) -> str:
        path = self.logs / f"{name}.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def start_broker(self, name: str, settings: Mapping[str, str] | None = None) -> Node:
        """A broker on a machine of its own, without users unless `settings` say otherwise. Also after it was killed."""
        node = self._nodes.get(name) or self.add_broker_machine(name)
        known = {
            "data_dir": "/tmp/node/log",
            "listeners.mqtt.bind": f"{node.address}:1883",
            "listeners.flight.bind": f"{node.address}:8815",
            "listeners.admin.bind": "127.0.0.1:9190",
            "auth.allow_anonymous": "true",
        }
        self.run_broker(node, [f"--set={key}={value}" for key, value in (known | dict(settings or {})).items()])
        return node

    def add_broker_machine(self, name: str, mounts: Mapping[str, Path] | None = None) -> Node:
        """A machine with the program of the broker, which does not run yet."""
        binary = self.logs / "broker-bin"
        binary.mkdir(exist_ok=True)
        if not (binary / "headwaterd").exists():
            shutil.copy(headwaterd(), binary / "headwaterd")
        self._nodes[name] = self.network.add(name, {"broker": binary, **(mounts or {})})
        return self._nodes[name]

    def run_broker(self, node: Node, words: Sequence[str]) -> None:
        """Starts the broker with these arguments, and returns once it is ready."""
        said, log = f"the broker {node.name}", self.logs / f"{node.name}.txt"
        before = self.said(node.name).count("ready mqtt=")
        process = self.network.start(node, ["/opt/broker/headwaterd", *words], environment={}, log=log)
        until(lambda: self.said(node.name).count("ready mqtt=") > before, said, lambda: self.said(node.name), process)

    @staticmethod
    def telemetry_options(broker: Node) -> list[str]:
        """Bronze and checkpoint in the store."""
        places = ["--table-path", "/opt/store/bronze", "--checkpoint", "/opt/store/checkpoint"]
        return ["--server", f"grpc://{broker.address}:8815", *places]

    def submit(
        self,
        *arguments: str,
        without: Sequence[str] = (),
        more: Sequence[str] = (),
        name: str = "job",
        environment: Mapping[str, str] | None = None,
        program: str | None = JOB,
    ) -> subprocess.Popen[bytes]:
        """`spark-submit` on the driver's machine, as the page has it, with other arguments of the job.

        `without` and `more` are options to leave out and to add. The output is `said(name)`.
        """
        driver = self.node("driver")
        words = self._words(page_commands()[3])
        words = words[: words.index(JOB)]
        # There is no network to fetch packages from.
        found = [f"/opt/jars/{jar.name}" for jar in delta_jars(None)]
        found += [] if self.s3 is None else [f"/opt/s3a/{jar.name}" for jar in s3a_jars()]
        jars = ",".join(found)
        place = words.index("--packages")
        words[place : place + 2] = ["--jars", jars]
        for option in without:
            place = words.index(option)
            del words[place : place + 2]
        words += [word for conf in _SMALL for word in ("--conf", conf)]
        return self.network.start(
            driver,
            [*words, *more, *([] if program is None else [program]), *arguments],
            environment=self.environment(driver) | dict(environment or {}),
            log=self.logs / f"{name}.txt",
            cwd="/opt/job",
        )

    def start_connect_server(self) -> str:
        """On the driver's machine, with the options of a job; returns its address."""
        driver = self.node("driver")
        words = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
        # It listens everywhere, because its own functions connect to localhost.
        # It plans with the interpreter in its folder.
        process = self.submit(
            more=words,
            name="connect",
            program=None,
            environment={"SPARK_DAEMON_MEMORY": "1g", "PYSPARK_PYTHON": PYTHON},
        )
        said = "Spark Connect server started at"
        until(lambda: said in self.said("connect"), "Connect server", lambda: self.said("connect"), process)
        return f"sc://{driver.address}:15002"

    def start_client(self, *arguments: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """A job on a machine that has only what was packed: no Spark, no Java. The output is `said("client")`."""
        mounts = {name: path for name, path in self._spark().items() if name != "spark"} | {"job": self.packed}
        if "client" not in self._nodes:
            self._nodes["client"] = self.network.add("client", mounts)
        node = self.node("client")
        known = {key: value for key, value in self.environment(node).items() if not key.startswith(("SPARK", "JAVA"))}
        return self.network.start(
            node,
            ["./headwater/bin/python", JOB, *arguments],
            environment=known | dict(environment),
            log=self.logs / "client.txt",
            cwd="/opt/job",
        )

    def _words(self, command: str) -> list[str]:
        """A command of the page with the addresses and folders of the test."""
        here = {"$SPARK_HOME": "/opt/spark", "head:7077": f"{self.node('master').address}:{MASTER_PORT}"}
        here |= {"--host head": f"--host {self.node('master').address}", "--webui-port 8080": "--webui-port 0"}
        here["--cores 1 --memory 1500m"] = f"--cores {self.worker_cores} --memory {self.worker_memory}"
        for usual, ours in here.items():
            command = command.replace(usual, ours)
        return shlex.split(command)

    def environment(self, node: Node) -> dict[str, str]:
        found = {
            "SPARK_HOME": "/opt/spark",
            "SPARK_LOCAL_IP": node.address,
            "SPARK_LOCAL_HOSTNAME": node.address,
            "SPARK_DAEMON_MEMORY": f"{_DAEMON_MB}m",
            "JAVA_TOOL_OPTIONS": SHORT_RUN_JVM,
            "JAVA_HOME": str(Path(program("java", "openjdk-17-jre-headless")).resolve().parents[1]),
        }
        if _OWN_PYTHON is not None:
            found["HEADWATER_PYTHON"] = f"/opt/python/bin/python{sys.version_info.major}.{sys.version_info.minor}"
            found["LD_LIBRARY_PATH"] = "/opt/python/lib"
        return found

    def _spark(self) -> dict[str, Path]:
        found = {"spark": Path(pyspark.__path__[0])}
        if self.s3 is None:
            found["store"] = self.store
        if _OWN_PYTHON is not None:
            found["python"] = _OWN_PYTHON
        return found


def pack_for(folder: Path, *, extras: tuple[str, ...] = ("spark",)) -> Path:
    """The folder of `headwater spark pack`, readable for the users of all machines."""
    packed = folder / "packed"
    packed.mkdir()
    pack(packed, extras=extras)
    return packed


@contextmanager
def running_cluster(
    folder: Path, packed: Path, *, with_s3: bool = False, worker_cores: int = 1, worker_memory: str = "1500m"
) -> Iterator[Cluster]:
    """Master, two workers and the machine of the driver; `with_s3` is a server in place of the folder that they
    share."""
    with Network(folder) as network:
        # Machines reach what is mounted from here, and nothing else of it.
        logs = folder / "logs"
        logs.mkdir()
        cluster = Cluster(network, packed, folder / "store", logs, worker_cores, worker_memory)
        if with_s3:
            cluster.start_store()
        cluster.start()
        yield cluster
