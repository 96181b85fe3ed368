"""The network between the nodes, and between them and etcd: connections that go through this process.

Each node has a front, the address that others are told for it. Who connects is known from the first bytes, the `Hello`
of docs/cluster-protocol.md. In each direction between two ends bytes pass, wait (a cut: nothing is lost, as with TCP
over a cable that is plugged in again), or pass slowly. A front refuses connections while its process is down, because
the other nodes conclude from a refusal that it is gone.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

Address = tuple[str, int]

_CHUNK = 64 * 1024
_HELLO_BYTES_MAX = 512
_LOOK_S = 0.2
# A direction that is slowed passes this much at a time, so that it can be opened again soon.
_SLICES_PER_S = 20
# Length, checksum, kind, version, shard; then two versions, the log id, and the names of the cluster and the node.
_HELLO_AT = 12 + 2 + 16


class Direction:
    """What happens to bytes from one end to another."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_held = False
        self._bytes_s: int | None = None

    def hold(self) -> None:
        self._set(True, None)

    def slow(self, bytes_s: int) -> None:
        self._set(False, bytes_s)

    def open(self) -> None:
        self._set(False, None)

    def _set(self, is_held: bool, bytes_s: int | None) -> None:
        with self._changed:
            self._is_held, self._bytes_s = is_held, bytes_s
            self._changed.notify_all()

    def wait_open(self, is_over: threading.Event) -> int:
        """Waits while it is held; returns how many bytes to read at most."""
        with self._changed:
            while self._is_held and not is_over.is_set():
                self._changed.wait(_LOOK_S)
            return _CHUNK if self._bytes_s is None else max(1, self._bytes_s // _SLICES_PER_S)

    def pace(self, count: int, is_over: threading.Event) -> bool:
        """Takes the time that so many bytes take. Returns False if it is held now, so that they have to wait."""
        with self._changed:
            bytes_s = self._bytes_s
            if self._is_held:
                return False
        if bytes_s is not None:
            is_over.wait(count / bytes_s)
        return True


class Front:
    """An address behind which a process listens. `name` is the end behind it; `caller` is who connects, where that is
    not said by the first bytes."""

    def __init__(self, links: Links, name: str, port: int, *, caller: str | None = None) -> None:
        self._links, self._name, self._caller = links, name, caller
        self.address: Address = ("127.0.0.1", port)
        self.target: Address | None = None
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.up()

    def up(self) -> None:
        with self._lock:
            if self._listener is None:
                listener = socket.create_server(self.address, backlog=64)
                self._listener = listener
                threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def down(self) -> None:
        """From now on connections are refused."""
        with self._lock:
            listener, self._listener = self._listener, None
        if listener is not None:
            # To close it does not wake the thread that accepts.
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            first = b"" if self._caller is not None else _first_frame(connection)
            caller = self._caller or caller_of(first)
            there, back = self._links.direction(caller, self._name), self._links.direction(self._name, caller)
            there.wait_open(self._links.is_over)
            if self.target is None:
                raise ConnectionRefusedError("the process has not started")
            behind = socket.create_connection(self.target, timeout=5)
            behind.settimeout(None)
            behind.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            behind.sendall(first)
        except (OSError, ValueError):
            _reset(connection)
            return
        for source, sink, direction in ((connection, behind, there), (behind, connection, back)):
            threading.Thread(target=self._pump, args=(source, sink, direction), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, direction: Direction) -> None:
        over = self._links.is_over
        try:
            while not over.is_set():
                most = direction.wait_open(over)
                data = source.recv(most)
                while not direction.pace(len(data), over) and not over.is_set():
                    direction.wait_open(over)
                if not data:
                    break
                sink.sendall(data)
        except OSError:
            pass
        # Both threads of a connection end with the first: neither end is ever half open.
        for one in (sink, source):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class Links:
    """All fronts, and the state of each direction. Every change takes effect at once, also on open connections."""

    def __init__(self, tell: Callable[[str], None] = lambda text: None) -> None:
        """`tell` gets a line for each change."""
        self._tell = tell
        self.is_over = threading.Event()
        self._lock = threading.Lock()
        self._directions: dict[tuple[str, str], Direction] = {}
        self._fronts: list[Front] = []

    def __enter__(self) -> Links:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.is_over.set()
        for front in self._fronts:
            front.down()
        self.heal()

    def front(self, name: str, port: int, *, caller: str | None = None) -> Front:
        made = Front(self, name, port, caller=caller)
        self._fronts.append(made)
        return made

    def direction(self, source: str, sink: str) -> Direction:
        with self._lock:
            return self._directions.setdefault((source, sink), Direction())

    def cut(self, one: str, others: Iterable[str]) -> None:
        """Holds both directions between one end and each of the others."""
        others = list(others)
        self._tell(f"cut {one} from {' and '.join(others)}")
        for other in others:
            self.direction(one, other).hold()
            self.direction(other, one).hold()

    def cut_one_way(self, sources: Iterable[str], sinks: Iterable[str]) -> None:
        sources, sinks = list(sources), list(sinks)
        self._tell(f"cut from {' and '.join(sources)} to {' and '.join(sinks)}")
        for source in sources:
            for sink in sinks:
                if source != sink:
                    self.direction(source, sink).hold()

    def slow(self, sources: Iterable[str], sinks: Iterable[str], bytes_s: int) -> None:
        sources, sinks = list(sources), list(sinks)
        self._tell(f"{bytes_s} bytes/s from {' and '.join(sources)} to {' and '.join(sinks)}")
        for source in sources:
            for sink in sinks:
                if source != sink:
                    self.direction(source, sink).slow(bytes_s)

    def heal(self) -> None:
        """Opens everything."""
        self._tell("links open")
        with self._lock:
            directions = list(self._directions.values())
        for direction in directions:
            direction.open()


def caller_of(first: bytes) -> str:
    """The node that a `Hello` names. Raises ValueError for anything else."""
    if len(first) <= _HELLO_AT or first[8] != 1:
        raise ValueError("not a Hello")
    at = _HELLO_AT
    length = first[at]
    at += 1 + length
    if at >= len(first) or at + 1 + first[at] > len(first):
        raise ValueError("a Hello that is too short")
    return first[at + 1 : at + 1 + first[at]].decode()


def _first_frame(connection: socket.socket) -> bytes:
    """The first frame, whole. Raises OSError or ValueError if none comes in time."""
    connection.settimeout(5)
    received = b""
    while True:
        data = connection.recv(_HELLO_BYTES_MAX)
        if not data:
            raise ConnectionResetError("it ended before its Hello")
        received += data
        if len(received) >= 4:
            whole = 4 + int(struct.unpack_from("<I", received)[0])
            if whole > _HELLO_BYTES_MAX:
                raise ValueError("longer than a Hello")
            if len(received) >= whole:
                connection.settimeout(None)
                return received


def _reset(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
