"""`headwater cluster dev` as a user runs it: three brokers, a leader that is killed, and the same folder again."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from support.following import Publisher, numbers_in_log, until, without_repeats
from support.programs import headwater, headwaterd, program, run, start_headwater

from broker_edge.local_cluster import LocalCluster, Node

END_S = 120.0
_PID = re.compile(r"^(n\d)(?:: | starts again: )pid (\d+)")


class Dev:
    """The running command: its lines of state, and the process ids that it says."""

    def __init__(self, folder: Path) -> None:
        self.process = start_headwater(
            "cluster", "dev", str(folder), "--json", environment={"HEADWATERD": headwaterd()}
        )

    def state(self) -> dict[str, Any]:
        """The next change of who leads and who is in sync."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the command has ended: {self.process.stderr and self.process.stderr.read()}"
        return dict(json.loads(line))

    def whole(self) -> str:
        """Waits until all are in sync with a leader; returns its name."""
        while True:
            state = self.state()
            if state["leader"] is not None and len(state["in_sync"]) == 3:
                return str(state["leader"])

    def pid(self, node: str) -> int:
        """From the lines on stderr so far."""
        assert self.process.stderr is not None
        while True:
            line = self.process.stderr.readline()
            assert line, "the command has ended"
            match = _PID.match(line)
            if match is not None and match[1] == node:
                return int(match[2])


@contextmanager
def running(folder: Path) -> Iterator[Dev]:
    dev = Dev(folder)
    try:
        yield dev
        dev.process.send_signal(signal.SIGINT)
        _, err = dev.process.communicate(timeout=END_S)
        assert dev.process.returncode == 0, err
    finally:
        if dev.process.poll() is None:
            dev.process.terminate()
            try:
                dev.process.communicate(timeout=END_S)
            except subprocess.TimeoutExpired:
                dev.process.kill()
                dev.process.communicate()


def _nodes(folder: Path) -> dict[str, Node]:
    """The addresses, from the folder."""
    return LocalCluster(folder).nodes


def _whole_status(nodes: dict[str, Node]) -> dict[str, Any] | None:
    """What `status` says, if all nodes are there."""
    admins = [word for node in nodes.values() for word in ("--admin", node.admin)]
    status = headwater("cluster", "status", "--json", *admins)
    return dict(json.loads(status.out)) if status.code == 0 else None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_taken(port: int | None) -> bool:
    """Whether a process listens there."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_nothing_acknowledged_is_missing_after_the_leader_was_killed_and_after_a_second_run(tmp_path: Path) -> None:
    program("etcd", "etcd-server")
    folder = tmp_path / "cluster"
    with running(folder) as dev:
        leader = dev.whole()
        nodes = _nodes(folder)
        publisher = Publisher(list(nodes.values()))
        publisher.publish(50)
        os.kill(dev.pid(leader), signal.SIGKILL)
        publisher.publish(50)
        # The killed one is started again by the command, and catches up.
        found = until("a whole cluster", lambda: _whole_status(nodes))
        second = found["leader"]
        assert second != leader
        assert set(found["nodes"]) == set(nodes)
        publisher.publish(10)
        publisher.leave()
        assert without_repeats(numbers_in_log(nodes[second])) == list(range(110))
        # A node that does not lead says so, and where the leader is.
        assert publisher.refusals <= {0x9C, 0x88}
    with running(folder) as dev:
        leader = dev.whole()
        assert _nodes(folder)[leader].mqtt == nodes[leader].mqtt
        publisher = Publisher(list(nodes.values()), acknowledged=110)
        publisher.publish(10)
        publisher.leave()
        logged = until("the log of the leader", lambda: numbers_in_log(nodes[leader]))
        assert without_repeats(logged) == list(range(120))
    compared = run(headwaterd(), "log", "compare", *(str(folder / name) for name in nodes), "--json")
    assert compared.code == 0, compared.out + compared.err
    assert sum(one["end"] for one in compared.documents[0]["partitions"]) >= 120


def test_the_processes_end_with_the_command(tmp_path: Path) -> None:
    program("etcd", "etcd-server")
    folder = tmp_path / "cluster"
    with running(folder) as dev:
        dev.whole()
        pids = [dev.pid(node) for node in ("n1", "n2", "n3")]
        assert all(map(_is_alive, pids))
        etcd = urlsplit(LocalCluster(folder).etcd.endpoint)
        assert _is_taken(etcd.port)
    assert not any(map(_is_alive, pids))
    assert not _is_taken(etcd.port), "etcd has ended"
