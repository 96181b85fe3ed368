"""Addresses of Flight: `grpc://host:port`, and the nodes of a cluster as `grpc://host:port/host:port/host:port`.

Apart from the client, so that a program can check an address without a Flight library.
"""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from broker_edge.errors import ConfigError

DEFAULT_PORT = 8815
DEFAULT_SERVER = f"grpc://127.0.0.1:{DEFAULT_PORT}"
_PORT = re.compile(r":[0-9]+$")


def parse_server(text: str) -> str:
    """`host`, `host:port`, `grpc://host:port` or `grpc+tls://…` as a Flight location; raises ConfigError.

    The nodes of a cluster stand in one address: `grpc://host:port/host:port/host:port` (`nodes_of`). Two spellings of
    one address give one location. Credentials do not belong into an address, and errors do not repeat what stands
    before an `@`.
    """
    if "@" in text:
        # Before it is parsed: a password may hold a character that ends the host.
        raise ConfigError(
            "a server address has a user or a password in it: write grpc://HOST:PORT, and give the credentials apart "
            "(settings user and password, or HEADWATER_USER and HEADWATER_PASSWORD_FROM)"
        )
    scheme, _, places = text.rpartition("://")
    scheme = scheme.lower() or "grpc"
    first, *others = places.rstrip("/").split("/")
    nodes = [_place(scheme, first), *(_place(scheme, other) for other in others)]
    # A further node without a port would rather be a path, which a broker does not have.
    if scheme not in ("grpc", "grpc+tcp", "grpc+tls") or None in nodes or not all(_PORT.search(one) for one in others):
        raise ConfigError(
            f"`{text}` is not a server address: write grpc://HOST:PORT, for example grpc://127.0.0.1:8815, and the "
            "nodes of a cluster as grpc://HOST:PORT/HOST:PORT/HOST:PORT"
        )
    if len(set(nodes)) < len(nodes):
        raise ConfigError(f"`{text}` names a node twice: write each node of the cluster once")
    return f"{scheme}://{'/'.join(map(str, nodes))}"


def _place(scheme: str, text: str) -> str | None:
    """`host:port`; None for anything else."""
    parts = urlsplit(f"{scheme}://{text}")
    try:
        port = parts.port
    except ValueError:
        return None
    if not parts.hostname or port == 0 or parts.query or parts.fragment:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{host}:{port or DEFAULT_PORT}"


def nodes_of(server: str) -> tuple[str, ...]:
    """The address of each node that a location names; of a broker alone, its own."""
    scheme, _, places = server.partition("://")
    return tuple(f"{scheme}://{place}" for place in places.split("/"))


def is_tls(server: str) -> bool:
    """Whether an address asks for TLS. A scheme may be written in capitals (RFC 3986 §3.1)."""
    return server.lower().startswith("grpc+tls://")
