"""A link to a server whose answers take long, as over a satellite."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

_CHUNK = 1 << 16


class SlowLink:
    """Forwards connections from a port of its own to `server`; what the server sends arrives `delay_s` late.

    `address` is where clients connect. The chunks of one connection are delayed one after the other.
    """

    def __init__(self, server: tuple[str, int], delay_s: float) -> None:
        self._server = server
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = [self._listener]
        self.address: tuple[str, int] = self._listener.getsockname()

    def __enter__(self) -> SlowLink:
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
                threading.Thread(target=_forward, args=(client, server, 0.0), daemon=True).start()
                threading.Thread(target=_forward, args=(server, client, self._delay_s), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket, delay_s: float) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            time.sleep(delay_s)
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
