"""Free ports of this machine, for servers that must find the same ones again, or that cannot tell which one they got.

They are below those that Linux gives to outgoing connections (`ip_local_port_range`: from 32768 on), so that no
connection takes one before the server has it, or while the server is down.
"""

from __future__ import annotations

import contextlib
import random
import socket

from broker_edge.errors import ConfigError

PORT_MIN, PORT_END = 11_000, 21_000


def free_ports(count: int, *, begin: int | None = None) -> list[int]:
    """Ports on 127.0.0.1 in a row, from `begin` on, or from the first row behind it that is free. By default the search
    begins anywhere, at a multiple of `count`: two at the same time hardly find the same row. Raises ConfigError."""
    rows = (PORT_END - PORT_MIN) // count
    first = PORT_MIN + random.randrange(rows) * count if begin is None else begin
    for _ in range(rows + 1):
        if _are_free(first, count):
            return list(range(first, first + count))
        first = first + count if first + 2 * count <= PORT_END else PORT_MIN
    raise ConfigError(
        f"no {count} ports in a row are free on 127.0.0.1 from {PORT_MIN} to {PORT_END}: stop what listens there"
    )


def _are_free(first: int, count: int) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
        except OSError:
            return False
    return True
