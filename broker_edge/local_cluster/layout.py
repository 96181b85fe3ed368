"""The folder of a local cluster: what its files are called, the ports, and the settings of each broker.

The ports are chosen once and kept, so that clients find the cluster again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from broker_edge.draft import open_draft
from broker_edge.errors import ConfigError
from broker_edge.free_ports import free_ports

NODES = ("n1", "n2", "n3")
LISTENERS = ("mqtt", "flight", "admin", "mesh")
ETCD = ("client", "peer")
CLUSTER = "local"
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class Ports:
    """Ports on 127.0.0.1: two of etcd, then four of each node, in the order of `LISTENERS`."""

    numbers: tuple[int, ...]

    COUNT = len(ETCD) + len(NODES) * len(LISTENERS)

    def of_etcd(self, name: str) -> int:
        return self.numbers[ETCD.index(name)]

    def of_node(self, node: str, listener: str) -> int:
        return self.numbers[len(ETCD) + NODES.index(node) * len(LISTENERS) + LISTENERS.index(listener)]


@dataclass(frozen=True, slots=True)
class Layout:
    """`root` is absolute."""

    root: Path

    @property
    def secret(self) -> Path:
        return self.root / "secret"

    @property
    def etcd_data(self) -> Path:
        return self.root / "etcd"

    @property
    def etcd_log(self) -> Path:
        return self.root / "etcd.log"

    def data(self, node: str) -> Path:
        return self.root / node

    def log(self, node: str) -> Path:
        return self.root / f"{node}.log"

    def ports(self, first: int | None = None) -> Ports:
        """The ports of this folder, which are chosen at the first call: from `first` on, or any free ones. Raises
        ConfigError."""
        path = self.root / "ports.json"
        try:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
            if path.exists():
                return _kept(path, first)
            if any(self.root.iterdir()):
                raise ConfigError(f"{self.root} is not the folder of a local cluster: name a new or empty folder")
            ports = Ports(tuple(free_ports(Ports.COUNT)) if first is None else _from(first))
            with open_draft(path.with_suffix(".new"), text=True) as out:
                out.write(json.dumps(ports.numbers))
            path.with_suffix(".new").replace(path)
        except OSError as error:
            raise ConfigError(f"cannot use {error.filename or self.root} ({error.strerror})") from error
        return ports

    def certificates(self) -> None:
        """Writes the certificates of the nodes, if they do not exist. Raises ConfigError."""
        # Its library for certificates is loaded by those who want some only.
        from broker_edge.node_certificates import write_certificates

        write_certificates(self._tls, NODES)

    @property
    def _tls(self) -> Path:
        return self.root / "tls"

    def settings(self, node: str, ports: Ports) -> dict[str, str]:
        """The settings of a broker, without its data folder; with certificates, where there are some."""
        tls = {}
        if self._tls.exists():
            files = {"cert": f"{node}.pem", "key": f"{node}.key", "ca": "ca.pem"}
            tls = {f"cluster.tls.{name}": str(self._tls / file) for name, file in files.items()}
        listeners = {f"listeners.{name}.bind": _at(ports.of_node(node, name)) for name in ("mqtt", "flight", "admin")}
        return {
            **listeners,
            "cluster.name": CLUSTER,
            "cluster.node": node,
            "cluster.listen": _at(ports.of_node(node, "mesh")),
            "cluster.secret_file": str(self.secret),
            "cluster.etcd.endpoints": f"[http://{_at(ports.of_etcd('client'))}]",
            **tls,
        }


def _at(port: int) -> str:
    return f"127.0.0.1:{port}"


def _from(first: int) -> tuple[int, ...]:
    last = first + Ports.COUNT - 1
    if not 1 <= first <= last <= _PORT_MAX:
        raise ConfigError(
            f"ports {first} to {last} do not all exist: write a first port up to {_PORT_MAX - Ports.COUNT}"
        )
    return tuple(range(first, last + 1))


def _kept(path: Path, first: int | None) -> Ports:
    try:
        numbers = json.loads(path.read_text())
    except ValueError:
        numbers = None
    is_good = isinstance(numbers, list) and len(numbers) == Ports.COUNT and all(isinstance(one, int) for one in numbers)
    if not is_good:
        raise ConfigError(f"{path} does not hold {Ports.COUNT} ports: remove it to choose new ones")
    if first is not None and numbers[0] != first:
        raise ConfigError(f"{path.parent} has the ports from {numbers[0]} on: leave the option out, or remove {path}")
    return Ports(tuple(numbers))
