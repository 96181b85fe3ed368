"""The load of an honest tenant for `tenants.py`: devices in an open loop, and a reader over Flight that misses nothing.

Message n is due n/rate seconds after the start, and its latency counts from then to its PUBACK, whatever the cause of a
delay. A device that loses its connection reconnects and sends unacknowledged messages again.
"""

from __future__ import annotations

import itertools
import json
import select
import socket
import threading
import time
from array import array
from collections import Counter, deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from attacks.arena import CONNACK, PUBACK, PUBLISH, Address, ack_code, connect, publish, subscribe
from attacks.identities import DEVICES
from herd import packets, take_processor_at_once

AGAIN_S = 0.5
SESSION_S = 3600
LAST_WAIT_S = 20.0
GROUP = "north-lake"
COMMIT_EVERY_S = 1.0
Seen = dict[int, bytearray]


def device_id(tenant: str, number: int) -> str:
    return f"{tenant}-{number:04}"


@dataclass(slots=True)
class Load:
    """What happened to the messages of a tenant."""

    due: array[float] = field(default_factory=lambda: array("d"))
    latency: array[float] = field(default_factory=lambda: array("d"))
    """In seconds, parallel to `due` (monotonic seconds), in the order of the acknowledgements."""
    acknowledged: Seen = field(default_factory=dict)
    """By device: one byte for each sequence number, 1 if it was acknowledged."""
    scheduled: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    lost_connections: int = 0
    repeated: int = 0
    forged: int = 0
    first_due: float = 0.0


class Device:
    def __init__(self, number: int, name: str) -> None:
        self.number, self.name = number, name
        self.link: socket.socket | None = None
        self.is_up = False
        self.received, self.unsent = bytearray(), bytearray()
        self.waiting: dict[int, tuple[float, int]] = {}
        """By packet id: the due time and the sequence number."""


class Fleet:
    """All devices of a tenant, in one thread."""

    def __init__(self, address: Address, tenant: str, passwords: dict[str, str], rate: float, size: int) -> None:
        self._address, self._tenant, self._passwords = address, tenant, passwords
        self._rate, self._size = rate, size
        self._poll = select.epoll()
        self._devices = [Device(number, device_id(tenant, number)) for number in range(DEVICES)]
        self._by_fd: dict[int, Device] = {}
        self._again: deque[tuple[float, Device]] = deque()
        self.load = Load(acknowledged={number: bytearray() for number in range(DEVICES)})

    def run(self, pipe: Connection) -> None:
        """Connects all devices, reports that, and publishes until told to stop; then reports its `Load`."""
        for device in self._devices:
            self._open(device)
        deadline = time.monotonic() + 60
        while not all(device.is_up for device in self._devices):
            self._turn(0.1)
            if time.monotonic() > deadline:
                raise SystemExit(f"not all devices of {self._tenant} could connect: {dict(self.load.refused)}")
        pipe.send("up")
        start = self.load.first_due = time.monotonic()
        while not pipe.poll():
            for _ in range(50):
                self._publish_due(start)
                due = start + self.load.scheduled / self._rate
                self._turn(max(0.0, due - time.monotonic()))
        deadline = time.monotonic() + LAST_WAIT_S
        while time.monotonic() < deadline and any(device.waiting for device in self._devices):
            self._turn(0.05)
        pipe.send(self.load)

    def _publish_due(self, start: float) -> None:
        load, now = self.load, time.monotonic()
        while (due := start + load.scheduled / self._rate) <= now:
            device, number = self._devices[load.scheduled % DEVICES], load.scheduled // DEVICES
            load.scheduled += 1
            load.acknowledged[device.number].append(0)
            device.waiting[number % 60_000 + 1] = (due, number)
            if device.is_up:
                self._send(device, self._message(device, number))

    def _message(self, device: Device, number: int, *, again: bool = False) -> bytes:
        payload = f"{device.number} {number} ".encode().ljust(self._size, b"x")
        topic = f"devices/{device.name}/telemetry/{self._tenant}"
        return publish(topic, payload, number % 60_000 + 1, again=again)

    def _open(self, device: Device) -> None:
        link = socket.socket()
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.connect_ex(self._address)
        device.link, device.received, device.unsent = link, bytearray(), bytearray()
        self._by_fd[link.fileno()] = device
        self._poll.register(link.fileno(), select.EPOLLIN)
        hello = connect(device.name, device.name, self._passwords[device.name], expiry_s=SESSION_S, clean=False)
        self._send(device, hello)

    def _close(self, device: Device) -> None:
        assert device.link is not None
        self.load.lost_connections += device.is_up
        device.is_up = False
        del self._by_fd[device.link.fileno()]
        self._poll.unregister(device.link.fileno())
        device.link.close()
        self._again.append((time.monotonic() + AGAIN_S, device))

    def _send(self, device: Device, piece: bytes) -> None:
        assert device.link is not None
        device.unsent += piece
        try:
            del device.unsent[: device.link.send(device.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._close(device)
            return
        interest = select.EPOLLIN | (select.EPOLLOUT if device.unsent else 0)
        if device.unsent or not device.is_up:
            self._poll.modify(device.link.fileno(), interest)

    def _turn(self, wait_s: float) -> None:
        now = time.monotonic()
        while self._again and self._again[0][0] <= now:
            self._open(self._again.popleft()[1])
        for fd, event in self._poll.poll(wait_s):
            device = self._by_fd.get(fd)
            if device is None or device.link is None:
                continue
            if event & select.EPOLLOUT:
                self._send(device, b"")
                if fd not in self._by_fd:
                    continue
                if not device.unsent:
                    self._poll.modify(fd, select.EPOLLIN)
            if event & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._receive(device)

    def _receive(self, device: Device) -> None:
        assert device.link is not None
        try:
            chunk = device.link.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._close(device)
            return
        device.received += chunk
        now = time.monotonic()
        for first, body in list(packets(device.received)):
            kind = first >> 4
            if kind == PUBACK:
                self._acknowledged(device, body, now)
            elif kind == CONNACK:
                self._let_in(device, body[1])
            elif kind == PUBLISH:
                self.load.forged += 1
                at = 2 + int.from_bytes(body[:2], "big")
                self._send(device, b"\x40\x02" + body[at : at + 2])

    def _acknowledged(self, device: Device, body: bytes, now: float) -> None:
        if ack_code(body) >= 0x80:
            self.load.refused[f"puback 0x{ack_code(body):02x}"] += 1
            return
        waiting = device.waiting.pop(int.from_bytes(body[:2], "big"), None)
        if waiting is not None:
            due, number = waiting
            self.load.due.append(due)
            self.load.latency.append(now - due)
            self.load.acknowledged[device.number][number] = 1

    def _let_in(self, device: Device, code: int) -> None:
        if code:
            self.load.refused[f"connack 0x{code:02x}"] += 1
            return
        device.is_up = True
        self._send(device, subscribe([f"devices/{device.name}/actions"]))
        for _, number in list(device.waiting.values()):
            if device.is_up:
                self.load.repeated += 1
                self._send(device, self._message(device, number, again=True))


def run_fleet(
    address: Address, tenant: str, passwords: dict[str, str], rate: float, size: int, pipe: Connection
) -> None:
    take_processor_at_once()
    Fleet(address, tenant, passwords, rate, size).run(pipe)


@dataclass(slots=True)
class Read:
    """The records that a tenant's reader has seen."""

    seen: Seen = field(default_factory=lambda: {number: bytearray() for number in range(DEVICES)})
    """By device: how often each sequence number was read."""
    records: int = 0
    strange: int = 0
    again: Counter[str] = field(default_factory=Counter)
    """Why reads or commits had to be started again."""
    behind_s_max: float = 0.0


class Reader:
    """Follows all partitions of telemetry for one tenant, commits once a second, and resumes after an error."""

    def __init__(self, address: Address, user: str, basic: str, tenant: str) -> None:
        import pyarrow.flight as flight

        self._flight, self._tenant = flight, tenant
        self._location = "grpc://{}:{}".format(*address)
        self._header = [(b"authorization", basic.encode())]
        self._next: dict[int, int] = {}
        self._ends: dict[int, int] | None = None
        self._lock = threading.Lock()
        self.read = Read()

    def _options(self, wait_s: float | None = None) -> object:
        more = {} if wait_s is None else {"timeout": wait_s}
        return self._flight.FlightCallOptions(headers=self._header, **more)

    def _act(self, action: str, body: object) -> dict[str, object]:
        client = self._flight.connect(self._location)
        try:
            call = self._flight.Action(action, json.dumps(body).encode())
            answers = list(client.do_action(call, options=self._options(10.0)))
            answer: dict[str, object] = json.loads(answers[0].body.to_pybytes())
            return answer
        finally:
            client.close()

    def _filters(self) -> list[str]:
        return [f"devices/+/telemetry/{self._tenant}"]

    def _watermarks(self) -> dict[int, int]:
        partitions = self._act("offsets", {"filters": self._filters()})["partitions"]
        assert isinstance(partitions, dict)
        return {int(number): int(one["high_watermark"]) for number, one in partitions.items()}

    def run(self, pipe: Connection) -> None:
        """Reports when it follows; when told to stop, reads to the end and reports its `Read`."""
        self._next = dict.fromkeys(self._watermarks(), 0)
        threads = [threading.Thread(target=self._follow, args=(number,), daemon=True) for number in self._next]
        for thread in threads:
            thread.start()
        pipe.send("up")
        while not pipe.poll(COMMIT_EVERY_S):
            self._commit()
        pipe.recv()
        deadline = time.monotonic() + 3 * LAST_WAIT_S
        while self._ends is None and time.monotonic() < deadline:
            try:
                self._ends = self._watermarks()
            except Exception as error:
                self._tell("offsets", error)
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._commit()
        with self._lock:
            pipe.send(self.read)

    def _tell(self, what: str, error: Exception) -> None:
        from attacks.arena import reason_of

        with self._lock:
            self.read.again[f"{what}: {reason_of(error)}"] += 1
        time.sleep(AGAIN_S)

    def _commit(self) -> None:
        with self._lock:
            offsets = {str(number): {"committed": offset} for number, offset in self._next.items()}
        try:
            self._act("commit", {"group": GROUP, "reader_epoch": 1, "offsets": offsets})
        except Exception as error:
            self._tell("commit", error)

    def _is_over(self, partition: int) -> bool:
        return self._ends is not None and self._next[partition] >= self._ends[partition]

    def _follow(self, partition: int) -> None:
        while not self._is_over(partition):
            try:
                self._follow_once(partition)
            except Exception as error:
                self._tell("read", error)

    def _follow_once(self, partition: int) -> None:
        client = self._flight.connect(self._location)
        ticket = {"partition": partition, "filters": self._filters(), "start": self._next[partition], "follow": True}
        try:
            stream = client.do_get(self._flight.Ticket(json.dumps(ticket).encode()), self._options())
            while not self._is_over(partition):
                chunk = stream.read_chunk()
                values = chunk.data.column(chunk.data.schema.get_field_index("value")).to_pylist()
                with self._lock:
                    for value in values:
                        self._count(value)
                    self._next[partition] = json.loads(chunk.app_metadata.to_pybytes())["next"]
        finally:
            client.close()

    def _count(self, value: bytes) -> None:
        words = value.split(b" ", 2)
        self.read.records += 1
        try:
            device, number = int(words[0]), int(words[1])
            seen = self.read.seen[device]
        except (ValueError, IndexError, KeyError):
            self.read.strange += 1
            return
        if len(seen) <= number:
            seen.extend(bytes(number + 1 - len(seen)))
        seen[number] = min(seen[number] + 1, 255)


def run_reader(address: Address, user: str, basic: str, tenant: str, pipe: Connection) -> None:
    Reader(address, user, basic, tenant).run(pipe)


def compare(acknowledged: Seen, seen: Seen) -> tuple[int, int]:
    """The numbers of messages that were acknowledged and never read, and of those read more than once."""
    lost = doubled = 0
    for device, acks in acknowledged.items():
        for ack, count in itertools.zip_longest(acks, seen.get(device, b""), fillvalue=0):
            lost += ack == 1 and count == 0
            doubled += count > 1
    return lost, doubled
