"""A real S3 server in a process of its own (versitygw over a folder), and a link to it that makes it ignore one header.

`make store-server` builds it. It honours `If-None-Match`; several processes may use it at once.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from broker_edge.torture.waiting import wait_until
from pipelines.spark.jars import delta_jars, s3a_jars
from sinks.store import StoreAccess
from support.netns_nodes import Network
from support.ports import free_port
from support.relay import Relay

PROGRAM = Path(__file__).resolve().parents[2] / ".cache" / "versitygw"
BUCKET = "tables"
HISTORY = "history"
"""A second bucket, for Spark's event logs."""
SECRET = "a-secret-that-must-not-leak"
USER = "tester"
_START_S = 30.0
_PORT = 7070


@dataclass(frozen=True, slots=True)
class S3Server:
    """Where the server is. `secret` is a file with the secret key, `folder` has the objects as files."""

    endpoint: str
    secret: Path
    folder: Path
    pid: int

    @property
    def root(self) -> str:
        return f"s3://{BUCKET}"

    def options(self, endpoint: str | None = None) -> dict[str, str]:
        """`storage.options` for this server."""
        return {
            "aws_endpoint": endpoint or self.endpoint,
            "aws_region": "us-east-1",
            "aws_access_key_id": USER,
            "aws_secret_access_key": f"file:{self.secret}",
        }

    @property
    def access(self) -> StoreAccess:
        return StoreAccess.of(self.options())

    @property
    def environment(self) -> dict[str, str]:
        """The usual variables, without any setting."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": USER,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }


@contextlib.contextmanager
def s3_server(folder: Path) -> Iterator[S3Server]:
    """Runs the server over a new folder, with one bucket."""
    program = _program()
    objects, secret = folder / "objects", folder / "secret"
    (objects / BUCKET).mkdir(parents=True)
    secret.write_text(SECRET + "\n")
    port = free_port()
    environment = {**os.environ, "ROOT_ACCESS_KEY": USER, "ROOT_SECRET_KEY": SECRET}
    command = [str(program), "--port", f"127.0.0.1:{port}", "--quiet", "posix", "--sidecar", str(folder / "sidecar")]
    (folder / "sidecar").mkdir()
    with (folder / "server.log").open("wb") as log:
        server = subprocess.Popen([*command, str(objects)], env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: _answers(port), seconds=_START_S, what=f"the S3 server, see {folder / 'server.log'}")
        yield S3Server(f"http://127.0.0.1:{port}", secret, objects, server.pid)
    finally:
        server.terminate()
        server.wait(_START_S)


def s3_on_machine(network: Network, log: Path) -> S3Server:
    """The server on a machine of its own, called `store`; only that machine has its secret. Ends with the network."""
    program = _program()
    folder = network.folder / "store-disk"
    for below in (f"objects/{BUCKET}", f"objects/{HISTORY}", "sidecar", "bin"):
        (folder / below).mkdir(parents=True)
    shutil.copy(program, folder / "bin")
    secret = folder / "secret"
    # The shell reads the secret from a file, because every process of the test's machine is in one list.
    secret.write_text(f"ROOT_ACCESS_KEY={USER}\nROOT_SECRET_KEY={SECRET}\n")
    secret.chmod(0o600)
    node = network.add("store", {"disk": folder})
    for path in (folder, *folder.rglob("*")):
        os.chown(path, node.uid, node.uid)
    server = f"{node.address}:{_PORT}"
    command = f"set -a; . /opt/disk/secret; exec /opt/disk/bin/{program.name} --port {server} --quiet posix"
    words = ["sh", "-ec", f"{command} --sidecar /opt/disk/sidecar /opt/disk/objects"]
    process = network.start(node, words, environment={}, log=log)
    wait_until(
        lambda: process.poll() is not None or f":{_PORT:04X} " in _listening(node.pids()),
        seconds=_START_S,
        what=f"the S3 server, see {log}",
    )
    assert process.poll() is None, log.read_text(errors="replace")
    return S3Server(f"http://{server}", secret, folder / "objects", process.pid)


def _listening(pids: Sequence[int]) -> str:
    """The sockets of the first process' network, as the kernel shows them."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pids[0]}/net/tcp").read_text() if pids else ""
    return ""


def _program() -> Path:
    if not os.access(PROGRAM, os.X_OK):
        pytest.fail(f"{PROGRAM} is missing: run `make store-server` (it needs Go 1.25 or newer)", pytrace=False)
    return PROGRAM.resolve()


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


def s3a_config() -> Mapping[str, str]:
    """For a local session: the jars of Delta and of S3A."""
    return {"spark.jars": ",".join(str(jar.absolute()) for jar in [*delta_jars(), *s3a_jars()])}


class CarelessStore(Relay):
    """A store that accepts `If-None-Match` and ignores it. The header is signed, so it is forwarded as it is; but the
    object that it should protect is removed first."""

    _REQUEST = re.compile(rb"PUT /(\S+) HTTP/1.1\r\n(?:[^\r]+\r\n)*?if-none-match: \*", re.IGNORECASE)

    def __init__(self, server: S3Server) -> None:
        host, _, port = server.endpoint.removeprefix("http://").rpartition(":")
        super().__init__((host, int(port)), on_request=self._remove)
        self._objects = server.folder
        self.endpoint = "http://{}:{}".format(*self.address)
        self.ignored = 0

    def _remove(self, request: bytes) -> None:
        for path in self._REQUEST.findall(request):
            (self._objects / path.decode()).unlink(missing_ok=True)
            # The server keeps what it knows about an object beside the objects.
            shutil.rmtree(self._objects.with_name("sidecar") / path.decode(), ignore_errors=True)
            self.ignored += 1
