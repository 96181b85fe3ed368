"""Shared by all attacks: a broker's addresses, the hostile tenant's credentials, an MQTT 5 connection and counters."""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from herd import packet, packets, text

Address = tuple[str, int]

CONNACK, PUBLISH, PUBACK, SUBACK = 2, 3, 4, 9
ROGUES = 10
"""Users of the hostile tenant besides its devices."""
APP = "south-app"
"""Its user for applications: reads, writes and replays `south/#`."""
OPERATOR = "root"
WAIT_S = 5.0


@dataclass(frozen=True, slots=True)
class Doors:
    mqtt: Address
    flight: Address
    admin: Address
    ws: Address


@dataclass(slots=True)
class Arena:
    """The target of an attack, and its results."""

    doors: Doors
    passwords: dict[str, str]
    seed: int
    tally: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _number: Iterator[int] = field(default_factory=itertools.count)

    def tried(self, count: int = 1) -> None:
        self._count("tried", count)

    def refused(self, reason: object, count: int = 1) -> None:
        self._count(f"refused: {reason}", count)

    def given(self, what: str, count: int = 1) -> None:
        """Counts something that a tenant may have."""
        self._count(f"given: {what}", count)

    def breach(self, what: str, count: int = 1) -> None:
        """Counts something that a tenant must not have."""
        self._count(f"BREACH: {what}", count)

    def number(self) -> int:
        """A different number at each call."""
        return next(self._number)

    def rogue(self, number: int) -> str:
        return f"south-rogue-{number % ROGUES}"

    def basic(self, user: str) -> str:
        return "Basic " + base64.b64encode(f"{user}:{self.passwords[user]}".encode()).decode()

    def snapshot(self) -> dict[str, int]:
        with self._lock:
            return dict(self.tally)

    def _count(self, key: str, count: int) -> None:
        with self._lock:
            self.tally[key] += count


def variable(number: int) -> bytes:
    """A variable byte integer."""
    encoded = bytearray()
    while True:
        encoded.append(number % 128 | (0x80 if number > 127 else 0))
        number //= 128
        if not number:
            return bytes(encoded)


def connect(client_id: str, user: str | None, password: str, *, expiry_s: int = 0, clean: bool = True) -> bytes:
    credentials = text(user) + text(password) if user else b""
    flags = (0xC0 if user else 0) | (2 if clean else 0)
    properties = b"\x11" + expiry_s.to_bytes(4, "big")
    head = text("MQTT") + bytes([5, flags]) + b"\x00\x00" + variable(len(properties)) + properties
    return packet(0x10, head + text(client_id) + credentials)


def publish(topic: str, payload: bytes, packet_id: int, *, retain: bool = False, again: bool = False) -> bytes:
    """A PUBLISH with QoS 1."""
    first = 0x32 | (1 if retain else 0) | (8 if again else 0)
    return packet(first, text(topic) + packet_id.to_bytes(2, "big") + b"\x00" + payload)


def subscribe(filters: list[str], packet_id: int = 1) -> bytes:
    return packet(0x82, packet_id.to_bytes(2, "big") + b"\x00" + b"".join(text(each) + b"\x01" for each in filters))


def ack_code(body: bytes) -> int:
    """The reason code of a PUBACK, which may omit it for success."""
    return body[2] if len(body) > 2 else 0


def suback_codes(body: bytes) -> bytes:
    length, shift, at = 0, 0, 2
    while True:
        length |= (body[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if body[at - 1] < 0x80:
            return body[at + length :]


class Rogue:
    """A blocking MQTT 5 connection; `code` is the reason code of its CONNACK."""

    def __init__(
        self, arena: Arena, client_id: str, user: str, *, expiry_s: int = 0, clean: bool = True, wait_s: float = WAIT_S
    ) -> None:
        self.link = socket.create_connection(arena.doors.mqtt, timeout=wait_s)
        self._received = bytearray()
        self._ready: list[tuple[int, bytes]] = []
        try:
            password = arena.passwords[user]
            self.link.sendall(connect(client_id, user, password, expiry_s=expiry_s, clean=clean))
            body = self.expect(CONNACK)
        except BaseException:
            self.link.close()
            raise
        self.is_present, self.code = bool(body[0] & 1), body[1]

    def __enter__(self) -> Rogue:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()

    def read(self) -> list[tuple[int, bytes]]:
        """The next packets. Raises ConnectionError if the broker closed the connection, TimeoutError if nothing
        arrives."""
        while True:
            found = self._ready or list(packets(self._received))
            if found:
                self._ready = []
                return found
            chunk = self.link.recv(1 << 16)
            if not chunk:
                raise ConnectionError("closed by the broker")
            self._received += chunk

    def expect(self, kind: int) -> bytes:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            found = self.read()
            for at, (first, body) in enumerate(found):
                if first >> 4 == kind:
                    self._ready = found[at + 1 :]
                    return body
                if first >> 4 == 14:
                    raise ConnectionError(f"DISCONNECT 0x{body[0] if body else 0:02x}")
        raise TimeoutError("no answer")

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> int:
        """The reason code of the PUBACK."""
        self.link.sendall(publish(topic, payload, 1, retain=retain))
        return ack_code(self.expect(PUBACK))

    def publish_many(self, messages: list[tuple[str, bytes]], *, retain: bool = False) -> Counter[int]:
        """Reason codes of at most 500 publishes sent at once."""
        assert len(messages) <= 500, "exceeds the smallest receive maximum"
        self.link.sendall(b"".join(publish(t, p, n + 1, retain=retain) for n, (t, p) in enumerate(messages)))
        codes: Counter[int] = Counter()
        while codes.total() < len(messages):
            for first, body in self.read():
                if first >> 4 == PUBACK:
                    codes[ack_code(body)] += 1
                elif first >> 4 == 14:
                    raise ConnectionError(f"DISCONNECT 0x{body[0] if body else 0:02x}")
        return codes

    def subscribe(self, filters: list[str]) -> bytes:
        """The codes of the SUBACK."""
        self.link.sendall(subscribe(filters))
        return suback_codes(self.expect(SUBACK))

    def leave(self) -> None:
        """Closes the connection; a persistent session stays."""
        self.link.sendall(b"\xe0\x00")
        self.link.close()


def tell_codes(arena: Arena, codes: Counter[int] | bytes, what: str) -> None:
    """Counts codes below 0x80 as `what` given, and the others as refusals."""
    for code, count in Counter(codes).items():
        if code < 0x80:
            arena.given(what, count)
        else:
            arena.refused(f"0x{code:02x}", count)


def request(
    arena: Arena, method: str, path: str, *, headers: dict[str, str], body: bytes | None = None
) -> tuple[int, bytes]:
    """Status and body of an admin request; `Host` can be set."""
    connection = http.client.HTTPConnection(*arena.doors.admin, timeout=WAIT_S)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(body or b"")))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read(1 << 20)
    finally:
        connection.close()


class Caller:
    """Flight with the credentials of a user. pyarrow is imported in its methods, after the fork."""

    def __init__(self, arena: Arena, user: str) -> None:
        import pyarrow.flight as flight

        self._flight = flight
        self._header = [(b"authorization", arena.basic(user).encode())]
        self.client = flight.connect("grpc://{}:{}".format(*arena.doors.flight))

    def options(self, wait_s: float = WAIT_S) -> object:
        return self._flight.FlightCallOptions(timeout=wait_s, headers=self._header)

    def act(self, action: str, body: object, *, wait_s: float = WAIT_S) -> list[bytes]:
        call = self._flight.Action(action, json.dumps(body).encode())
        return [one.body.to_pybytes() for one in self.client.do_action(call, options=self.options(wait_s))]

    def get(self, ticket: object, *, wait_s: float = WAIT_S) -> object:
        return self.client.do_get(self._flight.Ticket(json.dumps(ticket).encode()), self.options(wait_s))

    def put(self, schema: object, *, wait_s: float = WAIT_S) -> tuple[object, object]:
        descriptor = self._flight.FlightDescriptor.for_command(b'{"op": "produce"}')
        return self.client.do_put(descriptor, schema, options=self.options(wait_s))

    def close(self) -> None:
        self.client.close()


def reason_of(error: BaseException) -> str:
    """A short name for a refusal of Flight: the broker's own code if there is one."""
    said = str(error)
    start = said.find('{"error"')
    if start >= 0:
        try:
            return str(json.JSONDecoder().raw_decode(said[start:])[0]["error"])
        except ValueError:
            pass
    return type(error).__name__


def as_refusals(arena: Arena, error: BaseException) -> None:
    """Counts an error that an attack met; raises errors that come neither from the broker nor from the network."""
    import pyarrow as pa

    if isinstance(error, TimeoutError):
        arena.refused("no answer in time")
    elif isinstance(error, (OSError, EOFError, http.client.HTTPException)) and not isinstance(error, pa.ArrowException):
        arena.refused(str(error) if str(error).startswith("DISCONNECT") else "closed")
    elif isinstance(error, (pa.ArrowException, OSError)):
        arena.refused(reason_of(error))
    else:
        raise error
