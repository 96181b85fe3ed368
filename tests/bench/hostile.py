"""Ten thousand connections that the broker should not serve: its counters, the cost, and the effect on other clients.

    python tests/bench/hostile.py [STORM ...] [--clients 10000] [--seconds 20] [--json]

Without a name all storms of the table `STORMS` run one after the other, each against its own broker, beside a publisher
and a subscriber that keep running. Prints one line per storm: how many clients were answered, how many the broker
closed and how fast, its counters, its memory before, at the peak and after, its CPU time, and the latency of the other
clients before and during the storm. Asserts nothing. Needs a built broker (HEADWATERD, or `make build`), openssl and
the package `cryptography`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import multiprocessing
import os
import re
import select
import signal
import socket
import ssl
import sys
import tempfile
import time
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "tests", ROOT / "tests" / "bench"):
    sys.path.insert(0, str(folder))

from herd import bystander, cpu_s, latencies_since, packet, percentile_ms, status, text  # noqa: E402
from support.tls_files import Files, new_authority, sign  # noqa: E402

from broker_edge.torture.process import Address, BrokerProcess  # noqa: E402

OFFERED_AT_ONCE = 1000
BEFORE_S = 3.0
CONNECT_S = 60.0
TOKEN_LIFE_S = 20.0
CLAIM_256_MIB = b"\x10\xff\xff\xff\x7f"
PROXY = b"\r\n\r\n\0\r\nQUIT\n"
UPGRADE = (
    b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: mqtt\r\n\r\n"
)
Pieces = Iterator[bytes]


@dataclass(frozen=True, slots=True)
class World:
    """The environment of a storm: files of its broker, and what its clients know of them."""

    folder: Path
    server: Files
    device: Files
    """A certificate of an authority that the broker trusts."""
    stranger: Files
    token: str


@dataclass(frozen=True, slots=True)
class Storm:
    listener: str
    pieces: Callable[[World, int], Pieces]
    """The bytes that a client sends, one piece every `pace_s`, whatever arrives."""
    settings: Callable[[World], dict[str, str]] = lambda _world: {}
    pace_s: float = 0.0
    certificate: Callable[[World], Files] | None = None
    """Use TLS, and present this certificate."""
    then: Callable[[World, BrokerProcess], None] | None = None
    """Applied to the broker when all clients are connected; they should be disconnected soon after."""
    reads: bool = True


def connect(number: int, credentials: tuple[str, str] | None = None) -> bytes:
    body = text("MQTT") + (b"\x04\xc2" if credentials else b"\x04\x02") + b"\x00\x00" + text(f"c{number}")
    return packet(0x10, body + b"".join(map(text, credentials or ())))


def frame(opcode: int, payload: bytes, *, masked: bool = True, last: bool = True) -> bytes:
    """A WebSocket frame; a mask of zeros changes nothing."""
    head, size = bytes([opcode | (0x80 if last else 0)]), len(payload)
    mask = 0x80 if masked else 0
    length = bytes([mask | size]) if size < 126 else bytes([mask | 126]) + size.to_bytes(2, "big")
    return head + length + (b"\0\0\0\0" if masked else b"") + payload


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    try:
        tls.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("no answer arrived")


HELLO = client_hello()


def byte_by_byte(whole: bytes) -> Pieces:
    return (whole[at : at + 1] for at in range(len(whole)))


def proxies(_world: World, number: int) -> Pieces:
    torn = [PROXY + b"\x21\x11\0\x0c\x7f"]
    oversized = [PROXY + b"\x21\x11\xff\xff" + bytes(8000)]
    wrong = [PROXY + b"\x31\x11\0\x0c" + bytes(12)]
    missing = [connect(number)]
    return iter((torn, oversized, wrong, missing)[number % 4])


def endless(first: bytes, again: bytes) -> Pieces:
    yield first
    while True:
        yield again


def tls_settings(world: World) -> dict[str, str]:
    return {
        "listeners.mqtts.bind": "127.0.0.1:0",
        "listeners.mqtts.tls.cert": str(world.server.cert),
        "listeners.mqtts.tls.key": str(world.server.key),
        "listeners.mqtts.tls.client_ca": str(world.device.ca),
        "listeners.mqtts.tls.client_auth": "required",
    }


def ws_settings(_world: World) -> dict[str, str]:
    return {"listeners.ws.bind": "127.0.0.1:0"}


def proxy_settings(_world: World) -> dict[str, str]:
    return {"listeners.ws.bind": "127.0.0.1:0", "listeners.ws.proxy_protocol": "true"}


def password_settings(world: World) -> dict[str, str]:
    return {"auth.password_file": str(world.folder / "users"), "auth.allow_anonymous": "true"}


def token_settings(world: World) -> dict[str, str]:
    return {"auth.token.keys_file": str(world.folder / "keys.pem"), "auth.allow_anonymous": "true"}


def revoke(world: World, broker: BrokerProcess) -> None:
    (world.folder / "users").write_text("# nobody\n")
    os.kill(broker.pid, signal.SIGHUP)


def wait_for_expiry(_world: World, _broker: BrokerProcess) -> None:
    """The tokens expire by themselves."""


STORMS = {
    "half-open": Storm("mqtt", lambda _w, n: iter([CLAIM_256_MIB if n % 2 else b"\x10"])),
    "connect-slow": Storm("mqtt", lambda _w, n: byte_by_byte(connect(n)), pace_s=1.0),
    "tls-on-plain": Storm("mqtt", lambda _w, _n: iter([HELLO])),
    "plain-on-tls": Storm("mqtts", lambda _w, n: iter([connect(n)]), tls_settings),
    "tls-slow": Storm("mqtts", lambda _w, _n: byte_by_byte(HELLO), tls_settings, pace_s=1.0),
    "tls-stuck": Storm("mqtts", lambda _w, _n: iter([HELLO]), tls_settings),
    "tls-garbage": Storm(
        "mqtts", lambda _w, n: iter([b"\x16\x03\x01\x40\0" + bytes([n % 256]) * 16_384]), tls_settings
    ),
    "certificate-wrong": Storm(
        "mqtts", lambda _w, n: iter([connect(n)]), tls_settings, certificate=lambda w: w.stranger
    ),
    "proxy": Storm("ws", proxies, proxy_settings),
    "ws-slow": Storm("ws", lambda _w, _n: byte_by_byte(UPGRADE), ws_settings, pace_s=1.0),
    "ws-oversized": Storm("ws", lambda _w, _n: iter([UPGRADE[:-2] + b"X-A: " + b"a" * 80_000]), ws_settings),
    "ws-unmasked": Storm("ws", lambda _w, n: iter([UPGRADE, frame(2, connect(n), masked=False)]), ws_settings),
    "ws-fragments": Storm(
        "ws",
        lambda _w, n: endless(UPGRADE + frame(2, connect(n)[:9], last=False), frame(0, b"", last=False) * 200),
        ws_settings,
        pace_s=1.0,
    ),
    "ws-pings": Storm(
        "ws",
        lambda _w, n: endless(UPGRADE + frame(2, connect(n)), frame(9, b"p" * 125) * 100),
        ws_settings,
        1.0,
        reads=False,
    ),
    "passwords-wrong": Storm("mqtt", lambda _w, n: iter([connect(n, (f"u{n % 5000}", "no"))]), password_settings),
    "rights-revoked": Storm(
        "mqtt", lambda _w, n: iter([connect(n, (f"u{n}", f"p{n}"))]), password_settings, then=revoke
    ),
    "tokens-expired": Storm(
        "mqtt", lambda w, n: iter([connect(n, ("ann", w.token))]), token_settings, then=wait_for_expiry
    ),
}


@dataclass(slots=True)
class Guest:
    link: socket.socket
    pieces: Pieces
    due: float = 0.0
    tls: ssl.SSLObject | None = None
    incoming: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    outgoing: ssl.MemoryBIO = field(default_factory=ssl.MemoryBIO)
    is_answered: bool = False
    is_shaken: bool = False


class Crowd:
    """All hostile clients, in one process and one thread."""

    def __init__(self, storm: Storm, world: World, address: Address, count: int) -> None:
        self._storm, self._world, self._address = storm, world, address
        self._left = iter(range(count))
        self._poll = select.epoll()
        self._guests: dict[int, Guest] = {}
        self._waiting: set[int] = set()
        self._turn: deque[int] = deque()
        self.opened = self.answered = self.closed = 0
        self._tls = None
        if storm.certificate is not None:
            files = storm.certificate(world)
            self._tls = ssl.create_default_context(cafile=str(world.server.ca))
            self._tls.load_cert_chain(files.cert, files.key)

    def run(self, seconds: float, is_over: Callable[[], bool]) -> float:
        """Seconds until the storm was over, or `seconds` if that comes first."""
        start = time.monotonic()
        while not is_over() and time.monotonic() < start + seconds:
            self._offer()
            for fd, event in self._poll.poll(0.05):
                self._look(fd, event)
            self._go_on()
        return time.monotonic() - start

    def _offer(self) -> None:
        while len(self._waiting) < OFFERED_AT_ONCE and (number := next(self._left, None)) is not None:
            link = socket.socket()
            link.setblocking(False)
            link.connect_ex(self._address)
            guest = Guest(link, self._storm.pieces(self._world, number))
            if self._tls is not None:
                guest.tls = self._tls.wrap_bio(guest.incoming, guest.outgoing, server_hostname="localhost")
            self._guests[link.fileno()] = guest
            self._waiting.add(link.fileno())
            self._poll.register(link.fileno(), select.EPOLLOUT)

    def _look(self, fd: int, event: int) -> None:
        guest = self._guests[fd]
        try:
            if event & select.EPOLLOUT:
                self.opened += 1
                self._waiting.discard(fd)
                self._poll.modify(fd, select.EPOLLIN if self._storm.reads else 0)
                self._speak(fd, guest)
                return
            chunk = guest.link.recv(1 << 16)
        except OSError:
            chunk = b""
        if not chunk:
            self._end(fd)
            return
        self.answered += not guest.is_answered
        guest.is_answered = True
        if guest.tls is not None and not guest.is_shaken:
            guest.incoming.write(chunk)
            self._speak(fd, guest)

    def _end(self, fd: int) -> None:
        self.closed += 1
        self._waiting.discard(fd)
        self._poll.unregister(fd)
        self._guests.pop(fd).link.close()

    def _speak(self, fd: int, guest: Guest) -> None:
        try:
            if guest.tls is not None and not guest.is_shaken:
                try:
                    guest.tls.do_handshake()
                    guest.is_shaken = True
                except ssl.SSLWantReadError:
                    pass
            if guest.tls is None or guest.is_shaken:
                piece = next(guest.pieces, None)
                if piece is not None:
                    if guest.tls is None:
                        guest.link.send(piece)
                    else:
                        guest.tls.write(piece)
                    guest.due = time.monotonic() + self._storm.pace_s
                    self._turn.append(fd)
            if pending := guest.outgoing.read():
                guest.link.send(pending)
        except BlockingIOError:
            guest.due = time.monotonic() + self._storm.pace_s
            self._turn.append(fd)
        except OSError:
            self._end(fd)

    def _go_on(self) -> None:
        now = time.monotonic()
        for _ in range(len(self._turn)):
            fd = self._turn.popleft()
            guest = self._guests.get(fd)
            if guest is not None and guest.due <= now:
                self._speak(fd, guest)
            elif guest is not None:
                # The entries after this one are due later.
                self._turn.appendleft(fd)
                return


def crowd(storm: Storm, world: World, address: Address, count: int, seconds: float, pipe: Connection) -> None:
    """Reports the fate of all clients, then, on request, how long it took until they were disconnected."""
    people = Crowd(storm, world, address, count)

    def all_known() -> bool:
        known = people.closed if storm.then is None else people.closed + len(people._guests)
        return known >= count and (storm.then is None or people.answered >= count)

    took = people.run(CONNECT_S if storm.then else seconds, all_known)
    pipe.send((took, people.opened, people.answered, people.closed))
    pipe.recv()
    took = people.run(seconds + TOKEN_LIFE_S, lambda: people.closed >= count) if storm.then else 0.0
    pipe.send((took, people.closed))
    pipe.recv()


def counted(admin: Address) -> Counter[str]:
    """The broker's counters of clients that it does not serve."""
    with urllib.request.urlopen("http://{}:{}/metrics".format(*admin), timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    name = r"headwater_(mqtt_connects_failed|auth_denied|auth_connections_ended)_total\{\w+=\"(\w+)\"\} (\d+)"
    found = (re.match(name, line) for line in lines)
    return Counter({match[2]: int(match[3]) for match in found if match})


def blow(name: str, storm: Storm, world: World, options: argparse.Namespace) -> dict[str, object]:
    settings = storm.settings(world) | dict(pair.split("=", 1) for pair in options.set)
    ours, theirs = multiprocessing.Pipe()
    data, log = world.folder / f"data-{name}", world.folder / f"log-{name}.txt"
    with BrokerProcess(data_dir=data, settings=settings, log_file=log) as broker:
        broker.start()
        address = broker.mqtt if storm.listener == "mqtt" else broker.listener(storm.listener)
        with bystander(broker.mqtt) as pipe:
            time.sleep(1)
            latencies_since(pipe)
            time.sleep(BEFORE_S)
            before = latencies_since(pipe)
            memory, cpu = status(broker.pid, "status", "VmRSS"), cpu_s(broker.pid)
            child = multiprocessing.get_context("fork").Process(
                target=crowd, args=(storm, world, address, options.clients, options.seconds, theirs)
            )
            child.start()
            took, opened, answered, closed = ours.recv()
            if storm.then is not None:
                storm.then(world, broker)
            ours.send("go on")
            out_s, closed = ours.recv()
            meanwhile = latencies_since(pipe)
            ours.send("end")
            child.join()
            child.close()
            figures: dict[str, object] = {
                "storm": name,
                "opened": opened,
                "answered": answered,
                "closed": closed,
                "seconds": took,
                "out_s": out_s,
                "counted": dict(+counted(broker.admin)),
                "memory_before_mib": memory / 1024,
                "memory_max_mib": status(broker.pid, "status", "VmHWM") / 1024,
                "memory_after_mib": status(broker.pid, "status", "VmRSS") / 1024,
                "cpu_s": cpu_s(broker.pid) - cpu,
                "p99_before_ms": percentile_ms(before, 0.99),
                "p99_ms": percentile_ms(meanwhile, 0.99),
                "served": len(meanwhile),
            }
    return figures


def user_lines(count: int) -> str:
    """Password lines for `u0` with the password `p0` and so on, in a form that is fast to check."""
    salt = b"salt"
    encoded = base64.b64encode(salt).decode()

    def stored(number: int) -> str:
        digest = hashlib.sha512(f"p{number}".encode() + salt).digest()
        return f"u{number}:$6${encoded}${base64.b64encode(digest).decode()}\n"

    return "".join(map(stored, range(count)))


def new_token(folder: Path) -> str:
    """A token signed by a new key, whose public part is written to `keys.pem`."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "keys.pem").write_bytes(key.public_key().public_bytes(*form))

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    claims = {"sub": "ann", "exp": int(time.time() + TOKEN_LIFE_S)}
    signed = ".".join(part(json.dumps(value).encode()) for value in ({"alg": "EdDSA"}, claims))
    return f"{signed}.{part(key.sign(signed.encode()))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("storms", nargs="*", metavar="STORM", help=", ".join(STORMS))
    parser.add_argument("--clients", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=20.0, help="maximum duration of a storm")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the broker")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if unknown := [name for name in options.storms if name not in STORMS]:
        parser.error(f"no such storm: {', '.join(unknown)}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ours = new_authority(folder, "devices")
        files = (
            sign(new_authority(folder, "server"), "broker"),
            sign(ours, "dev"),
            sign(new_authority(folder, "no"), "mallory"),
        )
        for name in options.storms or STORMS:
            (folder / "users").write_text(user_lines(options.clients))
            world = World(folder, *files, token=new_token(folder))
            figures = blow(name, STORMS[name], world, options)
            if options.json:
                print(json.dumps(figures), flush=True)
                continue
            shown = (
                f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}" for key, value in figures.items()
            )
            print("  ".join(shown), flush=True)


if __name__ == "__main__":
    main()
