"""Many plain MQTT 5 receivers in one thread: they subscribe, count bytes, acknowledge QoS 1, and can be cut off.

Payloads are skipped, not stored: the benchmark measures the broker that sends them.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field

CONNACK, PUBLISH, PUBACK, SUBACK = 2, 3, 4, 9
READ_BYTES = 1 << 18
SILENCE_S = 120.0


@dataclass(frozen=True)
class Subscription:
    """The task of a connection: receive a number of messages, or be cut off in the middle of one."""

    topic: str
    messages: int
    position: str | None = None
    cut_after_bytes: int | None = None


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def packet(first: int, body: bytes) -> bytes:
    length, left = bytearray(), len(body)
    while True:
        left, low = divmod(left, 128)
        length.append(low | (0x80 if left else 0))
        if not left:
            return bytes([first]) + bytes(length) + body


def connect(client_id: str, window: int) -> bytes:
    properties = b"\x21" + struct.pack(">H", window)
    head = text("MQTT") + b"\x05\x02\x00\x00" + bytes([len(properties)]) + properties
    return packet(0x10, head + text(client_id))


def subscribe(wanted: Subscription) -> bytes:
    properties = b"" if wanted.position is None else b"\x26" + text("stream-offset") + text(wanted.position)
    return packet(0x82, b"\x00\x01" + bytes([len(properties)]) + properties + text(wanted.topic) + b"\x01")


def publish_retained(address: tuple[str, int], topic: str, payload: bytes) -> None:
    """Publishes at QoS 1 and waits for the PUBACK."""
    with socket.create_connection(address) as client:
        client.sendall(connect("publisher", 10) + packet(0x33, text(topic) + b"\x00\x01\x00" + payload))
        answers = b""
        while not any(kind == PUBACK for kind in kinds(answers)):
            piece = client.recv(4096)
            if not piece:
                raise SystemExit("the broker refused the retained message")
            answers += piece


def kinds(answers: bytes) -> list[int]:
    found, at = [], 0
    while at + 2 <= len(answers):
        found.append(answers[at] >> 4)
        at += 2 + answers[at + 1]
    return found


@dataclass
class Frame:
    """Parses frames as bytes arrive; `left` counts the missing bytes of the current frame."""

    head: bytearray = field(default_factory=bytearray)
    left: int = 0
    kind: int = 0
    id_at: int = 0
    seen: int = 0

    def feed(self, data: memoryview, ended: Callable[[int, bytes], None]) -> None:
        """Calls `ended(kind, packet id)` for each complete frame."""
        at = 0
        while at < len(data):
            if self.left == 0:
                at += self._length(data[at:])
                continue
            take = min(self.left, len(data) - at)
            # Of the body, keep only the part up to the packet id.
            if len(self.head) < self.id_at + 2:
                self.head += data[at : at + min(take, 70_000 - len(self.head))]
                if self.kind == PUBLISH and self.id_at == 0 and len(self.head) >= 2:
                    self.id_at = 2 + int.from_bytes(self.head[:2], "big")
            self.left -= take
            at += take
            if self.left == 0:
                ended(self.kind, bytes(self.head[self.id_at : self.id_at + 2]))
                self.head.clear()
                self.id_at = 0

    def _length(self, data: memoryview) -> int:
        """The number of bytes of `data` that belong to type and length."""
        for taken, byte in enumerate(data, start=1):
            self.head.append(byte)
            if len(self.head) > 1 and not byte & 0x80:
                self.kind = self.head[0] >> 4
                self.left = sum((one & 0x7F) << 7 * place for place, one in enumerate(self.head[1:]))
                self.head.clear()
                return taken
        return len(data)


@dataclass
class Receiver:
    number: int
    client: socket.socket
    wanted: Subscription
    frame: Frame = field(default_factory=Frame)
    messages: int = 0
    bytes: int = 0


class Receivers:
    """`count` receivers, each of which is cut off twice."""

    def __init__(self, address: tuple[str, int], count: int, *, window: int) -> None:
        self._address, self._count, self._window = address, count, window
        self._selector = selectors.DefaultSelector()
        self._cuts = [0] * count
        self._done = [0] * count
        self._finished = 0
        self.received_bytes = 0

    def run(self, subscription: Callable[[int, int], Subscription], *, looks: Callable[[], None]) -> int:
        """Calls `subscription(messages so far, cuts so far)` for each connection. Returns the number of received
        bytes."""
        for number in range(self._count):
            self._open(number, subscription)
        buffer = bytearray(READ_BYTES)
        look_at = 0.0
        while self._finished < self._count:
            ready = self._selector.select(timeout=SILENCE_S)
            if not ready:
                raise SystemExit(f"no data for {SILENCE_S} s; {self._finished} of {self._count} are done")
            for key, _ in ready:
                self._read(key.data, buffer, subscription)
            if time.monotonic() > look_at:
                looks()
                look_at = time.monotonic() + 0.1
        return self.received_bytes

    def _open(self, number: int, subscription: Callable[[int, int], Subscription]) -> None:
        wanted = subscription(self._done[number], self._cuts[number])
        client = socket.create_connection(self._address)
        client.sendall(connect(f"r{number}", self._window) + subscribe(wanted))
        client.setblocking(False)
        self._selector.register(client, selectors.EVENT_READ, Receiver(number, client, wanted))

    def _read(self, receiver: Receiver, buffer: bytearray, subscription: Callable[[int, int], Subscription]) -> None:
        size = receiver.client.recv_into(buffer)
        if size == 0:
            raise SystemExit(f"the broker closed the connection of receiver {receiver.number}")
        receiver.bytes += size
        self.received_bytes += size

        def ended(kind: int, packet_id: bytes) -> None:
            if kind == PUBLISH:
                receiver.messages += 1
                receiver.client.send(packet(0x40, packet_id))

        receiver.frame.feed(memoryview(buffer)[:size], ended)
        is_cut = receiver.wanted.cut_after_bytes is not None and receiver.bytes >= receiver.wanted.cut_after_bytes
        if not is_cut and receiver.messages < receiver.wanted.messages:
            return
        self._selector.unregister(receiver.client)
        receiver.client.close()
        self._done[receiver.number] += receiver.messages
        if self._cuts[receiver.number] == 2:
            self._finished += 1
        else:
            self._cuts[receiver.number] += 1
            self._open(receiver.number, subscription)
