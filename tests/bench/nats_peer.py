"""Three nats-server processes whose MQTT messages are a JetStream stream of three replicas, synced before each
acknowledgement: the peer of `cluster.py`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import TracebackType

from support.ports import free_port

PROGRAM = "nats-server"
NODES = 3

_SETTINGS = """
server_name: n{node}
listen: 127.0.0.1:{client}
jetstream {{ store_dir: "{folder}/n{node}", sync_interval: always }}
cluster {{ name: bench, listen: 127.0.0.1:{route}, routes: [{routes}] }}
mqtt {{ listen: 127.0.0.1:{mqtt}, stream_replicas: 3 }}
accounts {{
  $SYS {{ users: [{{user: s, password: s}}] }}
  B {{ jetstream: enabled, users: [{{user: b, password: b}}] }}
}}
no_auth_user: b
"""


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


class Nats:
    """A context manager. The nodes elect their leaders after it has begun, so the first clients may be refused."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._routes, self._mqtt, self._clients = ([free_port() for _ in range(NODES)] for _ in range(3))
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def mqtt(self) -> str:
        """The address of the first node; whichever node is asked, the leader of the stream has each message first."""
        return f"127.0.0.1:{self._mqtt[0]}"

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def __enter__(self) -> Nats:
        self._folder.mkdir(parents=True)
        routes = ", ".join(f"nats://127.0.0.1:{port}" for port in self._routes)
        with (self._folder / "nats.txt").open("ab") as log:
            for node in range(NODES):
                file = self._folder / f"n{node}.conf"
                file.write_text(
                    _SETTINGS.format(
                        node=node,
                        client=self._clients[node],
                        route=self._routes[node],
                        routes=routes,
                        mqtt=self._mqtt[node],
                        folder=self._folder,
                    )
                )
                command = [PROGRAM, "-c", str(file)]
                self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        processes, self._processes = self._processes, []
        for process in processes:
            process.kill()
            process.wait(timeout=30)
