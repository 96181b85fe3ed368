"""The few MQTT packets that the load sends and reads, for 3.1.1 and 5: bytes in, packets out.

It deliberately uses neither the broker's code nor a client library, so that both ends cannot share a mistake. It sends
CONNECT, PUBLISH, PUBACK, PUBREL, SUBSCRIBE and DISCONNECT; it receives CONNACK, PUBLISH, PUBACK, PUBREC, PUBCOMP,
SUBACK and DISCONNECT.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONNACK, PUBLISH, PUBACK, PUBREC, PUBCOMP, SUBACK, DISCONNECT = 2, 3, 4, 5, 7, 9, 14

# Properties that these packets may carry, grouped by the length of their value (MQTT 5, 2.2.2.2).
_BYTE = {0x01, 0x24, 0x25, 0x28, 0x29, 0x2A}
_TWO = {0x13, 0x21, 0x22, 0x23}
_FOUR = {0x02, 0x11, 0x27}
_TEXT = {0x03, 0x08, 0x12, 0x15, 0x16, 0x1A, 0x1C, 0x1F}
_USER = 0x26
_USER_PROPERTY = bytes([_USER])
_MAXIMUM_QOS = 0x24


class WireError(Exception):
    """The broker sent bytes that are not MQTT."""


@dataclass(frozen=True, slots=True)
class Packet:
    """`code` is the return or reason code, for a SUBACK the highest one; `packet_id` is 0 if there is none.

    `flag` is "session present" for a CONNACK and "retain" for a PUBLISH. `maximum_qos` belongs to a CONNACK.
    """

    kind: int
    code: int
    packet_id: int
    user: dict[str, str]
    reason: str | None
    payload: bytes = b""
    flag: bool = False
    maximum_qos: int = 2


def connect(*, protocol: int, client_id: str, want_offsets: bool = False, keep_session: bool = False) -> bytes:
    """CONNECT without keep-alive; with MQTT 5 it can request offsets in PUBACKs. A kept session is also resumed."""
    body = _text("MQTT") + struct.pack(">BBH", protocol, 0x00 if keep_session else 0x02, 0)
    if protocol == 5:
        properties = b"\x26" + _text("stream-ack") + _text("1") if want_offsets else b""
        properties += b"\x11" + struct.pack(">I", 3600) if keep_session else b""
        body += _varint(len(properties)) + properties
    return _packet(0x10, body + _text(client_id))


def publish_head(
    *, protocol: int, topic: str, retain: bool, packet_id: int, payload_bytes: int, qos: int = 1, again: bool = False
) -> bytes:
    """A PUBLISH of QoS 1 or 2 up to its payload; `again` sets DUP."""
    variable = _text(topic) + struct.pack(">H", packet_id) + (b"\x00" if protocol == 5 else b"")
    first = 0x30 | qos << 1 | (0x01 if retain else 0x00) | (0x08 if again else 0x00)
    return bytes([first]) + _varint(len(variable) + payload_bytes) + variable


def puback(packet_id: int) -> bytes:
    return _packet(0x40, struct.pack(">H", packet_id))


def pubrel(packet_id: int) -> bytes:
    return _packet(0x62, struct.pack(">H", packet_id))


def subscribe(*, protocol: int, packet_id: int, filters: Sequence[str], with_offsets: bool = False) -> bytes:
    """SUBSCRIBE to all filters at QoS 1; with MQTT 5 it can request offsets in deliveries."""
    properties = _USER_PROPERTY + _text("stream-offset") + _text("latest") if with_offsets and protocol == 5 else b""
    body = struct.pack(">H", packet_id) + (_varint(len(properties)) + properties if protocol == 5 else b"")
    return _packet(0x82, body + b"".join(_text(one) + b"\x01" for one in filters))


def disconnect() -> bytes:
    return b"\xe0\x00"


def packets(buffer: bytearray, *, protocol: int) -> Iterator[Packet]:
    """The complete packets at the front of `buffer`, which are removed from it."""
    start = 0
    try:
        while (frame := _frame(buffer, start)) is not None:
            body, end = frame
            yield _parse(buffer[start], bytes(buffer[body:end]), protocol)
            start = end
    finally:
        del buffer[:start]


def _frame(buffer: bytearray, start: int) -> tuple[int, int] | None:
    """Start and end of the body of the packet at `start`; None while bytes are missing."""
    length = 0
    for place in range(4):
        at = start + 1 + place
        if at >= len(buffer):
            return None
        length |= (buffer[at] & 0x7F) << (7 * place)
        if not buffer[at] & 0x80:
            end = at + 1 + length
            return (at + 1, end) if end <= len(buffer) else None
    raise WireError("a remaining length of more than four bytes")


def _parse(first: int, body: bytes, protocol: int) -> Packet:
    kind = first >> 4
    try:
        if kind == PUBLISH:
            return _parse_publish(first, body, protocol)
        if kind == CONNACK:
            if protocol != 5:
                return Packet(kind, body[1], 0, {}, None, flag=bool(body[0] & 0x01))
            user, reason = _properties(body, 2)
            maximum = int(user.pop("maximum-qos", "2"))
            return Packet(kind, body[1], 0, user, reason, flag=bool(body[0] & 0x01), maximum_qos=maximum)
        if kind in (PUBACK, PUBREC, PUBCOMP):
            packet_id = int(struct.unpack_from(">H", body)[0])
            code = body[2] if len(body) > 2 else 0
            user, reason = _properties(body, 3) if len(body) > 3 else ({}, None)
            return Packet(kind, code, packet_id, user, reason)
        if kind == SUBACK:
            at = sum(_read_varint(body, 2)) if protocol == 5 else 2
            return Packet(kind, max(body[at:]), int(struct.unpack_from(">H", body)[0]), {}, None)
        if kind == DISCONNECT:
            user, reason = _properties(body, 1) if len(body) > 1 else ({}, None)
            return Packet(kind, body[0] if body else 0, 0, user, reason)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise WireError(f"packet type {kind} with the body {body[:64].hex()}: {error}") from error
    raise WireError(f"packet type {kind}, which is never sent to these clients")


def _parse_publish(first: int, body: bytes, protocol: int) -> Packet:
    _, at = _read_text(body, 0)
    packet_id = 0
    if first & 0x06:
        packet_id, at = int(struct.unpack_from(">H", body, at)[0]), at + 2
    user: dict[str, str] = {}
    if protocol == 5:
        user, _ = _properties(body, at)
        at = sum(_read_varint(body, at))
    return Packet(PUBLISH, 0, packet_id, user, None, payload=body[at:], flag=bool(first & 0x01))


def _properties(body: bytes, at: int) -> tuple[dict[str, str], str | None]:
    length, at = _read_varint(body, at)
    end = at + length
    user: dict[str, str] = {}
    reason = None
    while at < end:
        kind, at = body[at], at + 1
        if kind == _USER:
            key, at = _read_text(body, at)
            user[key], at = _read_text(body, at)
        elif kind in _TEXT:
            text, at = _read_text(body, at)
            reason = text if kind == 0x1F else reason
        elif kind == _MAXIMUM_QOS:
            user["maximum-qos"], at = str(body[at]), at + 1
        elif kind in _BYTE or kind in _TWO or kind in _FOUR:
            at += 1 if kind in _BYTE else 2 if kind in _TWO else 4
        else:
            raise WireError(f"property 0x{kind:02x}, which is never sent to these clients")
    return user, reason


def _packet(first: int, body: bytes) -> bytes:
    return bytes([first]) + _varint(len(body)) + body


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack(">H", len(encoded)) + encoded


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
        byte = body[at + place]
        number |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            return number, at + place + 1
    raise WireError("a variable byte integer of more than four bytes")


def _read_text(body: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">H", body, at)
    raw = body[at + 2 : at + 2 + length]
    if len(raw) < length:
        raise WireError(f"a string of {length} bytes in a packet that ends after {len(raw)}")
    return raw.decode(), at + 2 + length


def maximum_qos(address: tuple[str, int]) -> int:
    """The highest QoS that a broker supports, according to its CONNACK."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(connect(protocol=5, client_id="torture-probe"))
        answer = bytearray()
        while True:
            data = connection.recv(4096)
            if not data:
                raise WireError("the connection ended before its CONNACK")
            answer += data
            for packet in packets(answer, protocol=5):
                connection.sendall(disconnect())
                return packet.maximum_qos
