"""etcd and three brokers as processes, with their links, disks and folders: what faults do something to.

A node is down, starting or up as far as this process made it so; what a node thinks of itself is in `watch.py`.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from broker_edge.free_ports import PORT_MIN, free_ports
from broker_edge.local_cluster import NODES, EtcdProcess, LocalCluster, Node
from broker_edge.local_cluster.layout import Layout, Ports
from broker_edge.torture.cluster.links import Links
from broker_edge.torture.process import Address, BrokerProcess

ETCD = "etcd"
READY_S = 60.0
COMPARED_S = 300.0
_ENDED_S = 60.0


class Nodes:
    """Three nodes on `root`. `folders` are the data folders, where they are not below `root`."""

    def __init__(
        self,
        root: Path,
        *,
        program: Path,
        moments: random.Random,
        settings: Mapping[str, str],
        folders: Mapping[str, Path] | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`tell` gets a line for each thing that is done."""
        self._program = program
        self.tell = tell
        self.links = Links(tell)
        count = Ports.COUNT + 2 * len(NODES)
        ports = free_ports(count, begin=PORT_MIN + moments.randrange(190) * 50)
        mesh, to_etcd = ports[Ports.COUNT :][::2], ports[Ports.COUNT :][1::2]
        self._fronts = {name: self.links.front(name, port) for name, port in zip(NODES, mesh, strict=True)}
        self._etcd_fronts = {
            name: self.links.front(ETCD, port, caller=name) for name, port in zip(NODES, to_etcd, strict=True)
        }
        # The layout chooses the same ones, as they are free and in a row.
        here = Ports(tuple(ports[: Ports.COUNT]))
        own = {name: self._own_settings(name, here, folders or {}) for name in NODES}
        self._cluster = LocalCluster(
            root, first_port=ports[0], command=[str(program)], settings=settings, settings_of_node=own
        )
        layout = Layout(root.absolute())
        self.folders = {name: (folders or {}).get(name) or layout.data(name) for name in NODES}
        for name, front in self._fronts.items():
            front.target = ("127.0.0.1", here.of_node(name, "mesh"))
        for front in self._etcd_fronts.values():
            front.target = ("127.0.0.1", here.of_etcd("client"))
        self._starting: set[str] = set()

    def _own_settings(self, name: str, ports: Ports, folders: Mapping[str, Path]) -> dict[str, str]:
        own = {
            **{
                f"cluster.advertise.{one}": f"127.0.0.1:{ports.of_node(name, one)}"
                for one in ("mqtt", "flight", "admin")
            },
            "cluster.advertise.mesh": _text(self._fronts[name].address),
            "cluster.etcd.endpoints": f"[http://{_text(self._etcd_fronts[name].address)}]",
        }
        return own | ({"data_dir": str(folders[name])} if name in folders else {})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in NODES:
            self.go_on(name)
            self.kill(name)
        with contextlib.suppress(ProcessLookupError):
            self.etcd.send_signal(signal.SIGCONT)
        self.etcd.kill()
        self.links.__exit__(kind, error, trace)

    def __enter__(self) -> Nodes:
        return self

    @property
    def etcd(self) -> EtcdProcess:
        return self._cluster.etcd

    def process(self, name: str) -> BrokerProcess:
        return self._cluster.nodes[name].process

    def node(self, name: str) -> Node:
        return self._cluster.nodes[name]

    def mqtt(self, name: str) -> Address:
        return _address(self._cluster.nodes[name].mqtt)

    def flight(self, name: str) -> Address:
        return _address(self._cluster.nodes[name].server)

    def admin(self, name: str) -> str:
        return self._cluster.nodes[name].admin

    def arm(self, name: str, words: str) -> None:
        """Faults inside this node from its next start on."""
        self.process(name).faults = words

    # Processes.

    def begin(self) -> None:
        """The first start of everything. Raises BrokerError or StartError."""
        self._cluster.start()

    def spawn(self, name: str) -> None:
        """Starts a node that is down or has ended by itself, without waiting for it."""
        self.process(name).kill()
        words = self.process(name).faults
        self.tell(f"start {name}{f' with {words}' if words else ''}")
        self.process(name).spawn()
        self._starting.add(name)
        self._fronts[name].up()

    def wait_up(self, name: str) -> None:
        """Waits until a node that was started accepts connections. Raises BrokerError."""
        if name in self._starting:
            self._starting.discard(name)
            self.process(name).wait_ready()

    def start(self, *names: str) -> None:
        for name in names:
            self.spawn(name)
        for name in names:
            self.wait_up(name)

    def kill(self, *names: str) -> None:
        """kill -9; a node that is down stays so."""
        self.tell(f"kill {' and '.join(names)}")
        for name in names:
            self._starting.discard(name)
            self.process(name).kill()
            self._gone(name)

    def stop(self, *names: str) -> dict[str, int]:
        """SIGTERM to all of them at once; returns their exit codes. Raises subprocess.TimeoutExpired."""
        self.tell(f"stop {' and '.join(names)}")
        for name in names:
            self.process(name).send_signal(signal.SIGTERM)
        codes = {}
        for name in names:
            codes[name] = self.process(name).stop()
            self.tell(f"{name} has stopped")
            self._starting.discard(name)
            self._gone(name)
        return codes

    def _gone(self, name: str) -> None:
        self._fronts[name].down()

    def pause(self, *names: str) -> None:
        self.tell(f"pause {' and '.join(names)}")
        for name in names:
            self.process(name).send_signal(signal.SIGSTOP)

    def go_on(self, *names: str) -> None:
        self.tell(f"{' and '.join(names)} go on")
        for name in names:
            with contextlib.suppress(ProcessLookupError):
                self.process(name).send_signal(signal.SIGCONT)

    def is_down(self, name: str) -> bool:
        return not self.process(name).is_running

    @property
    def running(self) -> list[str]:
        return [name for name in NODES if not self.is_down(name)]

    # etcd.

    def kill_etcd(self) -> None:
        self.tell("kill etcd")
        self.etcd.kill()
        for front in self._etcd_fronts.values():
            front.down()

    def start_etcd(self) -> None:
        if not self.etcd.is_running:
            self.tell("start etcd")
            self.etcd.start()
        for front in self._etcd_fronts.values():
            front.up()

    def pause_etcd(self) -> None:
        self.tell("pause etcd")
        self.etcd.send_signal(signal.SIGSTOP)

    def go_on_etcd(self) -> None:
        self.etcd.send_signal(signal.SIGCONT)

    # Links.

    def isolate(self, name: str, *, etcd_too: bool = False) -> None:
        """Cuts a node off from the other nodes."""
        self.links.cut(name, [*others(name), *([ETCD] if etcd_too else [])])

    # Folders of nodes that are down.

    def empty(self, name: str) -> None:
        self.tell(f"empty the folder of {name}")
        for path in self.folders[name].iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    def copy_folder(self, name: str, to: Path) -> None:
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.folders[name], to)

    def put_back(self, name: str, source: Path) -> None:
        self.empty(name)
        self.tell(f"an older folder for {name}")
        shutil.copytree(source, self.folders[name], dirs_exist_ok=True)

    def compare(self, *names: str) -> list[str]:
        """What `headwaterd log compare` says against the copies of nodes that are down; empty if they are equal."""
        folders = [str(self.folders[name]) for name in names or NODES]
        command = [str(self._program), "log", "compare", "--json", *folders]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPARED_S, check=False)
        if done.returncode == 0:
            return []
        try:
            found = json.loads(done.stdout)
        except ValueError:
            return [f"log compare: exit code {done.returncode}: {done.stderr.strip()[-500:]}"]
        wrong = [f"{folder} is damaged" for folder in found["damaged"]]
        for one in found["partitions"]:
            wrong += [
                f"{one['name']}: {each['dir']} differs from {folders[0]} in [{each['from']}, {each['until']})"
                for each in one["different"]
            ]
        return wrong or [f"log compare: exit code {done.returncode}: {done.stderr.strip()[-500:]}"]

    def last_words(self) -> str:
        return "\n".join(f"{name}: {self.process(name).last_words()}" for name in NODES)

    def log_text(self, name: str) -> str:
        path = self.process(name).log_file
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_refused(self, name: str, *, seconds: float = _ENDED_S) -> int | None:
        """Waits for a start that has to fail; returns its exit code, None if the node runs or still waits."""
        self._starting.discard(name)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            code = self.process(name).wait_end(seconds=0.2)
            if code is not None:
                return code
        return None


def others(name: str) -> list[str]:
    return [one for one in NODES if one != name]


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"


def _address(text: str) -> Address:
    host, _, port = text.rpartition("//")[2].rpartition(":")
    return host, int(port)


__all__ = ["ETCD", "NODES", "Nodes", "others"]
