"""A publisher that follows the leader of a local cluster, and what it was promised."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from broker_edge import Client
from broker_edge.errors import HeadwaterError
from broker_edge.local_cluster import Node
from support.raw_mqtt import PUBACK, PUBCOMP, PUBREC, PUBREL, Packet, RawMqtt

T = TypeVar("T")

TOPIC = "devices/d1/telemetry"
FILTER = "devices/+/telemetry"
Place = tuple[int, int]
WAIT_S = 120.0
_BETWEEN_S = 0.05


def until(what: str, look: Callable[[], T | None]) -> T:
    """Looks again and again, also after an error of a broker; the deadline only ends a hang."""
    deadline, last = time.monotonic() + WAIT_S, "nothing"
    while time.monotonic() < deadline:
        try:
            if (found := look()) is not None:
                return found
        except (HeadwaterError, OSError, AssertionError) as error:
            last = repr(error)
        time.sleep(_BETWEEN_S)
    raise AssertionError(f"{what}: not within {WAIT_S} s; the last error was {last}")


@dataclass
class Publisher:
    """Publishes 0, 1, 2, … in order, at whichever node accepts it. What was not acknowledged is sent again."""

    nodes: list[Node]
    acknowledged: int = 0
    """Each number below it was acknowledged."""
    topic: str = TOPIC
    qos: int = 1
    """At QoS 2 it has a session, and goes on with an interrupted handshake."""
    refusals: set[int] = field(default_factory=set)
    """Reason codes of CONNACK other than 0."""
    _connection: RawMqtt | None = None
    # Of the handshake at QoS 2 that has not ended: its packet id, and whether PUBREC was received.
    _open: int = 0
    _is_received: bool = False

    def publish(self, count: int) -> None:
        """Publishes until that many more are acknowledged."""
        end = self.acknowledged + count
        while self.acknowledged < end:
            connection = self._connection or until("a node that serves clients", self._connected)
            self._connection = connection
            try:
                payload = str(self.acknowledged).encode()
                if self.qos == 2:
                    self._exactly_once(connection, payload)
                    self.acknowledged += 1
                elif connection.published(self.topic, payload) == 0:
                    self.acknowledged += 1
            except (OSError, AssertionError):
                self.leave()

    def _exactly_once(self, connection: RawMqtt, payload: bytes) -> None:
        if not self._is_received:
            again = self._open != 0
            self._open = connection.publish(self.topic, payload, qos=2, packet_id=self._open, again=again)
            answer = connection.take(PUBREC)
            assert (answer.packet_id, answer.code < 0x80) == (self._open, True), answer
            self._is_received = True
        connection.send(PUBREL, self._open)
        assert connection.take(PUBCOMP).packet_id == self._open
        self._open, self._is_received = 0, False

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.cut()
        self._connection = None

    def _connected(self) -> RawMqtt | None:
        for node in self.nodes:
            found = connected(node, f"publisher of {self.topic.replace('/', ' ')}", clean=self.qos == 1)
            if found is not None and found.code == 0:
                return found
            if found is not None:
                self.refusals.add(found.code)
                found.cut()
        return None


@dataclass
class Subscriber:
    """A session at QoS 2 that goes on at whichever node leads, on a thread of its own. `numbers` holds what it got by
    topic, in the order in which it came; repeats (QoS 1) included."""

    nodes: list[Node]
    topics: str
    numbers: dict[str, list[int]] = field(default_factory=dict)
    has_lost_session: bool = False
    # Packet ids at QoS 2 whose message it has, until they are released.
    _open: set[int] = field(default_factory=set)
    _end: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Subscriber:
        subscribed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(subscribed,), name="subscriber")
        self._thread.start()
        assert subscribed.wait(WAIT_S), "the subscriber is not subscribed"
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        assert self._thread is not None
        self._thread.join(WAIT_S)

    def _run(self, subscribed: threading.Event) -> None:
        connection: RawMqtt | None = None
        while not self._end.is_set():
            try:
                if connection is None and (connection := self._connected()) is not None:
                    self.has_lost_session |= subscribed.is_set() and not connection.connack.session_present
                if connection is None:
                    time.sleep(_BETWEEN_S)
                    continue
                if not subscribed.is_set():
                    assert connection.subscribe((self.topics, 2)) == (2,)
                    subscribed.set()
                for packet in connection.arrived():
                    self._take(connection, packet)
            except (OSError, AssertionError):
                if connection is not None:
                    connection.cut()
                connection = None
        if connection is not None:
            connection.cut()

    def _take(self, connection: RawMqtt, packet: Packet) -> None:
        if packet.kind == PUBREL:
            self._open.discard(packet.packet_id)
            connection.send(PUBCOMP, packet.packet_id)
            return
        if packet.qos != 2 or packet.packet_id not in self._open:
            self.numbers.setdefault(packet.topic, []).append(int(packet.payload))
        if packet.qos == 2:
            self._open.add(packet.packet_id)
        connection.send(PUBREC if packet.qos == 2 else PUBACK, packet.packet_id)

    def _connected(self) -> RawMqtt | None:
        for node in self.nodes:
            found = connected(node, "subscriber", clean=False)
            if found is not None and found.code == 0:
                return found
            if found is not None:
                found.cut()
        return None


def connected(node: Node, client_id: str, *, clean: bool) -> RawMqtt | None:
    """A connection, whatever its CONNACK says; None if there is none."""
    host, _, port = node.mqtt.rpartition(":")
    try:
        return RawMqtt((host, int(port)), client_id, clean=clean)
    except OSError:
        return None


def numbers_in_log(node: Node) -> list[int]:
    """What a leader's log has of the publisher, in the order of the log."""
    with Client(node.server) as client:
        found = client.offsets(filters=TOPIC).partitions.items()
        ((number, at),) = [(number, at) for number, at in found if at.high_watermark > at.log_start]
        table = client.fetch(number, at.log_start, at.high_watermark, filters=TOPIC).to_table()
    return [int(value) for value in table.column("value").to_pylist()]


def address_of(nodes: list[Node]) -> str:
    """The one address that names all of them."""
    return "grpc://" + "/".join(node.server.removeprefix("grpc://") for node in nodes)


@contextmanager
def publishing(publishers: list[Publisher]) -> Iterator[None]:
    """Each publishes without a pause on a thread of its own."""
    end = threading.Event()

    def run(publisher: Publisher) -> None:
        while not end.is_set():
            publisher.publish(5)
        publisher.leave()

    threads = [threading.Thread(target=run, args=(one,)) for one in publishers]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


def in_log(address: str) -> dict[Place, tuple[str, int]]:
    """Topic and number of each record of the publishers, by its place."""
    found = {}
    with Client(address, timeout_s=60) as client:
        for partition, at in client.offsets(filters=FILTER).partitions.items():
            table = client.fetch(partition, at.log_start, at.high_watermark, filters=FILTER).to_table()
            columns = (table.column(name).to_pylist() for name in ("offset", "topic", "value"))
            for offset, topic, value in zip(*columns, strict=True):
                found[partition, offset] = (topic, int(value))
    return found


def without_repeats(numbers: list[int]) -> list[int]:
    """Each number where it first stands. A publish without an acknowledgement is sent again, so it may come twice."""
    return list(dict.fromkeys(numbers))
