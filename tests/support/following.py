"""A publisher that follows the leader of a local cluster, and what it was promised."""

from __future__ import annotations

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
                if connection.published(TOPIC, str(self.acknowledged).encode()) == 0:
                    self.acknowledged += 1
            except (OSError, AssertionError):
                self.leave()

    def leave(self) -> None:
        if self._connection is not None:
            self._connection.cut()
        self._connection = None

    def _connected(self) -> RawMqtt | None:
        for node in self.nodes:
            host, _, port = node.mqtt.rpartition(":")
            try:
                connection = RawMqtt((host, int(port)), "publisher", clean=True)
            except OSError:
                continue
            if connection.code == 0:
                return connection
            self.refusals.add(connection.code)
            connection.cut()
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
