"""QoS 1 publishers that remember which of their records were acknowledged, and where.

One thread drives all connections over raw sockets. Each record is published once and never again: what is
acknowledged must be in the log once, what is not may be there once or not at all. The load does not reconnect and reads
nothing back; `support.log_check` compares.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from support import mqtt_wire
from support.load_records import Publisher, Recipe, RecordName

RECEIVE_BYTES = 256 * 1024
# A connection stops adding publishes to an unsent backlog of this size: the broker is not reading.
BACKLOG_BYTES = 256 * 1024
TURN_S = 0.05


@dataclass(frozen=True, slots=True)
class Place:
    """An acknowledgement that says where the record is."""

    partition: str
    offset: int


@dataclass(slots=True)
class Published:
    """What became of one connection's records. `acked` has a Place with MQTT 5, None with 3.1.1."""

    publisher: Publisher
    sent: int = 0
    acked: dict[int, Place | None] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    closed_because: str | None = None
    # Acknowledgements that MQTT forbids: out of order, twice, for nothing, without the offset that was asked for.
    violations: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The outcome of one run. `recipe` rebuilds what was sent."""

    run: int
    recipe: Recipe
    connections: tuple[Published, ...]

    @property
    def acked(self) -> int:
        return sum(len(one.acked) for one in self.connections)

    @property
    def sent(self) -> int:
        return sum(one.sent for one in self.connections)

    @property
    def refused(self) -> int:
        return sum(len(one.refused) for one in self.connections)

    def name(self, connection: Published, sequence: int) -> RecordName:
        return RecordName(self.run, connection.publisher.connection, sequence)


class _Connection:
    """Socket, unsent bytes and inflight window of one publisher."""

    def __init__(self, *, run: int, recipe: Recipe, publisher: Publisher, window: int, want_offsets: bool) -> None:
        self.published = Published(publisher)
        self.open = False  # CONNACK has arrived
        self.limit: int | None = None
        self._run = run
        self._recipe = recipe
        self._window = window
        self._want_offsets = want_offsets and publisher.protocol == 5
        self._inflight: deque[tuple[int, int]] = deque()  # (packet id, sequence), oldest first
        self._incoming = bytearray()
        self._outgoing = bytearray(
            mqtt_wire.connect(protocol=publisher.protocol, client_id=publisher.client_id, want_offsets=want_offsets)
        )
        self.socket: socket.socket | None = None

    @property
    def finished(self) -> bool:
        """Every record that the limit allows has been answered."""
        return self.limit is not None and self.published.sent >= self.limit and not self._inflight

    def attach(self, address: tuple[str, int]) -> socket.socket:
        self.socket = socket.create_connection(address, timeout=5)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        return self.socket

    def wants_to_write(self) -> bool:
        return bool(self._outgoing)

    def receive(self) -> None:
        """Raises OSError or WireError when the connection is over."""
        assert self.socket is not None
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise ConnectionResetError("closed by the broker")
        self._incoming += data
        for packet in mqtt_wire.packets(self._incoming, protocol=self.published.publisher.protocol):
            self._handle(packet)

    def send(self) -> None:
        assert self.socket is not None
        with contextlib.suppress(BlockingIOError):
            while self._outgoing:
                del self._outgoing[: self.socket.send(self._outgoing)]

    def fill(self) -> None:
        """Publishes until the window, the limit or the backlog is full."""
        published = self.published
        publisher = published.publisher
        while self.open and len(self._inflight) < self._window and len(self._outgoing) < BACKLOG_BYTES:
            sequence = published.sent
            if self.limit is not None and sequence >= self.limit:
                return
            packet_id = sequence % 65_535 + 1
            payload = self._recipe.payload(RecordName(self._run, publisher.connection, sequence))
            self._outgoing += mqtt_wire.publish_head(
                protocol=publisher.protocol,
                topic=publisher.topic,
                retain=self._recipe.retain(publisher, sequence),
                packet_id=packet_id,
                payload_bytes=len(payload),
            )
            self._outgoing += payload
            self._inflight.append((packet_id, sequence))
            published.sent += 1

    def _handle(self, packet: mqtt_wire.Packet) -> None:
        if packet.kind == mqtt_wire.CONNACK:
            if packet.code != 0:
                raise ConnectionRefusedError(f"CONNACK 0x{packet.code:02x} {packet.reason or ''}")
            self.open = True
        elif packet.kind == mqtt_wire.DISCONNECT:
            raise ConnectionResetError(f"DISCONNECT 0x{packet.code:02x} {packet.reason or ''}")
        else:
            self._acknowledged(packet)

    def _acknowledged(self, packet: mqtt_wire.Packet) -> None:
        published = self.published
        if not self._inflight:
            published.violations.append(f"PUBACK {packet.packet_id} while nothing waits for one")
            return
        packet_id, sequence = self._inflight.popleft()
        if packet.packet_id != packet_id:
            published.violations.append(
                f"PUBACK {packet.packet_id} before that of {packet_id} (MQTT 4.6 wants their order)"
            )
            return
        if packet.code >= 0x80:
            published.refused[sequence] = packet.code
            return
        place = None
        if self._want_offsets:
            name, _, offset = packet.user.get("stream-offset", "").rpartition(":")
            if name and offset.isdecimal():
                place = Place(name, int(offset))
            else:
                published.violations.append(f"PUBACK without stream-offset: {packet.user}")
        published.acked[sequence] = place


class MqttLoad:
    """Runs the publishers against a broker until it is stopped or their limit is reached.

    `with MqttLoad(...) as load:` connects all of them, publishes from a thread of its own, and is stopped at the end.
    """

    def __init__(
        self,
        *,
        address: tuple[str, int],
        run: int,
        recipe: Recipe,
        publishers: Sequence[Publisher],
        window: int = 32,
        records_each: int | None = None,
        want_offsets: bool = True,
        pause_s: float = 0.0,
    ) -> None:
        """A pause after each turn bounds the rate: one window a connection in so many seconds."""
        self._address = address
        self._pause_s = pause_s
        self._run = run
        self._recipe = recipe
        self._connections = [
            _Connection(run=run, recipe=recipe, publisher=one, window=window, want_offsets=want_offsets)
            for one in publishers
        ]
        for one in self._connections:
            one.limit = records_each
        self._selector = selectors.DefaultSelector()
        self._progress = threading.Condition()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._drive, name=f"mqtt-load-{run}", daemon=True)
        self._failure: BaseException | None = None

    def __enter__(self) -> MqttLoad:
        for one in self._connections:
            try:
                self._selector.register(one.attach(self._address), selectors.EVENT_READ | selectors.EVENT_WRITE, one)
            except OSError as error:
                one.published.closed_because = f"connect: {error}"
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def acked(self) -> int:
        return sum(len(one.published.acked) for one in self._connections)

    @property
    def refused(self) -> int:
        return sum(len(one.published.refused) for one in self._connections)

    @property
    def closed(self) -> int:
        """Connections that the broker ended."""
        return sum(one.published.closed_because is not None for one in self._connections)

    @property
    def over(self) -> bool:
        """Nothing more will happen: every connection is closed or has all its answers."""
        return not self._thread.is_alive()

    def wait(self, condition: Callable[[MqttLoad], bool], *, seconds: float, what: str) -> None:
        """Returns when `condition` holds; raises TimeoutError that says what was waited for."""
        deadline = time.monotonic() + seconds
        with self._progress:
            while not condition(self):
                left = deadline - time.monotonic()
                if left <= 0 or (self.over and not condition(self)):
                    raise TimeoutError(f"waited {seconds} s for {what}: {self.summary()}")
                self._progress.wait(min(left, 1.0))

    def stop(self) -> LoadResult:
        """Ends the load and gives what is known about each record. May be called again."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=30)
        self._selector.close()
        for one in self._connections:
            if one.socket is not None:
                one.socket.close()
        if self._failure is not None:
            raise self._failure
        return LoadResult(self._run, self._recipe, tuple(one.published for one in self._connections))

    def summary(self) -> str:
        reasons = sorted({one.published.closed_because for one in self._connections if one.published.closed_because})
        sent = sum(one.published.sent for one in self._connections)
        return f"sent {sent}, acked {self.acked}, refused {self.refused}, closed {self.closed} {reasons or ''}"

    def _drive(self) -> None:
        try:
            while not self._stopping.is_set() and self._selector.get_map():
                for key, events in self._selector.select(TURN_S):
                    self._turn(key.data, events)
                with self._progress:
                    self._progress.notify_all()
                if self._pause_s:
                    self._stopping.wait(self._pause_s)
        except BaseException as error:  # kept for stop(), which runs on the thread of the test
            self._failure = error
        finally:
            with self._progress:
                self._progress.notify_all()

    def _turn(self, one: _Connection, events: int) -> None:
        assert one.socket is not None
        try:
            if events & selectors.EVENT_READ:
                one.receive()
            one.fill()
            one.send()
            if one.finished:
                one.socket.send(mqtt_wire.disconnect())
                self._selector.unregister(one.socket)
                return
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if one.wants_to_write() else 0)
            if self._selector.get_key(one.socket).events != wanted:
                self._selector.modify(one.socket, wanted, one)
        except (OSError, mqtt_wire.WireError) as error:
            if isinstance(error, mqtt_wire.WireError):
                one.published.violations.append(str(error))
            one.published.closed_because = str(error)
            self._selector.unregister(one.socket)
