"""Measures write amplification: bytes that the broker writes, and bytes that reach a block device, per payload byte.

    python tests/bench/flash.py [--seconds 60] [--full-seconds 10] [--only TEXT] [--mount OPTIONS]

Each case is a broker on its own ext4 file system in a loop image, loaded over MQTT with QoS 1 by one connection. The
bytes written by the broker come from its metrics. The bytes written to the device come from the loop device's counter,
which includes the file system's journal and metadata. Counting begins after a warm-up, so it excludes the work of a
start. Slow rates run at the same time, full speed one after the other. Prints one line per case and asserts nothing.
Needs root and mkfs.ext4.
"""

from __future__ import annotations

import argparse
import re
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from broker_edge.torture.loop_image import LoopImage  # noqa: E402
from broker_edge.torture.process import BrokerProcess  # noqa: E402

TOPIC = b"devices/meter-1/telemetry"
SECTOR_BYTES = 512
AHEAD = 500
# Time until the writes of a start, including its journal, are on the disk.
WARM_UP_S = 15.0
ALWAYS = {"log.sync": "always"}


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    settings: dict[str, str]
    payload_bytes: int
    rate: float | None
    """Messages per second; None means as fast as acknowledgements arrive."""
    warm_up_bytes: int = 0
    """Payload to write before counting, so that segments are recycled."""


@dataclass(frozen=True, slots=True)
class Written:
    payload: int
    broker: int
    syncs: int
    device: int


class Publisher:
    """One MQTT 3.1.1 connection that publishes payloads of one size."""

    def __init__(self, address: tuple[str, int], payload_bytes: int) -> None:
        self._socket = socket.create_connection(address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(b"\x10\x10\x00\x04MQTT\x04\x02\x00\x00\x00\x04flsh")
        assert self._socket.recv(4) == b"\x20\x02\x00\x00"
        body = struct.pack(">H", len(TOPIC)) + TOPIC
        self._head, self._payload = body, bytes(payload_bytes)
        self._window = b"".join(self._packet(number) for number in range(1, AHEAD + 1))

    def _packet(self, number: int) -> bytes:
        body = self._head + struct.pack(">H", number) + self._payload
        length, coded = len(body), bytearray()
        while True:
            length, low = divmod(length, 128)
            coded.append(low | (128 if length else 0))
            if not length:
                return b"\x32" + bytes(coded) + body

    def one(self) -> None:
        self._socket.sendall(self._packet(1))
        self._await(4)

    def many(self) -> int:
        """Publishes a window of messages and waits for the acknowledgements; returns the number of payload bytes."""
        self._socket.sendall(self._window)
        self._await(4 * AHEAD)
        return AHEAD * len(self._payload)

    def _await(self, count: int) -> None:
        while count > 0:
            received = len(self._socket.recv(count))
            assert received, "the broker closed the connection"
            count -= received


def load(publisher: Publisher, case: Case, seconds: float) -> None:
    end = time.monotonic() + seconds
    if case.rate is None:
        while time.monotonic() < end:
            publisher.many()
        return
    due = time.monotonic()
    while due < end:
        publisher.one()
        due += 1 / case.rate
        time.sleep(max(0.0, due - time.monotonic()))


def count(broker: BrokerProcess, image: LoopImage) -> Written:
    text = broker.get("/metrics")[1]

    def total(name: str) -> int:
        return sum(int(value) for value in re.findall(rf"^headwater_log_{name}_total{{.*}} (\d+)$", text, re.M))

    mounts = Path("/proc/mounts").read_text().splitlines()
    device = next(line.split()[0] for line in mounts if line.split()[1] == str(image.mount_point))
    fields = Path("/sys/block", Path(device).name, "stat").read_text().split()
    return Written(total("payload_bytes"), total("written_bytes"), total("syncs"), int(fields[6]) * SECTOR_BYTES)


def run(case: Case, seconds: float, mount: str, lines: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, LoopImage(Path(folder), size_bytes=1 << 30) as image:
        if mount:
            subprocess.run(["mount", "-o", f"remount,{mount}", str(image.mount_point)], check=True)
        settings = {"log.classes.telemetry.partitions": "1", **case.settings}
        log_file = Path(folder, "log.txt")
        with BrokerProcess(data_dir=image.mount_point / "data", settings=settings, log_file=log_file) as broker:
            broker.start()
            publisher = Publisher(broker.mqtt, case.payload_bytes)
            publisher.one()
            warm = 0
            while warm < case.warm_up_bytes:
                warm += publisher.many()
            time.sleep(WARM_UP_S)
            before, began = count(broker, image), time.monotonic()
            load(publisher, case, seconds)
            after, took = count(broker, image), time.monotonic() - began
            broker.kill()
    payload = max(after.payload - before.payload, 1)
    lines.append(
        f"| {case.name} | {(after.payload - before.payload) / case.payload_bytes / took:,.0f} "
        f"| {(after.syncs - before.syncs) / took:,.1f} | {(after.broker - before.broker) / payload:,.2f} "
        f"| {(after.device - before.device) / payload:,.2f} | {(after.device - before.device) / took / 1e6:,.3f} |"
    )
    print(lines[-1], flush=True)


def cases() -> tuple[list[Case], list[Case]]:
    intervals = [f"{seconds}s" for seconds in (1, 10)]
    modes = {"always": ALWAYS}
    modes |= {f"interval {one}": {"log.sync": "interval", "log.sync_interval": one} for one in intervals}
    written = {name: {**mode, "log.ack": "written"} for name, mode in modes.items()}
    slow = [Case(f"100 B, {rate}/s, {name}", mode, 100, rate) for rate in (1, 10) for name, mode in written.items()]
    recycling = {"log.classes.telemetry.retention.bytes": "128MiB"}
    fast = []
    for size in (64, 1024):
        for name in ("always", "interval 1s"):
            fast.append(Case(f"{size} B, full speed, {name}, first use", written[name], size, None))
            again = {**written[name], **recycling}
            # Past the point at which removed segments are reused.
            warm_up = (200 << 20) * size // (size + 20)
            fast.append(Case(f"{size} B, full speed, {name}, recycled", again, size, None, warm_up))
    return slow, fast


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--full-seconds", type=float, default=10.0)
    options.add_argument("--only", default="")
    options.add_argument("--mount", default="", help="options for the file system, such as lazytime")
    chosen = options.parse_args()
    slow, fast = ([one for one in some if chosen.only in one.name] for some in cases())
    print("| case | messages/s | syncs/s | broker, bytes per payload byte | device, the same | device, MB/s |")
    print("|---|---|---|---|---|---|", flush=True)
    lines: list[str] = []
    threads = [threading.Thread(target=run, args=(case, chosen.seconds, chosen.mount, lines)) for case in slow]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for case in fast:
        run(case, chosen.full_seconds, chosen.mount, lines)


if __name__ == "__main__":
    main()
