"""A relay between clients and a server, on a port of its own. What happens on the way is decided by `forward`."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import Self

CHUNK_BYTES = 1 << 20


class Relay:
    """Forwards connections to `server`. `on_request` and `on_answer` are called with each chunk before it goes on.

    `address` is where clients connect.
    """

    def __init__(
        self,
        server: tuple[str, int],
        *,
        on_request: Callable[[bytes], None] = lambda _: None,
        on_answer: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._server, self._on_request, self._on_answer = server, on_request, on_answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.address: tuple[str, int] = self._listener.getsockname()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in self._sockets:
            # Only this wakes a thread that waits in the socket.
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                self._sockets += [client, server]
                ways = ((client, server, self._on_request), (server, client, self._on_answer))
                for way in ways:
                    threading.Thread(target=_forward, args=way, daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket, before: Callable[[bytes], None]) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK_BYTES):
            before(data)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
