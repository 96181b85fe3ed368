"""The listeners of a broker as a client sees them: from its settings, or from addresses that somebody gave."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from broker_edge.admin import parse_admin
from broker_edge.clear_text import is_loopback
from broker_edge.mqtt_address import parse_mqtt
from broker_edge.server_address import is_tls, nodes_of, parse_server

_TLS = frozenset({"mqtts", "wss"})
USUAL: Mapping[str, int] = {"mqtt": 1883, "mqtts": 8883, "ws": 8083, "wss": 8084, "flight": 8815, "admin": 8080}
"""The ports of listeners in docs and examples."""


@dataclass(frozen=True, slots=True)
class Door:
    """One address of a listener. `is_beyond`: other machines can reach it. `is_named`: a client gave this host, so the
    certificate has to be for it; the settings know addresses only."""

    listener: str
    host: str
    port: int
    has_tls: bool
    is_beyond: bool
    is_named: bool = True
    needs_proxy: bool = False

    @property
    def where(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.listener} {host}:{self.port}"


def doors_of_addresses(mqtt: str, server: str, admin: str) -> list[Door]:
    """The doors at the addresses that a client uses. Raises ConfigError."""
    at = parse_mqtt(mqtt)
    flight, http = urlsplit(nodes_of(parse_server(server))[0]), urlsplit(parse_admin(admin))
    named = (
        (at.scheme, at.host, at.port, at.is_tls),
        ("flight", flight.hostname or "", flight.port or 0, is_tls(server)),
        ("admin", http.hostname or "", http.port or 0, http.scheme == "https"),
    )
    return [Door(name, host, port, tls, not is_loopback(host)) for name, host, port, tls in named]


def doors_of_settings(settings: Mapping[str, Any]) -> list[Door]:
    """The doors of a broker with these settings, called from its own machine."""
    return list(_of_settings(settings["listeners"]))


def _of_settings(listeners: Mapping[str, Any]) -> Iterator[Door]:
    for name, listener in listeners.items():
        binds = listener["bind"] if isinstance(listener["bind"], list) else [listener["bind"]]
        has_tls = name in _TLS or bool(listener.get("tls", {}).get("cert"))
        for bind in filter(None, binds):
            host, _, port = bind.rpartition(":")
            host = host.strip("[]")
            yield Door(
                listener=name,
                host=_called(host),
                port=int(port),
                has_tls=has_tls,
                is_beyond=not is_loopback(host),
                is_named=False,
                needs_proxy=bool(listener.get("proxy_protocol")),
            )


def _called(host: str) -> str:
    """Where this machine reaches a listener that is bound to `host`: all addresses have one of loopback among them."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if not address.is_unspecified:
        return host
    return "127.0.0.1" if address.version == 4 else "::1"
