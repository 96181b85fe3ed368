"""Options shared by several commands. A malformed address is a usage error before anything is opened."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from broker_edge.errors import ConfigError, NotFoundError, RefusedError
from broker_edge.mqtt_address import parse_mqtt
from broker_edge.server_address import DEFAULT_SERVER, nodes_of, parse_server
from broker_edge.times import time_us

if TYPE_CHECKING:
    from broker_edge.client import Client

DEFAULT_MQTT = "127.0.0.1:1883"


def _server(text: str) -> str:
    try:
        return parse_server(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def _servers(texts: list[str] | None) -> list[str] | None:
    return None if texts is None else [_server(text) for text in texts]


def finite(value: float | None) -> float | None:
    """The check of every option that is a number: neither a limit nor a comparison works with `nan`."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a number to count with: write one such as 2.5")
    return value


def _mqtt(text: str) -> str:
    try:
        parse_mqtt(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    return text


def _mqtts(texts: list[str] | None) -> list[str] | None:
    return None if texts is None else [_mqtt(text) for text in texts]


ServerOption = Annotated[
    str,
    typer.Option(
        "--server",
        envvar="HEADWATER_SERVER",
        callback=_server,
        metavar="ADDRESS",
        help="Flight: grpc://host:port; nodes of a cluster: grpc://host:port/host:port.",
    ),
]
ServersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--server",
        envvar="HEADWATER_SERVER",
        callback=_servers,
        metavar="ADDRESS",
        show_default=False,
        help="Flight: grpc://host:port; repeatable.",
    ),
]
MqttOption = Annotated[
    str,
    typer.Option(
        "--mqtt",
        envvar="HEADWATER_MQTT",
        callback=_mqtt,
        metavar="ADDRESS",
        help="MQTT: host:port, mqtts://, ws:// or wss://.",
    ),
]
NodesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        callback=_mqtts,
        metavar="ADDRESS",
        show_default=False,
        help="MQTT of another node of the same cluster; repeatable.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout", min=0.001, callback=finite, metavar="SECONDS", help="Give up after this time (exit code 124)."
    ),
]
LimitOption = Annotated[
    float | None,
    typer.Option(
        "--timeout", min=0.001, callback=finite, metavar="SECONDS", help="Stop after this time (exit code 124)."
    ),
]
CountOption = Annotated[int | None, typer.Option("--count", "-n", min=1, help="Stop after this many messages.")]
FiltersArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILTER]...", show_default=False, help="MQTT filters (default: all topics)."),
]

FROM_HELP = "earliest, latest, telemetry-0:1234[,…], or a time: -1h, 2027-01-15T22:00, a Unix time."
PartitionsOption = Annotated[
    list[str] | None,
    typer.Option("--partition", "-p", metavar="NAME", help="Only this one, such as telemetry-0, or its number."),
]

__all__ = [
    "DEFAULT_MQTT",
    "DEFAULT_SERVER",
    "FROM_HELP",
    "CountOption",
    "FiltersArgument",
    "JsonOption",
    "LimitOption",
    "MqttOption",
    "PartitionsOption",
    "ServerOption",
    "TimeoutOption",
    "connect",
    "numbers_of",
    "parse_mqtt",
    "retries_of",
    "time_of",
]


def connect(server: str, timeout_s: float) -> Client:
    """A client that does not retry: a person at a terminal wants to know at once that no broker answers. Of several
    addresses one leads, or will in a moment."""
    from broker_edge.client import Client  # It loads pyarrow.

    return Client(server, timeout_s=timeout_s, retries=retries_of(server))


def retries_of(server: str) -> int:
    """Of a command: none for one broker. For a cluster a client has as many as an election takes."""
    return int(len(nodes_of(parse_server(server))) > 1)


def time_of(option: str, text: str | None) -> int | None:
    """The Unix µs of a time. Raises BadParameter."""
    if text is None:
        return None
    try:
        return time_us(text)
    except RefusedError as error:
        raise typer.BadParameter(f"{option}: {error}") from error


def numbers_of(client: Client, partitions: list[str] | None) -> list[int] | None:
    """The numbers of partitions by their names; None for none. Raises NotFoundError."""
    if not partitions:
        return None
    if all(text.isascii() and text.isdigit() for text in partitions):
        return [int(text) for text in partitions]
    known = client.offsets().partitions
    numbers = {one.name: number for number, one in known.items()} | {str(number): number for number in known}
    for text in partitions:
        if text not in numbers:
            names = ", ".join(one.name for one in known.values())
            raise NotFoundError(f"there is no partition `{text}` at {client.server}; there are: {names}")
    return [numbers[text] for text in partitions]
