"""Machines of a test: network namespaces on one switch, each with an address, folders, a view of the disk and a user of
its own.

Needs root. Nothing leaves the namespaces: the switch is one, too. A process on a node sees the system, what the test
has mounted below /opt, and its own /tmp; the checkout, its environment and the home folder of the caller are hidden.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from broker_edge.torture.waiting import wait_until
from support.programs import program

REPOSITORY = Path(__file__).resolve().parents[2]
_NET = "10.77.0"
_FIRST_UID = 61_000
_END_S = 30.0
UNSHARE = ("unshare", "--mount", "--propagation", "slave")
"""A machine's own mounts stay its own, and what is unmounted outside goes there, too: with `private` it would keep the
disks of other tests busy, whose power is cut meanwhile."""
_ENVIRONMENT = Path(sys.prefix).resolve()


@dataclass(frozen=True, slots=True)
class Node:
    """One machine. `mounts`: names below /opt, and what is there."""

    name: str
    address: str
    namespace: str
    uid: int
    folder: Path
    mounts: Mapping[str, Path]

    def command(self, words: Sequence[str], *, environment: Mapping[str, str], cwd: str = "/tmp/node") -> list[str]:
        """The command that runs `words` on this machine as its user."""
        lines = ["mount -t tmpfs -o mode=755 tmpfs /opt"]
        for name, source in self.mounts.items():
            lines += [f"mkdir /opt/{name}", f"mount --bind {shlex.quote(str(source))} /opt/{name}"]
        for name in ("passwd", "group"):
            lines.append(f"mount --bind {shlex.quote(str(self.folder / name))} /etc/{name}")
        hidden = [path for path in (REPOSITORY, _ENVIRONMENT, Path.home()) if path.is_dir()]
        own = f"mount --bind {shlex.quote(str(self.folder / 'tmp'))} /tmp"
        lines += [
            f"[ ! -d {one} ] || mount -t tmpfs -o mode=700 tmpfs {one}" for one in map(shlex.quote, map(str, hidden))
        ]
        # Last, because sources of the others may be below /tmp.
        lines += [own, f"cd {cwd}", "umask 0"]
        variables = {
            "HOME": "/tmp/home",
            "PATH": "/opt/bin:/usr/local/bin:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            **environment,
        }
        shown = [f"{name}={value}" for name, value in variables.items()]
        who = [f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", "--no-new-privs", "--bounding-set=-all"]
        lines.append(shlex.join(["exec", "setpriv", *who, "env", "-i", *shown, *words]))
        inside = [*UNSHARE, "sh", "-ec", "\n".join(lines)]
        return ["ip", "netns", "exec", self.namespace, *inside]

    def pids(self) -> list[int]:
        """Every process on the machine."""
        done = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, check=False)
        return [int(word) for word in done.stdout.split()]

    def kill(self) -> None:
        """Power off: SIGKILL for everything on the machine."""
        wait_until(self._has_nothing_left, seconds=_END_S, what=f"the processes of {self.name} to end")

    def forget(self) -> None:
        """What a start does to a machine whose /tmp is in memory: empties it."""
        assert not self.pids(), f"{self.name} runs"
        for path in (self.folder / "tmp").iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.make_tmp()

    def make_tmp(self) -> None:
        for below in ("tmp/node", "tmp/home"):
            (self.folder / below).mkdir(parents=True)
            os.chown(self.folder / below, self.uid, self.uid)
        (self.folder / "tmp").chmod(0o1777)

    def _has_nothing_left(self) -> bool:
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not pids


@dataclass(slots=True)
class Network:
    """A switch and the machines on it; leaving the context kills and removes all of them."""

    folder: Path
    nodes: dict[str, Node] = field(default_factory=dict)
    _started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def __enter__(self) -> Network:
        for name, package in (("ip", "iproute2"), ("unshare", "util-linux"), ("setpriv", "util-linux")):
            program(name, package)
        assert os.geteuid() == 0, "network namespaces need root"
        _ip("netns", "add", self._switch)
        _ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "br0", "up")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for node in self.nodes.values():
            node.kill()
        for process in self._started:
            process.wait(_END_S)
        for node in self.nodes.values():
            _ip("netns", "del", node.namespace)
        _ip("netns", "del", self._switch)

    @property
    def _switch(self) -> str:
        return f"hw{os.getpid()}-switch"

    def add(self, name: str, mounts: Mapping[str, Path]) -> Node:
        """A new machine."""
        number = len(self.nodes) + 1
        folder = self.folder / name
        uid = _FIRST_UID + number
        folder.mkdir(parents=True)
        # Hadoop asks for the name of the user.
        (folder / "passwd").write_text(f"root:x:0:0::/root:/bin/sh\n{name}:x:{uid}:{uid}::/tmp/home:/bin/sh\n")
        (folder / "group").write_text(f"root:x:0:\n{name}:x:{uid}:\n")
        node = Node(name, f"{_NET}.{number}", f"hw{os.getpid()}-{name}", uid, folder, dict(mounts))
        node.make_tmp()
        _ip("netns", "add", node.namespace)
        port = f"p{number}"
        peer = ("peer", "name", "eth0", "netns", node.namespace)
        _ip("-n", self._switch, "link", "add", port, "type", "veth", *peer)
        _ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        _ip("-n", node.namespace, "address", "add", f"{node.address}/24", "dev", "eth0")
        _ip("-n", node.namespace, "link", "set", "eth0", "up")
        _ip("-n", node.namespace, "link", "set", "lo", "up")
        self.nodes[name] = node
        return node

    def start(
        self, node: Node, words: Sequence[str], *, environment: Mapping[str, str], log: Path, cwd: str = "/tmp/node"
    ) -> subprocess.Popen[bytes]:
        """Starts a program on a machine; its output goes to `log`, outside of the machine."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                node.command(words, environment=environment, cwd=cwd),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process


def _ip(*words: str) -> None:
    done = subprocess.run([program("ip", "iproute2"), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"


def within(node: Node) -> list[str]:
    """The beginning of a command that runs as root in the network of a machine, and with the disk of the test."""
    return [shutil.which("ip") or "ip", "netns", "exec", node.namespace]
