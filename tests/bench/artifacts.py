"""Downloads an image to a thousand devices: from the log by offset, and from mosquitto as a retained message.

`python tests/bench/artifacts.py HEADWATERD [--devices 1000] [--mib 8] [--chunk-kib 256] [--skip fleet|raw|mosquitto]`
prints one JSON object per case:

- `fleet`: `headwater devices simulate` with the reference agent; every device is cut off twice during the download.
Shows
  the broker's memory, what it stored, and where the devices resumed.
- `raw` and `mosquitto`: the same plain receiver for both brokers, which counts bytes and acknowledges. This compares
the
  brokers and not the agent. Every receiver is cut off after a third and after two thirds. With our broker it resumes at
  its next chunk, with mosquitto it starts over.

Memory growth is that of the broker's anonymous memory since before the first download. All processes share the machine
with the receivers.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mqtt_receivers import Receivers, Subscription, publish_retained

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from support.mosquitto import Mosquitto  # noqa: E402

from broker_edge import Client, Row  # noqa: E402
from broker_edge.artifacts import Manifest, SigningKey, push  # noqa: E402
from broker_edge.device.fleet import FleetSettings, device_ids  # noqa: E402
from broker_edge.torture.process import BrokerProcess  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
WINDOW = 4


@dataclass
class Watch:
    """Memory and CPU time of a process from now on. Call `look` whenever the memory should be sampled."""

    pid: int
    first_kib: int = 0
    most_kib: int = 0
    cpu_s: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.first_kib = self.most_kib = self.anonymous_kib()
        self.cpu_s = self.cpu()

    def anonymous_kib(self) -> int:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def look(self) -> None:
        self.most_kib = max(self.most_kib, self.anonymous_kib())

    def report(self) -> dict[str, Any]:
        self.look()
        return {
            "wall_s": round(time.monotonic() - self.began, 2),
            "broker_cpu_s": round(self.cpu() - self.cpu_s, 2),
            "memory_before_mib": round(self.first_kib / 1024, 1),
            "memory_growth_mib": round((self.most_kib - self.first_kib) / 1024, 1),
        }


def until(done: Callable[[], bool], watch: Watch | None, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise SystemExit("it took too long")
        if watch is not None:
            watch.look()
        time.sleep(0.1)


class LogTail:
    """The counts in a fleet's log as it grows."""

    def __init__(self, path: Path) -> None:
        self._file = path.open()
        self._rest = ""  # The incomplete last line.
        self.events: Counter[str] = Counter()
        self.chunks: Counter[int] = Counter()

    def read(self) -> Counter[str]:
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            found = json.loads(line)
            is_told = found["event"] == "told"
            self.events[f"told:{found['state']}" if is_told else found["event"]] += 1
            if found["event"] == "resume":
                self.chunks[found["chunk"]] += 1
        return self.events


def fleet(broker: BrokerProcess, client: Client, folder: Path, devices: int, public: Path) -> dict[str, Any]:
    log = folder / "fleet.jsonl"
    log.touch()
    command = "import sys; from headwater_cli import main; sys.exit(main())"
    words = ["devices", "simulate", str(devices), "--mqtt", "{}:{}".format(*broker.mqtt), "--no-telemetry", "--json"]
    words += ["--trust", str(public), "--fault", "interrupted=100%", "--log", str(log)]
    process = subprocess.Popen(
        [sys.executable, "-c", command, *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        tail = LogTail(log)
        until(lambda: tail.read()["online"] >= devices, None, 300)
        watch = Watch(broker.pid)
        body = {
            "action_id": "bench",
            "attempt": 1,
            "type": "ota",
            "name": "install",
            "mode": "forced",
            "artifact": {"name": "firmware", "version": "2.0.0"},
            "target_version": "2.0.0",
        }
        ids = device_ids(FleetSettings(count=min(devices, 2_000)))
        client.produce([Row(f"devices/{id_}/actions", json.dumps({**body, "device_id": id_}).encode()) for id_ in ids])
        until(lambda: tail.read()["told:SUCCEEDED"] >= devices, watch, 1_800)
        report = watch.report()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    (chunks,) = client.topics("artifacts/firmware/2.0.0/chunks")
    stored = client.offsets(partitions=[chunks.partition]).partitions[chunks.partition].bytes
    return {
        "case": "fleet",
        "devices": devices,
        **report,
        "cut_off": tail.events["fault"],
        "resumed_at": {str(chunk): count for chunk, count in sorted(tail.chunks.items())},
        "chunks_stored": chunks.next - chunks.first,
        "stored_mib": round(stored / 2**20, 2),
    }


def raw(broker: BrokerProcess, manifest: Manifest, devices: int) -> dict[str, Any]:
    artifact, place = manifest.artifact, manifest.place
    offsets = [place.offset_of(index) for index in range(len(artifact.chunks))]
    third = len(offsets) // 3

    def subscription(chunks: int, cuts: int) -> Subscription:
        return Subscription(
            f"artifacts/{artifact.name}/{artifact.version}/chunks",
            messages=[third - chunks, 2 * third - chunks, len(offsets) - chunks][cuts],
            position=f"{place.partition}:{offsets[chunks]}",
        )

    watch = Watch(broker.pid)
    received = Receivers(broker.mqtt, devices, window=WINDOW).run(subscription, looks=watch.look)
    return {"case": "raw", "devices": devices, **watch.report(), "received_mib": round(received / 2**20)}


def mosquitto(image: Path, folder: Path, devices: int) -> dict[str, Any]:
    with Mosquitto(folder, "max_packet_size 268435455", "max_connections -1") as broker:
        address = ("127.0.0.1", broker.port)
        publish_retained(address, "firmware", image.read_bytes())
        size = image.stat().st_size

        def subscription(messages: int, cuts: int) -> Subscription:
            return Subscription("firmware", messages=1, cut_after_bytes=[size // 3, 2 * size // 3, None][cuts])

        pid = broker._process.pid if broker._process is not None else 0
        watch = Watch(pid)
        received = Receivers(address, devices, window=WINDOW).run(subscription, looks=watch.look)
        return {"case": "mosquitto", "devices": devices, **watch.report(), "received_mib": round(received / 2**20)}


def main() -> None:
    parser = argparse.ArgumentParser(description="An image for many devices.")
    parser.add_argument("headwaterd", type=Path)
    parser.add_argument("--devices", type=int, default=1_000)
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--chunk-kib", type=int, default=256)
    parser.add_argument("--skip", action="append", default=[])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        image = folder / "image"
        image.write_bytes(os.urandom(given.mib << 20))
        key = SigningKey.generate()
        public = key.save(folder / "key")
        with BrokerProcess(data_dir=folder / "log", log_file=folder / "stderr", program=given.headwaterd) as broker:
            broker.start()
            with Client("grpc://{}:{}".format(*broker.flight)) as client:
                began = time.monotonic()
                done = push(client, image, "firmware", "2.0.0", key=key, chunk_size=given.chunk_kib << 10)
                pushed_s = round(time.monotonic() - began, 2)
                show({"case": "push", "wall_s": pushed_s, "chunks": done.stored, "mib": given.mib})
                if "raw" not in given.skip:
                    show(raw(broker, done.manifest, given.devices))
                if "fleet" not in given.skip:
                    show(fleet(broker, client, folder, given.devices, public))
        if "mosquitto" not in given.skip:
            show(mosquitto(image, folder, given.devices))


def show(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
