"""A publisher that follows the leader of a local cluster, and what it was promised."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from broker_edge import Client
from broker_edge.errors import HeadwaterError
from broker_edge.local_cluster import Node
from support.raw_mqtt import RawMqtt

T = TypeVar("T")

TOPIC = "devices/d1/telemetry"
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
    refusals: set[int] = field(default_factory=set)
    """Reason codes of CONNACK other than 0."""
    _connection: RawMqtt | None = None

    def publish(self, count: int) -> None:
        """Publishes until that many more are acknowledged."""
        end = self.acknowledged + count
        while self.acknowledged < end:
            connection = self._connection or until("a node that serves clients", self._connected)
            self._connection = connection
            try:
                if connection.published(self.topic, str(self.acknowledged).encode()) == 0:
                    self.acknowledged += 1
            except (OSError, AssertionError):
                self.leave()

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.cut()
        self._connection = None

    def _connected(self) -> RawMqtt | None:
        for node in self.nodes:
            found = connected(node, f"publisher of {self.topic.replace('/', ' ')}", clean=True)
            if found is not None and found.code == 0:
                return found
            if found is not None:
                self.refusals.add(found.code)
                found.cut()
        return None


@dataclass
class Subscriber:
    """A session that goes on at whichever node leads, on a thread of its own. `numbers` holds what it got by topic, in
    the order in which it came; repeats (QoS 1) included."""

    nodes: list[Node]
    topics: str
    numbers: dict[str, list[int]] = field(default_factory=dict)
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
                connection = connection or self._connected()
                if connection is None:
                    time.sleep(_BETWEEN_S)
                    continue
                if not subscribed.is_set():
                    assert connection.subscribe((self.topics, 1)) == (1,)
                    subscribed.set()
                for packet in connection.arrived():
                    self.numbers.setdefault(packet.topic, []).append(int(packet.payload))
                    connection.acknowledge(packet)
            except (OSError, AssertionError):
                if connection is not None:
                    connection.cut()
                connection = None
        if connection is not None:
            connection.cut()

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


def without_repeats(numbers: list[int]) -> list[int]:
    """Each number where it first stands. A publish without an acknowledgement is sent again, so it may come twice."""
    return list(dict.fromkeys(numbers))
