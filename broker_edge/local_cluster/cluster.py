"""etcd and three brokers, started and stopped together; each broker can also be killed and started again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from broker_edge.admin import Admin
from broker_edge.cluster_status import ClusterStatus, ask_cluster
from broker_edge.errors import StartError
from broker_edge.local_cluster.etcd import EtcdProcess
from broker_edge.local_cluster.layout import NODES, Layout, Ports
from broker_edge.own_python import own_environment, own_python
from broker_edge.torture.process import BrokerError, BrokerProcess

_INIT_S = 60.0
_BROKER = "import sys; from headwater_cli import main; sys.exit(main())"


@dataclass(frozen=True, slots=True)
class Node:
    """A broker of the cluster."""

    name: str
    process: BrokerProcess
    ports: Ports

    @property
    def mqtt(self) -> str:
        """`host:port`"""
        return self._at("mqtt")

    @property
    def server(self) -> str:
        """The Flight address."""
        return f"grpc://{self._at('flight')}"

    @property
    def admin(self) -> str:
        return f"http://{self._at('admin')}"

    def _at(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports.of_node(self.name, listener)}"


class LocalCluster:
    """A cluster on the folder `root`, which is made if it does not exist.

    `command` is what starts `headwaterd`; by default the program that HEADWATERD names, otherwise this Python.
    With `tls` the nodes show each other certificates, from then on also without it. `settings` are further settings of
    each broker, `settings_of_node` of single ones by name. Raises ConfigError and StartError.
    """

    def __init__(
        self,
        root: Path,
        *,
        first_port: int | None = None,
        command: Sequence[str] | None = None,
        tls: bool = False,
        settings: Mapping[str, str] | None = None,
        settings_of_node: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._layout = Layout(root.absolute())
        self._command = list(command or _command())
        ports = self._layout.ports(first_port)
        if tls:
            self._layout.certificates()
        self.etcd = EtcdProcess(
            data_dir=self._layout.etcd_data,
            log_file=self._layout.etcd_log,
            client_port=ports.of_etcd("client"),
            peer_port=ports.of_etcd("peer"),
        )
        own = settings_of_node or {}
        self._settings = {
            name: {**self._layout.settings(name, ports), **(settings or {}), **own.get(name, {})} for name in NODES
        }
        self.nodes = {name: Node(name, self._process(name), ports) for name in NODES}

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def root(self) -> Path:
        return self._layout.root

    def log_file(self, node: str) -> Path:
        return self._layout.log(node)

    def start(self, *, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Starts etcd and the brokers. Returns when all of them accept connections; who leads is not settled then."""
        self.etcd.start(is_stopped=is_stopped)
        if is_stopped():
            return
        self._init()
        for node in self.nodes.values():
            node.process.spawn()
        for name in NODES:
            self.wait_ready(name)

    def wait_ready(self, name: str) -> None:
        """Waits until a broker that was started accepts connections."""
        try:
            self.nodes[name].process.wait_ready()
        except BrokerError as error:
            raise StartError(f"{name} did not start: {error}") from error

    def stop(self) -> None:
        """Ends the brokers, then etcd. Does nothing for what does not run."""
        with ExitStack() as stack:
            stack.callback(self.etcd.stop)
            for node in self.nodes.values():
                stack.callback(node.process.stop)
            # All at once: a node that waits for the others would wait for those that still run.
            for node in self.nodes.values():
                node.process.send_signal(signal.SIGTERM)

    def status(self, *, timeout_s: float = 5.0) -> ClusterStatus:
        """What the nodes that answer say. Raises ConnectError if none does."""
        admins = [node.admin for node in self.nodes.values()]
        return ask_cluster(lambda address: Admin(address, timeout_s=timeout_s), admins)

    def _init(self) -> None:
        name = NODES[0]
        given = {"data_dir": str(self._layout.data(name)), **self._settings[name]}
        sets = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        command = [*self._command, "cluster", "init", f"--nodes={','.join(NODES)}", *sets]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_INIT_S, check=False, env=_environment()
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise StartError(f"cannot make the cluster in etcd: {error}") from error
        if done.returncode != 0:
            raise StartError(f"cannot make the cluster in etcd: {done.stderr.strip()}")

    def _process(self, name: str) -> BrokerProcess:
        return BrokerProcess(
            data_dir=self._layout.data(name),
            settings=self._settings[name],
            log_file=self._layout.log(name),
            command=self._command,
            environment=own_environment(),
        )


def _command() -> list[str]:
    named = os.environ.get("HEADWATERD")
    return [named] if named else own_python("-c", _BROKER, "broker")


def _environment() -> dict[str, str]:
    """The settings are those given as words, as for the brokers, and no variables of this process."""
    return {name: value for name, value in own_environment().items() if not name.startswith("HEADWATER")}
