"""Ports for servers that need the same address after each start, or that nobody serves.

They are below the range from which the system takes client ports, so that no connection can take them, and above those
of `broker_edge.free_ports`; each worker of a run has its own ports. A server that is started only once binds to port 0
instead.
"""

from __future__ import annotations

import itertools
import os
import random
import socket

_FIRST, _END = 21_000, 32_000
_WORKERS_MAX = 8
_EACH = (_END - _FIRST) // _WORKERS_MAX
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _WORKERS_MAX
_next = itertools.count(random.randrange(_EACH))


def free_port() -> int:
    """A port of this machine without a listener; a different one with each call."""
    for number in _next:
        port = _FIRST + number % _EACH * _WORKERS_MAX + _worker
        with socket.socket() as probe:
            # Like servers do: ignore a port in TIME_WAIT.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("the count has no end")
