"""Addresses of MQTT listeners: `mqtt://`, `mqtts://`, `ws://` and `wss://`. Parses only, and opens no connection."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from broker_edge.errors import ConfigError

_PORTS = {"mqtt": 1883, "mqtts": 8883, "ws": 8083, "wss": 8084}
WS_PATH = "/mqtt"


@dataclass(frozen=True, slots=True)
class MqttAddress:
    """`path` counts for WebSocket only."""

    host: str
    port: int = 1883
    scheme: str = "mqtt"
    path: str = WS_PATH

    @property
    def is_tls(self) -> bool:
        return self.scheme in ("mqtts", "wss")

    @property
    def is_websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    @property
    def secure_scheme(self) -> str:
        """The scheme of the same protocol with TLS."""
        return "wss" if self.is_websocket else "mqtts"

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        place = f"{host}:{self.port}"
        if self.scheme == "mqtt":
            return place
        return f"{self.scheme}://{place}{self.path if self.is_websocket and self.path != WS_PATH else ''}"


def parse_mqtt(text: str) -> MqttAddress:
    """`host`, `host:port`, or an address with a scheme; ports are 1883, 8883, 8083 and 8084 by default. Raises
    ConfigError."""
    parts = urlsplit(text if "://" in text else f"mqtt://{text}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    has_path = parts.path.strip("/") != "" and not parts.scheme.startswith("ws")
    is_known = parts.scheme in _PORTS and parts.username is None and not parts.query and not parts.fragment
    if not is_known or not parts.hostname or port == 0 or has_path or parts.netloc.endswith(":"):
        raise ConfigError(
            f"`{_without_user(text)}` is not an address: write HOST:PORT, for example 127.0.0.1:1883, "
            "or mqtts://HOST:PORT, ws://HOST:PORT, wss://HOST:PORT"
        )
    return MqttAddress(parts.hostname, port or _PORTS[parts.scheme], parts.scheme, parts.path or WS_PATH)


def _without_user(text: str) -> str:
    """The text without what stands before `@`, which may be a password."""
    scheme, separator, rest = text.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
