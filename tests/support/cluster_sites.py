"""A broker of a fleet with its devices, and the messages that they know to be acknowledged or that bronze has."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from broker_edge.device.acked import payload_hash
from broker_edge.secured_folder import SecuredFolder
from support.cluster_load import Publisher, headwater_on
from support.netns_nodes import Node
from support.programs import clean_environment
from support.spark_cluster import Cluster, until

_INTERVAL_S = 4.0
_END_S = 120.0

Message = tuple[str, int, int]
"""Device, its count of messages, and the hash of the payload."""


@dataclass(slots=True)
class Site:
    """A broker on a machine of its own, and its devices, which are processes of `yard`."""

    name: str
    node: Node
    yard: Node
    files: SecuredFolder
    count: int
    logs: Path
    acked: set[Message] = field(default_factory=set)
    _devices: subprocess.Popen[bytes] | None = None
    _read_bytes: int = 0

    @property
    def ids(self) -> list[str]:
        return [f"{self.name}-{number:04}" for number in range(1, self.count + 1)]

    @property
    def probe(self) -> str:
        """The device whose messages have known offsets."""
        return f"{self.name}-probe"

    @property
    def fleet_log(self) -> Path:
        return self.logs / f"fleet-{self.name}.jsonl"

    def install(self) -> None:
        """Copies the broker's files to its machine: not the passwords, not the key of the authority."""
        there = self.node.mounts["etc"]
        for name in ("users", "acl", "tls/ca.pem", "tls/broker.pem", "tls/broker.key"):
            (there / name).parent.mkdir(exist_ok=True)
            shutil.copy(self.files.root / name, there / name)
        (there / "broker.yaml").write_text(self.files.broker.read_text().replace(str(self.files.root), "/opt/etc"))
        for path in (there, *there.rglob("*")):
            os.chown(path, self.node.uid, self.node.uid)

    def start(self, cluster: Cluster) -> None:
        cluster.run_broker(self.node, ["--config", "/opt/etc/broker.yaml", "--set=data_dir=/tmp/node/log"])

    def start_devices(self) -> None:
        words = ["devices", "simulate", str(self.count), "--prefix", self.name, "--interval", f"{_INTERVAL_S:g}"]
        words += ["--mqtt", self.files.mqtts(), "--tls-ca", str(self.files.ca)]
        words += ["--passwords", str(self._first / "secrets/devices")]
        words += ["--acked", str(self._acked_path), "--log", str(self.fleet_log), "--allow-unsigned", "--json"]
        with self._said_path.open("wb") as said:
            command, environment = headwater_on(self.yard, *words), clean_environment({})
            self._devices = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        begun = f"{self.count} devices publish"
        until(lambda: begun in self._said_path.read_text(), begun, self._said_path.read_text, self._devices)

    def stop_devices(self) -> dict[str, Any]:
        """Returns their counts, after the acknowledgement of what they have sent."""
        assert self._devices is not None, "they have not been started"
        self._devices.send_signal(signal.SIGTERM)
        assert self._devices.wait(_END_S) == 0, self._said_path.read_text()[-2_000:]
        counts: dict[str, Any] = json.loads(self._said_path.read_text().splitlines()[-1])
        return counts

    def kill_devices(self) -> None:
        if self._devices is not None and self._devices.poll() is None:
            self._devices.kill()
            self._devices.wait(_END_S)

    def publisher(self, count: int, *, rate: int) -> Publisher:
        """Messages of the probe."""
        options = ["--mqtt", self.files.mqtts(), "--tls-ca", str(self.files.ca), "--id", self.probe]
        reference = f"file:{self.password_of(self.probe)}"
        options += ["--user", self.probe, "--password-from", reference]
        return Publisher(self.yard, count, rate=rate, topic=f"devices/{self.probe}/telemetry", options=options)

    def password_of(self, user: str) -> Path:
        return self._first / f"secrets/{user}.password"

    def look(self) -> int:
        """Reads the new acknowledgements; returns the number of all."""
        if self._acked_path.exists():
            with self._acked_path.open("rb") as file:
                file.seek(self._read_bytes)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read_bytes += len(whole) + len(newline)
            for line in whole.decode().splitlines():
                device, seq, hash_, _ = line.split(",")
                self.acked.add((device, int(seq), int(hash_)))
        return len(self.acked)

    @property
    def _first(self) -> Path:
        """The folder of the broker that knows the users."""
        return self.files.beside or self.files.root

    @property
    def _acked_path(self) -> Path:
        return self.logs / f"acked-{self.name}.csv"

    @property
    def _said_path(self) -> Path:
        return self.logs / f"devices-{self.name}.txt"


@dataclass(slots=True)
class Bronze:
    """The messages of devices that a bronze table holds, read file by file as they are committed. For waiting: the
    comparison at the end reads the newest version as a whole."""

    path: Path
    messages: set[Message] = field(default_factory=set)
    _files: set[str] = field(default_factory=set)

    def look(self) -> None:
        if not DeltaTable.is_deltatable(str(self.path)):
            return
        for name in set(DeltaTable(str(self.path)).file_uris()) - self._files:
            self._files.add(name)
            rows = pq.ParquetFile(name).read(columns=["topic", "value"])
            for topic, value in zip(rows["topic"].to_pylist(), rows["value"].to_pylist(), strict=True):
                self.messages.add((topic.split("/")[1], json.loads(value)["seq"], payload_hash(value)))
