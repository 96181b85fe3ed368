"""Ten thousand clients at once: they reconnect together, or die together with wills.

    python tests/bench/storms.py reconnect|wills|passwords|slow [--clients 10000] [--stored sha512|argon2id] [--json]

`reconnect`: persistent sessions whose connections are lost reconnect at once; prints the time until all are connected.
`wills`: clients with wills die at once; prints how many wills arrived, how often, and how long that took. `passwords`:
one user per client, correct passwords, and a freshly started broker; a refused client retries after a second.
`--stored` selects how the passwords are stored. `slow`: all clients connect at once and send their CONNECT five seconds
later. Prints figures, asserts nothing; `hostile.py` covers clients that must not be served at all. Needs a built broker
(HEADWATERD, or `make build`).
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from herd import CONNACK, PUBLISH, SUBACK, Link, cpu_s, packet, packets, status, subscribe, text  # noqa: E402

from broker_edge.torture.process import Address, BrokerProcess, binary  # noqa: E402

WAIT_S = 120.0
OFFERED_AT_ONCE = 2000
AGAIN_S = 1.0
SLOW_S = 5.0
Figures = dict[str, float]


def opening(number: int, mode: str) -> bytes:
    """The bytes that a client sends when its connection is open."""
    name = text(f"c{number}")
    if mode == "wills":
        will = text(f"wills/{number}") + text("gone")
        return packet(0x10, text("MQTT") + b"\x04\x0e\x00\x00" + name + will)
    if mode == "passwords":
        user = text(f"u{number}") + text("right")
        return packet(0x10, text("MQTT") + b"\x04\xc2\x00\x00" + name + user)
    return packet(0x10, text("MQTT") + b"\x04\x00\x00\x00" + name)


def crowd(address: Address, count: int, mode: str, pipe: Connection) -> None:
    """Opens all connections, reports how many got a CONNACK and how many were closed, and holds the others."""
    poll, links, received = select.epoll(), {}, {}
    start, opened, answered, ended = time.monotonic(), 0, 0, 0
    left = set(range(count))
    numbers: dict[int, int] = {}

    def offer() -> int:
        link = socket.socket()
        link.setblocking(False)
        link.connect_ex(address)
        fd = link.fileno()
        links[fd], received[fd], numbers[fd] = link, bytearray(), left.pop()
        poll.register(fd, select.EPOLLOUT)
        return fd

    waiting: set[int] = set()
    refused: deque[tuple[float, int]] = deque()
    silent: deque[int] = deque()
    deadline = start + WAIT_S
    while answered + ended < count and time.monotonic() < deadline:
        while refused and refused[0][0] <= time.monotonic():
            left.add(refused.popleft()[1])
        while left and (len(waiting) < OFFERED_AT_ONCE or mode == "slow"):
            waiting.add(offer())
        while silent and time.monotonic() > start + SLOW_S:
            fd = silent.popleft()
            links[fd].sendall(opening(numbers[fd], mode))
        for fd, event in poll.poll(0.2):
            link = links[fd]
            try:
                if event & select.EPOLLOUT:
                    opened += 1
                    poll.modify(fd, select.EPOLLIN)
                    if mode == "slow":
                        silent.append(fd)
                    else:
                        link.sendall(opening(numbers[fd], mode))
                    continue
                chunk = link.recv(4096)
            except OSError:
                chunk = b""
            if not chunk:
                ended += not received[fd]
                poll.unregister(fd)
                waiting.discard(fd)
                continue
            first = not received[fd]
            received[fd] += chunk
            if first and received[fd][0] >> 4 == CONNACK and received[fd][3] != 0:
                refused.append((time.monotonic() + AGAIN_S, numbers[fd]))
                waiting.discard(fd)
                poll.unregister(fd)
                link.close()
            elif first and received[fd][0] >> 4 == CONNACK:
                answered += 1
                waiting.discard(fd)
                if mode == "reconnect" and pipe is not None:
                    link.sendall(subscribe(f"own/{numbers[fd]}"))
    pipe.send({"answered": answered, "closed": ended, "seconds": time.monotonic() - start})
    while True:
        time.sleep(1)


def gather(address: Address, count: int, mode: str) -> tuple[Callable[[], None], dict[str, float]]:
    """Runs a crowd in its own process; returns a function that kills it, and its report."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=crowd, args=(address, count, mode, theirs))
    child.start()
    if not ours.poll(WAIT_S + 30):
        child.kill()
        raise SystemExit("the crowd could not connect")
    said: dict[str, float] = ours.recv()

    def kill() -> None:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()

    return kill, said


def reconnect(broker: BrokerProcess, count: int) -> Figures:
    kill, first = gather(broker.mqtt, count, "reconnect")
    kill()
    cpu, start = cpu_s(broker.pid), time.monotonic()
    kill, again = gather(broker.mqtt, count, "reconnect")
    figures = {
        "first_s": first["seconds"],
        "back_s": again["seconds"],
        "back": again["answered"],
        "closed": again["closed"],
        "cpu_s": cpu_s(broker.pid) - cpu,
        "elapsed_s": time.monotonic() - start,
    }
    kill()
    return figures


def wills(broker: BrokerProcess, count: int) -> Figures:
    watcher = Link(broker.mqtt, "watcher")
    watcher.socket.sendall(subscribe("wills/#"))
    watcher.expect(SUBACK)
    kill, first = gather(broker.mqtt, count, "wills")
    start, seen, silence_s = time.monotonic(), Counter[bytes](), 3.0
    kill()
    received, last = bytearray(), time.monotonic()
    while time.monotonic() - start < WAIT_S:
        ready, _, _ = select.select([watcher.socket], [], [], silence_s)
        if not ready:
            break
        received += watcher.socket.recv(1 << 18)
        answer = bytearray()
        for kind, body in packets(received):
            if kind >> 4 == PUBLISH:
                length = 2 + int.from_bytes(body[:2], "big")
                seen[body[2:length]] += 1
                if kind & 6:
                    answer += b"\x40\x02" + body[length : length + 2]
                last = time.monotonic()
        watcher.socket.sendall(answer)
    return {
        "connected": first["answered"],
        "wills": len(seen),
        "more_than_once": sum(times > 1 for times in seen.values()),
        "seconds": last - start,
    }


def come_in(broker: BrokerProcess, count: int, mode: str) -> Figures:
    cpu, before = cpu_s(broker.pid), status(broker.pid, "status", "VmRSS")
    kill, said = gather(broker.mqtt, count, mode)
    figures = {
        **said,
        "cpu_s": cpu_s(broker.pid) - cpu,
        "memory_before_mib": before / 1024,
        "memory_max_mib": status(broker.pid, "status", "VmHWM") / 1024,
    }
    kill()
    return figures


def password_file(file: Path, count: int, stored: str) -> None:
    """Writes a user for each client, all with the same password, hashed once."""
    command = [str(binary()), "users", "add", str(file), "u"]
    subprocess.run(command, input=b"right\n", check=True, capture_output=True)
    line = file.read_text().strip().split(":", 1)[1]
    if stored == "sha512":
        salt, digest = b"salt", hashlib.sha512(b"rightsalt").digest()
        line = f"$6${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
    file.write_text("".join(f"u{number}:{line}\n" for number in range(count)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=("reconnect", "wills", "passwords", "slow"))
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--stored", choices=("sha512", "argon2id"), default="sha512")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the broker")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in options.set)
    with tempfile.TemporaryDirectory() as folder:
        if options.mode == "passwords":
            users = Path(folder, "users")
            password_file(users, options.clients, options.stored)
            settings["auth.password_file"] = str(users)
        with BrokerProcess(
            data_dir=Path(folder, "data"), settings=settings, log_file=Path(folder, "log.txt")
        ) as broker:
            broker.start()
            if options.mode == "reconnect":
                figures = reconnect(broker, options.clients)
            elif options.mode == "wills":
                figures = wills(broker, options.clients)
            else:
                figures = come_in(broker, options.clients, options.mode)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:18} {value:,.2f}")


if __name__ == "__main__":
    main()
