"""An MQTT 5 client that does nothing by itself: the test sends and awaits each packet.

Client libraries complete handshakes on their own. With this client a test can stop in the middle of one, cut the
connection, and continue later on another connection or another broker.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from types import TracebackType

CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, PINGRESP, DISCONNECT = 2, 3, 4, 5, 6, 7, 9, 13, 14
NEVER = 0xFFFFFFFF
WAIT_S = 60.0
MOMENT_S = 0.2

_FOUR_BYTES = {0x02, 0x11, 0x18, 0x27}
_TWO_BYTES = {0x13, 0x21, 0x22, 0x23}
_ONE_BYTE = {0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A}


@dataclass(frozen=True, slots=True)
class Packet:
    """One packet from the broker. `code` is its reason code; a SUBACK has several, in `codes`."""

    kind: int
    packet_id: int = 0
    code: int = 0
    codes: tuple[int, ...] = ()
    topic: str = ""
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    again: bool = False
    session_present: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Will:
    topic: str
    payload: bytes
    delay_s: int = 0


class RawMqtt:
    """One connection. The constructor sends CONNECT and waits for the CONNACK, which is stored in `connack`."""

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        *,
        user: str | None = None,
        password: str | None = None,
        clean: bool = False,
        expiry_s: int = NEVER,
        will: Will | None = None,
    ) -> None:
        self._socket = socket.create_connection(address, timeout=WAIT_S)
        self._buffer = bytearray()
        self._waiting: list[Packet] = []
        self._packet_id = 0x4000
        self._socket.sendall(_connect(client_id, user, password, clean, expiry_s, will))
        self.connack = self.take(CONNACK)

    def __enter__(self) -> RawMqtt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cut()

    @property
    def code(self) -> int:
        """The reason code of the CONNACK."""
        return self.connack.code

    def subscribe(self, *filters: tuple[str, int]) -> tuple[int, ...]:
        """Filters with their QoS; returns the codes of the SUBACK."""
        body = struct.pack(">H", self._next()) + b"\x00"
        self._send(0x82, body + b"".join(_text(text) + bytes([qos]) for text, qos in filters))
        return self.take(SUBACK).codes

    def publish(
        self, topic: str, payload: bytes, *, qos: int = 1, packet_id: int = 0, retain: bool = False, again: bool = False
    ) -> int:
        """Sends a PUBLISH without waiting; returns its packet id."""
        packet_id = packet_id or self._next()
        first = 0x30 | qos << 1 | (0x01 if retain else 0) | (0x08 if again else 0)
        identifier = struct.pack(">H", packet_id) if qos else b""
        self._send(first, _text(topic) + identifier + b"\x00" + payload)
        return packet_id

    def published(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> int:
        """Publishes and completes the handshake; returns the reason code (0x10, no subscribers, counts as 0)."""
        packet_id = self.publish(topic, payload, qos=qos, retain=retain)
        if qos == 0:
            self.ping()
            return 0
        answer = self.take(PUBACK if qos == 1 else PUBREC)
        assert answer.packet_id == packet_id, answer
        if qos == 2 and answer.code < 0x80:
            self.send(PUBREL, packet_id)
            assert self.take(PUBCOMP).packet_id == packet_id
        return 0 if answer.code == 0x10 else answer.code

    def send(self, kind: int, packet_id: int) -> None:
        """Sends a PUBACK, PUBREC, PUBREL or PUBCOMP."""
        self._send(kind << 4 | (0x02 if kind == PUBREL else 0), struct.pack(">H", packet_id))

    def ping(self) -> None:
        """Returns when the broker has processed everything that was sent before."""
        self._send(0xC0, b"")
        self.take(PINGRESP)

    def take(self, kind: int) -> Packet:
        """The next packet of this kind; others that arrive before it are kept for a later call."""
        deadline = time.monotonic() + WAIT_S
        while True:
            for at, packet in enumerate(self._waiting):
                if packet.kind == kind:
                    return self._waiting.pop(at)
            ended = next((packet for packet in self._waiting if packet.kind == DISCONNECT), None)
            assert ended is None, f"the broker ended the connection: {ended}"
            assert time.monotonic() < deadline, f"no packet of kind {kind}; waiting: {self._waiting}"
            self._receive()

    def deliveries(self, count: int) -> list[Packet]:
        """Receives that many PUBLISHes and completes their handshakes."""
        taken = []
        for _ in range(count):
            packet = self.take(PUBLISH)
            taken.append(packet)
            self.acknowledge(packet)
        return taken

    def arrived(self) -> list[Packet]:
        """The PUBLISHes and PUBRELs that came, in their order, after a wait of a moment for the first one."""
        kinds = (PUBLISH, PUBREL)
        if not any(packet.kind in (*kinds, DISCONNECT) for packet in self._waiting):
            self._socket.settimeout(MOMENT_S)
            try:
                self._receive()
            except TimeoutError:
                return []
            finally:
                self._socket.settimeout(WAIT_S)
        assert all(packet.kind != DISCONNECT for packet in self._waiting), "the broker ended the connection"
        found = [packet for packet in self._waiting if packet.kind in kinds]
        self._waiting = [packet for packet in self._waiting if packet.kind not in kinds]
        return found

    def acknowledge(self, packet: Packet) -> None:
        """Completes the handshake of a delivery."""
        if packet.qos == 1:
            self.send(PUBACK, packet.packet_id)
        elif packet.qos == 2:
            self.send(PUBREC, packet.packet_id)
            assert self.take(PUBREL).packet_id == packet.packet_id
            self.send(PUBCOMP, packet.packet_id)

    def nothing_waits(self, kind: int = PUBLISH) -> bool:
        """Whether no packet of this kind has arrived before the broker answers a ping."""
        self.ping()
        return all(packet.kind != kind for packet in self._waiting)

    def cut(self) -> None:
        """Closes the socket without DISCONNECT."""
        self._socket.close()

    def leave(self) -> None:
        """Sends DISCONNECT; the session stays for its expiry interval."""
        self._send(0xE0, b"")
        self._socket.close()

    def _next(self) -> int:
        self._packet_id += 1
        return self._packet_id

    def _send(self, first: int, body: bytes) -> None:
        self._socket.sendall(bytes([first]) + _varint(len(body)) + body)

    def _receive(self) -> None:
        data = self._socket.recv(65_536)
        if not data:
            raise ConnectionError("the broker closed the connection")
        self._buffer += data
        while (frame := _frame(self._buffer)) is not None:
            start, end = frame
            self._waiting.append(_parse(self._buffer[0], bytes(self._buffer[start:end])))
            del self._buffer[:end]


def _connect(
    client_id: str, user: str | None, password: str | None, clean: bool, expiry_s: int, will: Will | None
) -> bytes:
    flags = 0x02 if clean else 0
    payload = _text(client_id)
    if will is not None:
        flags |= 0x04 | 1 << 3
        properties = b"\x18" + struct.pack(">I", will.delay_s)
        payload += _varint(len(properties)) + properties + _text(will.topic) + _bytes(will.payload)
    if user is not None:
        flags |= 0x80
        payload += _text(user)
    if password is not None:
        flags |= 0x40
        payload += _text(password)
    properties = b"\x11" + struct.pack(">I", expiry_s)
    body = _text("MQTT") + struct.pack(">BBH", 5, flags, 0) + _varint(len(properties)) + properties + payload
    return bytes([0x10]) + _varint(len(body)) + body


def _frame(buffer: bytearray) -> tuple[int, int] | None:
    """Start and end of the body of the first packet; None while bytes are missing."""
    length = 0
    for place in range(4):
        if 1 + place >= len(buffer):
            return None
        length |= (buffer[1 + place] & 0x7F) << (7 * place)
        if not buffer[1 + place] & 0x80:
            start = 2 + place
            return (start, start + length) if start + length <= len(buffer) else None
    raise ValueError("a remaining length of more than four bytes")


def _parse(first: int, body: bytes) -> Packet:
    kind = first >> 4
    if kind == CONNACK:
        return Packet(kind, code=body[1], session_present=bool(body[0] & 1), reason=_properties(body, 2)[1])
    if kind == PUBLISH:
        return _parse_publish(first, body)
    if kind == DISCONNECT:
        reason = _properties(body, 1)[1] if len(body) > 1 else ""
        return Packet(kind, code=body[0] if body else 0, reason=reason)
    if kind == PINGRESP:
        return Packet(kind)
    (packet_id,) = struct.unpack_from(">H", body)
    if kind == SUBACK:
        after, reason = _properties(body, 2)
        return Packet(kind, packet_id, codes=tuple(body[after:]), reason=reason)
    reason = _properties(body, 3)[1] if len(body) > 3 else ""
    return Packet(kind, packet_id, code=body[2] if len(body) > 2 else 0, reason=reason)


def _parse_publish(first: int, body: bytes) -> Packet:
    qos = first >> 1 & 3
    (length,) = struct.unpack_from(">H", body)
    at = 2 + length
    packet_id = 0
    if qos:
        (packet_id,) = struct.unpack_from(">H", body, at)
        at += 2
    after, _ = _properties(body, at)
    return Packet(
        PUBLISH,
        packet_id,
        topic=body[2 : 2 + length].decode(),
        payload=body[after:],
        qos=qos,
        retain=bool(first & 1),
        again=bool(first & 8),
    )


def _properties(body: bytes, at: int) -> tuple[int, str]:
    """The end of the properties at `at`, and their reason string."""
    length, at = _read_varint(body, at)
    end, reason = at + length, ""
    while at < end:
        kind, at = body[at], at + 1
        if kind in _ONE_BYTE or kind in _TWO_BYTES or kind in _FOUR_BYTES:
            at += 1 if kind in _ONE_BYTE else 2 if kind in _TWO_BYTES else 4
        elif kind == 0x0B:
            _, at = _read_varint(body, at)
        else:
            for _ in range(2 if kind == 0x26 else 1):
                (size,) = struct.unpack_from(">H", body, at)
                text, at = body[at + 2 : at + 2 + size], at + 2 + size
            reason = text.decode() if kind == 0x1F else reason
    return end, reason


def _text(text: str) -> bytes:
    return _bytes(text.encode())


def _bytes(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(body: bytes, at: int) -> tuple[int, int]:
    number = 0
    for place in range(4):
        number |= (body[at + place] & 0x7F) << (7 * place)
        if not body[at + place] & 0x80:
            return number, at + place + 1
    raise ValueError("a variable byte integer of more than four bytes")
