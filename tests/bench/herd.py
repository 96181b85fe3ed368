"""Persistent sessions that reconnect together: what the broker reads for them, how long it takes, and how it affects
others.

    python tests/bench/herd.py [--sessions 1000] [--mib 1024] [--size 1024] [--dir FOLDER] [--json]

Each session subscribes to its own topic and disconnects. Meanwhile `--mib` of records are published to all topics in
turn, so that the sessions' positions are spread over the log and every batch holds records for many of them. Then the
broker is restarted, and all sessions reconnect at once beside a publisher and a subscriber that keep running. Prints
bytes read from files against those delivered and those of the log, the broker's memory, the time until all are
connected and until all have received everything, and the latency of the other clients before and during this; asserts
nothing. Sessions and broker use all of a small machine. Therefore the live client has a real-time priority where that
is allowed. Its latency is also measured while two processes without the broker exchange messages in the same pattern
(`live_p99_busy_ms`): the cost of busy processors alone. Needs a built broker (HEADWATERD, or `make build`).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import select
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from broker_edge.torture.process import Address, BrokerProcess  # noqa: E402

CONNACK, PUBLISH, PUBACK, SUBACK = 2, 3, 4, 9
WINDOW = 2000
# Real devices have their own processors: the cost of the simulated ones must not count as the broker's delay.
DEVICES_NICE = 10
LIVE_EVERY_S = 0.005
WAIT_S = 600.0
PEERS = 1000
PEER_WINDOW = 20
LIVE_TOPIC = "live/0"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The cost of the reconnect; times in seconds, latencies in milliseconds."""

    sessions: int
    log_mib: float
    delivered_mib: float
    messages: int
    read_mib: float
    """Batches read from files for sessions that were behind."""
    system_read_mib: float
    """All bytes that the process read from files, indexes included."""
    connected_s: float
    all_delivered_s: float
    cpu_s: float
    memory_before_mib: float
    memory_max_mib: float
    live_p50_before_ms: float
    live_p99_before_ms: float
    live_p50_busy_ms: float
    live_p99_busy_ms: float
    live_p50_ms: float
    live_p99_ms: float


def text(value: str) -> bytes:
    return len(value).to_bytes(2, "big") + value.encode()


def packet(first: int, body: bytes) -> bytes:
    length, rest = bytearray(), len(body)
    while True:
        length.append(rest % 128 | (0x80 if rest > 127 else 0))
        rest //= 128
        if not rest:
            return bytes([first]) + bytes(length) + body


def connect(client_id: str, *, clean: bool) -> bytes:
    return packet(0x10, text("MQTT") + bytes([4, 2 if clean else 0]) + b"\x00\x00" + text(client_id))


def subscribe(topic: str) -> bytes:
    return packet(0x82, b"\x00\x01" + text(topic) + b"\x01")


def publish(topic: str, payload: bytes, packet_id: int) -> bytes:
    return packet(0x32, text(topic) + packet_id.to_bytes(2, "big") + payload)


def packets(received: bytearray) -> Iterator[tuple[int, bytes]]:
    """Removes complete packets from the received bytes and yields them."""
    at, end = 0, len(received)
    while end - at >= 2:
        length, shift, body = 0, 0, at + 1
        while True:
            byte = received[body]
            length |= (byte & 0x7F) << shift
            body, shift = body + 1, shift + 7
            if byte < 0x80 or body == end:
                break
        if body + length > end or (byte >= 0x80 and body == end):
            break
        yield received[at], bytes(received[body : body + length])
        at = body + length
    del received[:at]


def session_topic(number: int) -> str:
    return f"plants/d{number}/data"


class Link:
    """A blocking connection."""

    def __init__(self, address: Address, client_id: str, *, clean: bool = True) -> None:
        self.socket = socket.create_connection(address, timeout=WAIT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self.socket.sendall(connect(client_id, clean=clean))
        self.expect(CONNACK)

    def read(self) -> list[tuple[int, bytes]]:
        found = list(packets(self._received))
        while not found:
            chunk = self.socket.recv(1 << 16)
            if not chunk:
                raise SystemExit("the broker closed a connection")
            self._received += chunk
            found = list(packets(self._received))
        return found

    def acknowledged(self) -> int:
        """Waits for acknowledgements and counts them."""
        return sum(1 for first, _ in self.read() if first >> 4 == PUBACK)

    def expect(self, kind: int) -> None:
        while not any(first >> 4 == kind for first, _ in self.read()):
            pass


def fill(address: Address, options: argparse.Namespace) -> None:
    """Publishes to all topics in turn while session after session subscribes and leaves."""
    publisher = Link(address, "filler")
    count, sessions = (options.mib << 20) // options.size, options.sessions
    payload = b"x" * options.size
    topics, made, waiting = [session_topic(n) for n in range(sessions)], 0, 0
    for start in range(0, count, WINDOW):
        while made < sessions and made * count <= start * sessions:
            # Earlier messages are not for this session.
            while waiting:
                waiting -= publisher.acknowledged()
            link = Link(address, f"d{made}", clean=False)
            link.socket.sendall(subscribe(topics[made]))
            link.expect(SUBACK)
            link.socket.sendall(b"\xe0\x00")
            link.socket.close()
            made += 1
        some = range(start, min(start + WINDOW, count))
        publisher.socket.sendall(b"".join(publish(topics[n % sessions], payload, n % 60_000 + 1) for n in some))
        waiting += len(some)
        while waiting > WINDOW:
            waiting -= publisher.acknowledged()
    while waiting:
        waiting -= publisher.acknowledged()


def take_processor_at_once() -> None:
    """Real clients have their own processors too: the time this client waits for one is not the broker's delay."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        print("no permission for a real-time priority: the latencies include the client's own waiting", file=sys.stderr)


def live(address: Address, pipe: Connection) -> None:
    """Sends a message every few milliseconds, whatever arrives. When asked for a number of latencies, returns all since
    the last request as soon as there are that many."""
    take_processor_at_once()
    subscriber, publisher = Link(address, "live-sub"), Link(address, "live-pub")
    subscriber.socket.sendall(subscribe(LIVE_TOPIC))
    subscriber.expect(SUBACK)
    subscriber.socket.settimeout(None)
    received, latencies, due, number = bytearray(), [], time.monotonic(), 0
    wanted: int | None = None
    while True:
        now = time.monotonic()
        if now >= due:
            number += 1
            # The payload is the time at which the message was due, so that a delayed sender does not hide the delay.
            publisher.socket.sendall(publish(LIVE_TOPIC, str(due).encode(), number % 60_000 + 1))
            due += LIVE_EVERY_S
            continue
        sockets = [subscriber.socket, publisher.socket, pipe]
        ready, _, _ = select.select(sockets, [], [], due - now)
        if publisher.socket in ready:
            publisher.socket.recv(1 << 16)
        if subscriber.socket in ready:
            received += subscriber.socket.recv(1 << 16)
            now = time.monotonic()
            for first, body in packets(received):
                if first >> 4 == PUBLISH:
                    start = 2 + len(LIVE_TOPIC) + 2
                    latencies.append(now - float(body[start:]))
                    subscriber.socket.sendall(b"\x40\x02" + body[start - 2 : start])
        if pipe in ready:
            wanted = pipe.recv()
            if wanted is None:
                return
        if wanted is not None and len(latencies) >= wanted:
            pipe.send(latencies)
            latencies, wanted = [], None


def answer_publishes(link: socket.socket, received: bytearray) -> list[int]:
    """Takes the packets received so far and acknowledges publishes; returns the kind of each."""
    kinds, answer = [], bytearray()
    for first, body in packets(received):
        kinds.append(first >> 4)
        if first >> 4 == PUBLISH:
            at = 2 + int.from_bytes(body[:2], "big")
            answer += b"\x40\x02" + body[at : at + 2]
    if answer:
        link.sendall(answer)
    return kinds


def send_for_acknowledgements(listener: socket.socket, message: bytes) -> None:
    """Keeps several messages in flight to each of `PEERS`: only the work that a broker does for them."""
    poll, links = select.epoll(), {}
    for _ in range(PEERS):
        link, _ = listener.accept()
        link.sendall(message * PEER_WINDOW)
        links[link.fileno()] = link
        poll.register(link.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            acknowledged = len(links[fd].recv(1 << 16)) // 4
            links[fd].sendall(message * acknowledged)


def acknowledge(address: Address) -> None:
    os.nice(DEVICES_NICE)
    poll, links = select.epoll(), {}
    for _ in range(PEERS):
        link = socket.create_connection(address)
        links[link.fileno()] = (link, bytearray())
        poll.register(link.fileno(), select.EPOLLIN)
    while True:
        for fd, _ in poll.poll():
            link, received = links[fd]
            received += link.recv(1 << 16)
            answer_publishes(link, received)


@contextmanager
def busy_machine(size: int) -> Iterator[None]:
    """Two processes that use the processors as broker and sessions do, without the broker."""
    message = publish("plants/d0/data", b"x" * size, 1)
    fork = multiprocessing.get_context("fork")
    with socket.create_server(("127.0.0.1", 0), backlog=PEERS) as listener:
        sender = fork.Process(target=send_for_acknowledgements, args=(listener, message))
        receiver = fork.Process(target=acknowledge, args=(listener.getsockname(),))
        sender.start()
        receiver.start()
        try:
            yield
        finally:
            for process in (sender, receiver):
                process.kill()
                process.join()


class Herd:
    """All sessions, reconnecting in one thread."""

    def __init__(self, address: Address, options: argparse.Namespace) -> None:
        self._address, self._options = address, options
        self._count = (options.mib << 20) // options.size
        self._links: dict[int, tuple[socket.socket, bytearray]] = {}
        self.connected_s = 0.0
        self.messages = 0

    def _expected(self) -> int:
        """Records published from the window on in which a session disconnected."""
        sessions, count, total = self._options.sessions, self._count, 0
        for number in range(sessions):
            left = -(-number * count // sessions)
            left = -(-left // WINDOW) * WINDOW
            first = left + (number - left) % sessions
            total += max(0, -(-(count - first) // sessions))
        return total

    def come_back(self, sample: Iterator[None]) -> float:
        """Seconds until every session has received everything."""
        start, expected, connected = time.monotonic(), self._expected(), 0
        poll = select.epoll()
        links = self._links
        for _ in range(self._options.sessions):
            link = socket.socket()
            link.setblocking(False)
            link.connect_ex(self._address)
            links[link.fileno()] = (link, bytearray())
            poll.register(link.fileno(), select.EPOLLOUT)
        opening = {fd: connect(f"d{n}", clean=False) for n, fd in enumerate(links)}
        while self.messages < expected or connected < len(links):
            next(sample)
            events = poll.poll(1.0)
            if time.monotonic() - start > WAIT_S:
                raise SystemExit(f"{self.messages} of {expected} messages arrived, {connected} are connected")
            for fd, _ in events:
                link, received = links[fd]
                if fd in opening:
                    link.sendall(opening.pop(fd))
                    poll.modify(fd, select.EPOLLIN)
                    continue
                chunk = link.recv(1 << 16)
                if not chunk:
                    raise SystemExit("the broker closed a session's connection")
                received += chunk
                kinds = answer_publishes(link, received)
                self.messages += kinds.count(PUBLISH)
                connected += kinds.count(CONNACK)
                if connected == len(links) and not self.connected_s:
                    self.connected_s = time.monotonic() - start
        return time.monotonic() - start

    def leave(self) -> None:
        for link, _ in self._links.values():
            link.close()


def status(pid: int, file: str, name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+)", Path(f"/proc/{pid}/{file}").read_text(), re.MULTILINE)
    return int(found.group(1)) if found else 0


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def metric(admin: Address, name: str) -> float:
    with urllib.request.urlopen("http://{}:{}/metrics".format(*admin), timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[ {{]", line))


def percentile_ms(latencies: list[float], share: float) -> float:
    ordered = sorted(latencies)
    return 1e3 * ordered[min(int(len(ordered) * share), len(ordered) - 1)] if ordered else 0.0


@contextmanager
def bystander(address: Address) -> Iterator[Connection]:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=live, args=(address, theirs))
    child.start()
    try:
        yield ours
    finally:
        ours.send(None)
        child.join(10)
        child.kill()


def latencies_since(pipe: Connection, at_least: int = 0) -> list[float]:
    """The latencies since the last request, once there are at least that many."""
    pipe.send(at_least)
    found: list[float] = pipe.recv()
    return found


def settled_latencies(pipe: Connection, seconds: float) -> list[float]:
    """The latencies of that many seconds, after one second that is left out."""
    latencies_since(pipe, round(1 / LIVE_EVERY_S))
    return latencies_since(pipe, round(seconds / LIVE_EVERY_S))


def measure(options: argparse.Namespace, folder: Path) -> Outcome:
    settings = {
        "log.classes.telemetry.retention.bytes": "100GiB",
        "log.classes.telemetry.retention.hard_bytes": "120GiB",
        "mqtt.max_sessions": str(options.sessions + 100),
        **dict(pair.split("=", 1) for pair in options.set),
    }
    with BrokerProcess(data_dir=folder / "data", settings=settings, log_file=folder / "log.txt") as broker:
        if not (folder / "data").exists():
            broker.start()
            fill(broker.mqtt, options)
            broker.stop(seconds=60)
        broker.start()
        memory: list[int] = []

        def sampled() -> Iterator[None]:
            due = 0.0
            while True:
                if time.monotonic() >= due:
                    memory.append(status(broker.pid, "status", "VmRSS"))
                    due = time.monotonic() + 0.1
                yield

        with bystander(broker.mqtt) as pipe:
            before = settled_latencies(pipe, options.before)
            with busy_machine(options.size):
                busy = settled_latencies(pipe, options.before)
            settled_latencies(pipe, 0)
            memory_before = status(broker.pid, "status", "VmRSS")
            read, cpu = status(broker.pid, "io", "rchar"), cpu_s(broker.pid)
            os.nice(DEVICES_NICE)
            herd = Herd(broker.mqtt, options)
            took = herd.come_back(sampled())
            meanwhile = latencies_since(pipe)
            cpu, read = cpu_s(broker.pid) - cpu, status(broker.pid, "io", "rchar") - read
            herd.leave()
        mib = 1 << 20
        return Outcome(
            sessions=options.sessions,
            log_mib=metric(broker.admin, "headwater_partition_size_bytes") / mib,
            delivered_mib=herd.messages * options.size / mib,
            messages=herd.messages,
            read_mib=metric(broker.admin, "headwater_mqtt_catch_up_read_bytes_total") / mib,
            system_read_mib=read / mib,
            connected_s=herd.connected_s,
            all_delivered_s=took,
            cpu_s=cpu,
            memory_before_mib=memory_before / 1024,
            memory_max_mib=max(memory) / 1024,
            live_p50_before_ms=percentile_ms(before, 0.5),
            live_p99_before_ms=percentile_ms(before, 0.99),
            live_p50_busy_ms=percentile_ms(busy, 0.5),
            live_p99_busy_ms=percentile_ms(busy, 0.99),
            live_p50_ms=percentile_ms(meanwhile, 0.5),
            live_p99_ms=percentile_ms(meanwhile, 0.99),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000)
    parser.add_argument("--mib", type=int, default=1024, help="payloads to publish")
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--before", type=float, default=5.0, help="seconds that the others are measured before")
    parser.add_argument("--dir", type=Path, help="a folder to keep; its contents are used again")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the broker")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        outcome = measure(options, options.dir or Path(temporary))
    if options.json:
        print(json.dumps(asdict(outcome)))
        return
    for name, value in asdict(outcome).items():
        print(f"{name:22} {value:,.2f}" if isinstance(value, float) else f"{name:22} {value:,}")


if __name__ == "__main__":
    main()
