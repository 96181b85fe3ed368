"""Connections that never read and their effect on others: delivery latency of the other clients, and the broker's
memory.

    python tests/bench/isolation.py [--connections 1000] [--stuck 10] [--qos 1] [--rounds 3] [--seconds 5] [--json]

A publisher at full speed sends to subscribers of one topic, alternately without and with `--stuck` additional
subscribers that never read. `headwater bench sub` is the publisher and the reading subscribers. Prints the medians of
the rounds and the ratio of the 99th percentiles; asserts nothing. Needs a built broker and native module (`make
build`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from broker_edge.torture.process import Address, BrokerProcess  # noqa: E402

TOPIC = b"bench/0"
SAMPLE_S = 0.05
WAIT_S = 10.0
BENCH = os.environ.get("HEADWATER_BENCH")
MAIN = "from headwater_cli import main; raise SystemExit(main())"
COMMAND = [BENCH] if BENCH else [sys.executable, "-c", MAIN, "bench"]


@dataclass(frozen=True, slots=True)
class Round:
    """One run with a given number of connections that never read."""

    stuck: int
    p50_ms: float
    p99_ms: float
    deliveries_per_s: float
    memory_start_kb: int
    """Resident memory with all connections open."""
    memory_max_kb: int


def never_reads(address: Address, number: int, qos: int) -> socket.socket:
    """A subscriber that reads its SUBACK and nothing after it."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(WAIT_S)
    connection.connect(address)
    name = f"stuck-{number}".encode()
    connect = b"\x00\x04MQTT\x04\x02\x00\x00" + len(name).to_bytes(2, "big") + name
    subscribe = b"\x00\x01" + len(TOPIC).to_bytes(2, "big") + TOPIC + bytes([qos])
    connection.sendall(b"\x10" + bytes([len(connect)]) + connect + b"\x82" + bytes([len(subscribe)]) + subscribe)
    answer = b""
    while len(answer) < 9:
        received = connection.recv(9 - len(answer))
        if not received:
            raise SystemExit("the broker closed a connection that subscribed")
        answer += received
    return connection


def resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@contextlib.contextmanager
def sampled(pid: int, samples: list[int]) -> Iterator[None]:
    """Samples the resident memory of a process until the block ends."""
    over = threading.Event()

    def sample() -> None:
        while not over.wait(SAMPLE_S):
            samples.append(resident_kb(pid))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def load(address: Address, readers: int, options: argparse.Namespace) -> dict[str, Any]:
    words = ["sub", "--json", "--mqtt", "{}:{}".format(*address), "-c", str(readers), "-q", str(options.qos)]
    words += ["-d", str(options.seconds), "-w", str(options.window), "-s", str(options.size)]
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, cwd=ROOT, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr)
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def one_round(stuck: int, options: argparse.Namespace) -> Round:
    with tempfile.TemporaryDirectory(dir=options.dir) as folder, contextlib.ExitStack() as stack:
        broker = BrokerProcess(data_dir=Path(folder, "data"), log_file=Path(folder, "log.txt"))
        stack.enter_context(broker)
        broker.start()
        for number in range(stuck):
            stack.enter_context(never_reads(broker.mqtt, number, options.qos))
        samples: list[int] = []
        with sampled(broker.pid, samples):
            report = load(broker.mqtt, options.connections - stuck, options)
        latency = report["delivery_latency"]
        third = samples[: max(len(samples) // 3, 1)]
        return Round(stuck, latency["p50_ms"], latency["p99_ms"], report["per_s"], max(third), max(samples))


def median(rounds: list[Round]) -> Round:
    middle = {name: statistics.median(asdict(one)[name] for one in rounds) for name in asdict(rounds[0])}
    return Round(**middle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--stuck", type=int, default=10)
    parser.add_argument("--qos", type=int, default=1, choices=(0, 1))
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--window", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--dir", type=Path, help="folder for the broker's data, on a disk")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds: list[Round] = []
    for number in range(options.rounds):
        for stuck in (0, options.stuck):
            if sys.stderr.isatty():
                print(f"round {number + 1} of {options.rounds}, {stuck} never read", file=sys.stderr)
            rounds.append(one_round(stuck, options))
    without, beside = (median([one for one in rounds if one.stuck == stuck]) for stuck in (0, options.stuck))
    ratio = beside.p99_ms / without.p99_ms
    if options.json:
        print(json.dumps({"without": asdict(without), "beside": asdict(beside), "p99_ratio": ratio}))
        return
    print("| never read | p50 ms | p99 ms | deliveries/s | memory, first third, MB | memory, highest, MB |")
    print("|---|---|---|---|---|---|")
    for one in (without, beside):
        memory = f"{one.memory_start_kb / 1024:.1f} | {one.memory_max_kb / 1024:.1f}"
        print(f"| {one.stuck:.0f} | {one.p50_ms:.2f} | {one.p99_ms:.2f} | {one.deliveries_per_s:,.0f} | {memory} |")
    print(f"p99 with them / without: {ratio:.2f}")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
        raise SystemExit(0)
    raise SystemExit(130)
