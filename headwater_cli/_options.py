"""Options shared by several commands. A malformed address is a usage error before anything is opened."""

from __future__ import annotations

from typing import Annotated

import typer

from broker_edge.client import DEFAULT_SERVER, Client
from broker_edge.errors import ConfigError
from broker_edge.flight import parse_server

DEFAULT_MQTT_PORT = 1883


def _server(text: str) -> str:
    try:
        return parse_server(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def _mqtt(text: str) -> str:
    parse_mqtt(text)
    return text


def parse_mqtt(text: str) -> tuple[str, int]:
    """`host` or `host:port`, optionally with the prefix `mqtt://`."""
    host, _, port = text.removeprefix("mqtt://").rpartition(":")
    if not host:
        host, port = port, str(DEFAULT_MQTT_PORT)
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise typer.BadParameter(f"`{text}` is not an address: write HOST:PORT, for example 127.0.0.1:1883")
    return host.strip("[]"), int(port)


ServerOption = Annotated[
    str,
    typer.Option(
        "--server", envvar="HEADWATER_SERVER", callback=_server, metavar="ADDRESS", help="Flight: grpc://host:port."
    ),
]
MqttOption = Annotated[
    str,
    typer.Option("--mqtt", envvar="HEADWATER_MQTT", callback=_mqtt, metavar="HOST:PORT", help="MQTT address."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Give up after this time (exit code 124).")
]
LimitOption = Annotated[
    float | None,
    typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Stop after this time (exit code 124)."),
]
CountOption = Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many messages.")]
FiltersArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILTER]...", show_default=False, help="MQTT filters (default: all topics)."),
]

DEFAULT_MQTT = f"127.0.0.1:{DEFAULT_MQTT_PORT}"

__all__ = [
    "DEFAULT_MQTT",
    "DEFAULT_SERVER",
    "CountOption",
    "FiltersArgument",
    "JsonOption",
    "LimitOption",
    "MqttOption",
    "ServerOption",
    "TimeoutOption",
    "connect",
    "parse_mqtt",
]


def connect(server: str, timeout_s: float) -> Client:
    """A client that does not retry: a person at a terminal wants to know at once that no broker answers."""
    return Client(server, timeout_s=timeout_s, retries=0)
