"""One publishing connection: socket, unsent bytes, window, and the acknowledgements of QoS 1 and QoS 2.

It records the outcome of each record in `Published`. The load (`broker_edge.torture.load`) decides when it publishes
and when it ends.
"""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass, field

from broker_edge.torture import wire
from broker_edge.torture.outbox import Outbox, Unfinished
from broker_edge.torture.records import Publisher, Recipe, RecordName

RECEIVE_BYTES = 256 * 1024
# A connection stops publishing when its unsent backlog reaches this size: the broker is not reading.
BACKLOG_BYTES = 256 * 1024
PACKET_ID_UNKNOWN = 0x92  # A PUBCOMP with this code still completes a resent PUBREL (MQTT 5, 4.13.1).


@dataclass(frozen=True, slots=True)
class Place:
    """A log position named in an acknowledgement."""

    partition: str
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


@dataclass(slots=True)
class Published:
    """The outcome of one connection's records. `acked` has a Place if the broker named it, otherwise None."""

    publisher: Publisher
    sent: int = 0
    acked: dict[int, Place | None] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)
    # Records of earlier runs that were sent again, and acknowledged or refused now.
    late: dict[RecordName, Place | None] = field(default_factory=dict)
    late_refused: set[RecordName] = field(default_factory=set)
    completed: int = 0  # Completed QoS 2 flows.
    closed_because: str | None = None
    # Violations of MQTT: acknowledgements out of order, twice, for nothing, without the requested offset; a lost
    # session.
    violations: list[str] = field(default_factory=list)


class PublishingConnection:
    """Publishes records of one run until its window, its limit or its backlog is full."""

    def __init__(
        self,
        *,
        run: int,
        recipe: Recipe,
        publisher: Publisher,
        window: int,
        want_offsets: bool,
        outbox: Outbox | None = None,
    ) -> None:
        self.published = Published(publisher)
        self.open = False  # CONNACK has arrived.
        self.limit: int | None = None
        self._run = run
        self._recipe = recipe
        self._window = window
        self._want_offsets = want_offsets and publisher.protocol == 5
        self._outbox = Outbox() if outbox is None else outbox
        self._incoming = bytearray()
        self._outgoing = bytearray(
            wire.connect(
                protocol=publisher.protocol,
                client_id=publisher.client_id,
                want_offsets=want_offsets,
                keep_session=publisher.resends,
            )
        )
        self.socket: socket.socket | None = None

    @property
    def finished(self) -> bool:
        """Whether every record that the limit allows has been answered."""
        return self.limit is not None and self.published.sent >= self.limit and not self._outbox.unfinished

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
        for packet in wire.packets(self._incoming, protocol=self.published.publisher.protocol):
            self._handle(packet)

    def send(self) -> None:
        assert self.socket is not None
        with contextlib.suppress(BlockingIOError):
            while self._outgoing:
                del self._outgoing[: self.socket.send(self._outgoing)]

    def fill(self) -> None:
        """Publishes until the window, the limit or the backlog is full."""
        published = self.published
        while self.open and len(self._outbox.unfinished) < self._window and len(self._outgoing) < BACKLOG_BYTES:
            sequence = published.sent
            if self.limit is not None and sequence >= self.limit:
                return
            self._publish(self._outbox.add(RecordName(self._run, published.publisher.connection, sequence)))
            published.sent += 1

    def _publish(self, one: Unfinished, *, again: bool = False) -> None:
        publisher = self.published.publisher
        payload = self._recipe.payload(one.name)
        self._outgoing += wire.publish_head(
            protocol=publisher.protocol,
            topic=publisher.topic,
            retain=self._recipe.retain(publisher, one.name.sequence),
            packet_id=one.packet_id,
            payload_bytes=len(payload),
            qos=publisher.qos,
            again=again,
        )
        self._outgoing += payload

    def _handle(self, packet: wire.Packet) -> None:
        if packet.kind == wire.CONNACK:
            if packet.code != 0:
                raise ConnectionRefusedError(f"CONNACK 0x{packet.code:02x} {packet.reason or ''}")
            self._resume(session_present=packet.flag)
            self.open = True
        elif packet.kind == wire.DISCONNECT:
            raise ConnectionResetError(f"DISCONNECT 0x{packet.code:02x} {packet.reason or ''}")
        elif packet.kind == wire.PUBCOMP:
            self._completed(packet)
        elif packet.kind in (wire.PUBACK, wire.PUBREC):
            self._acknowledged(packet)
        else:
            raise wire.WireError(f"packet type {packet.kind} to a publisher")

    def _resume(self, *, session_present: bool) -> None:
        outbox = self._outbox
        if not self.published.publisher.resends:
            return
        if outbox.has_session and not session_present:
            self.published.violations.append("the session is gone")
        outbox.has_session = True
        for one in outbox.again():
            if one.released:
                self._outgoing += wire.pubrel(one.packet_id)
            else:
                self._publish(one, again=True)

    def _acknowledged(self, packet: wire.Packet) -> None:
        """Handles PUBACK or PUBREC: the broker has the record."""
        published, kind = self.published, "PUBACK" if packet.kind == wire.PUBACK else "PUBREC"
        if (packet.kind == wire.PUBREC) != (published.publisher.qos == 2):
            published.violations.append(f"{kind} answers a publish of QoS {published.publisher.qos}")
            return
        one = self._outbox.oldest_unanswered()
        if one is None:
            published.violations.append(f"{kind} {packet.packet_id} while nothing waits for one")
            return
        if packet.packet_id != one.packet_id:
            published.violations.append(
                f"{kind} {packet.packet_id} before that of {one.packet_id} (MQTT 4.6 requires their order)"
            )
            return
        if packet.code >= 0x80 or packet.kind == wire.PUBACK:
            del self._outbox.unfinished[one.packet_id]
        else:
            one.released = True
            self._outgoing += wire.pubrel(one.packet_id)
        self._note(one.name, packet)

    def _note(self, name: RecordName, packet: wire.Packet) -> None:
        published = self.published
        if packet.code >= 0x80:
            if name.run == self._run:
                published.refused[name.sequence] = packet.code
            else:
                published.late_refused.add(name)
            return
        place = None
        if self._want_offsets:
            partition, _, offset = packet.user.get("stream-offset", "").rpartition(":")
            if partition and offset.isdecimal():
                place = Place(partition, int(offset))
            elif packet.kind == wire.PUBACK:
                published.violations.append(f"PUBACK without stream-offset: {packet.user}")
        if name.run == self._run:
            published.acked[name.sequence] = place
        else:
            published.late[name] = place

    def _completed(self, packet: wire.Packet) -> None:
        one = self._outbox.unfinished.get(packet.packet_id)
        if one is None or not one.released:
            self.published.violations.append(f"PUBCOMP {packet.packet_id} while nothing waits for one")
        elif packet.code not in (0, PACKET_ID_UNKNOWN):
            self.published.violations.append(f"PUBCOMP {packet.packet_id} with 0x{packet.code:02x}")
        else:
            del self._outbox.unfinished[packet.packet_id]
            self.published.completed += 1
