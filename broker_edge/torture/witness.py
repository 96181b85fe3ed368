"""A subscriber with a persistent session that remembers, across restarts, which records of the load were delivered to
it.

It acknowledges everything it receives. It only judges what a connection can show: the session still exists, and no
record arrives after a later one of its publisher. The checker judges whether records are missing or were shown too
early.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
from collections.abc import Iterable, Sequence

from broker_edge.torture import wire
from broker_edge.torture.publisher import Place
from broker_edge.torture.records import RecordName, name_of

RECEIVE_BYTES = 256 * 1024


def witnesses() -> tuple[MqttWitness, ...]:
    """One witness per protocol version, for all published records; the MQTT 5 one receives offsets."""
    filters = ("devices/+/telemetry", "devices/+/actions")
    return tuple(MqttWitness(protocol=one, client_id=f"witness-{one}", filters=filters) for one in (4, 5))


class MqttWitness:
    """`connect` resumes the session on its own thread, which ends with the connection; `join` waits for that."""

    def __init__(self, *, protocol: int, client_id: str, filters: Sequence[str]) -> None:
        self.seen: set[RecordName] = set()
        self.places: dict[Place, RecordName] = {}  # Records delivered with their offset.
        self.violations: list[str] = []
        self._protocol = protocol
        self.client_id = client_id
        self._filters = filters
        self._repeated: frozenset[int] = frozenset()
        self._subscribed = False
        self._refusals: list[str] = []  # Refusals of the newest connection.
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._arrived = threading.Condition()

    def connect(self, address: tuple[str, int], *, may_be_refused: bool = False, seconds: float = 30.0) -> None:
        """Returns once the subscription is confirmed or the connection refused. A broker with an injected failure may
        refuse what it cannot store; from any other broker a refusal is a violation. Raises OSError, and TimeoutError
        after `seconds`."""
        confirmed = threading.Event()
        self._refusals.clear()
        self._socket = socket.create_connection(address, timeout=seconds)
        self._thread = threading.Thread(target=self._run, args=(self._socket, confirmed), daemon=True)
        self._thread.start()
        if not confirmed.wait(seconds):
            self.close()
            raise TimeoutError(f"{self.client_id}: no SUBACK within {seconds} s; {self.violations}")
        if not may_be_refused:
            self.violations += self._refusals

    def expect_repeats(self, connections: Iterable[int]) -> None:
        """Publishers of these connections resend at QoS 1, so the log may have their records more than once."""
        self._repeated = frozenset(connections)

    def wait(self, names: set[RecordName], *, seconds: float) -> set[RecordName]:
        """Waits until all of `names` have been delivered. If nothing arrives for `seconds`, returns the missing
        ones."""
        with self._arrived:
            while missing := names - self.seen:
                before = len(self.seen)
                self._arrived.wait_for(functools.partial(self._has_more_than, before), timeout=seconds)
                if len(self.seen) == before:
                    return missing
        return set()

    def _has_more_than(self, count: int) -> bool:
        return len(self.seen) > count

    def join(self) -> None:
        """Waits for the end of the connection, after the end of the broker."""
        if self._thread is not None:
            self._thread.join(timeout=30)
            assert not self._thread.is_alive(), f"{self.client_id} is still connected"

    def close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):  # The broker may have closed it first.
                self._socket.shutdown(socket.SHUT_RDWR)
        self.join()

    def _run(self, connection: socket.socket, confirmed: threading.Event) -> None:
        last: dict[tuple[int, int], int] = {}
        incoming = bytearray()
        try:
            with connection:
                connection.sendall(wire.connect(protocol=self._protocol, client_id=self.client_id, keep_session=True))
                connection.settimeout(None)
                while data := connection.recv(RECEIVE_BYTES):
                    incoming += data
                    answers = bytearray()
                    with self._arrived:
                        for packet in wire.packets(incoming, protocol=self._protocol):
                            answers += self._answer(packet, last, confirmed)
                        self._arrived.notify_all()
                    connection.sendall(answers)
        except OSError:
            return  # The fault killed the broker.
        except wire.WireError as error:
            self.violations.append(f"{self.client_id}: {error}")
        finally:
            confirmed.set()  # Otherwise `connect` would wait for the subscription of a broker that has ended.

    def _answer(self, packet: wire.Packet, last: dict[tuple[int, int], int], confirmed: threading.Event) -> bytes:
        if packet.kind == wire.CONNACK:
            if packet.code:
                self._refusals.append(f"{self.client_id}: CONNACK 0x{packet.code:02x} {packet.reason or ''}")
                confirmed.set()
                return b""
            if packet.flag:
                confirmed.set()
                return b""
            if self._subscribed:
                self.violations.append(f"{self.client_id}: the session is gone")
            return wire.subscribe(protocol=self._protocol, packet_id=1, filters=self._filters, with_offsets=True)
        if packet.kind == wire.SUBACK:
            if packet.code >= 0x80:
                self.violations.append(f"{self.client_id}: SUBACK 0x{packet.code:02x}")
            self._subscribed = True
            confirmed.set()
        if packet.kind != wire.PUBLISH:
            return b""
        name = name_of(packet.payload)
        if name is not None and not packet.flag:  # Retained messages arrive out of order.
            self.seen.add(name)
            partition, _, offset = packet.user.get("stream-offset", "").rpartition(":")
            if partition:
                self.places[Place(partition, int(offset))] = name
            publisher = (name.run, name.connection)
            if name.sequence <= last.get(publisher, -1) and name.connection not in self._repeated:
                self.violations.append(f"{self.client_id}: {name} arrived after {last[publisher]} of its publisher")
            last[publisher] = name.sequence
        return wire.puback(packet.packet_id) if packet.packet_id else b""
