"""`headwater pub`: publish over MQTT and wait for the acknowledgements."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import typer

from broker_edge.errors import RefusedError
from headwater_cli._mqtt import WINDOW, Ack, Mqtt
from headwater_cli._options import DEFAULT_MQTT, JsonOption, MqttOption, finite
from headwater_cli._output import put_fields, put_json, say


@dataclass(slots=True)
class _Progress:
    """Counts acknowledgements and prints them."""

    topic: str
    show: bool
    as_json: bool
    acked: int = 0

    def take(self, ack: Ack) -> None:
        if ack.reason is not None:
            raise RefusedError(
                f"the broker refused a message to `{self.topic}` after {self.acked} acknowledgements: {ack.reason}"
            )
        self.acked += 1
        if not self.show:
            return
        if self.as_json:
            name, _, offset = (ack.place or "").partition(":")
            place = {"partition": name, "offset": int(offset)} if offset else {"partition": None, "offset": None}
            put_json({"topic": self.topic, **place, "durability": ack.durability})
        else:
            put_fields(ack.place, ack.durability)


def pub(
    topic: Annotated[str, typer.Argument(help="Topic.")],
    message: Annotated[str | None, typer.Argument(help="Payload as text, or use --file.", show_default=False)] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="PATH", help="Payload from a file, - for stdin.")
    ] = None,
    lines: Annotated[bool, typer.Option("--lines", "-l", help="Each line of --file is a message.")] = False,
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2)] = 1,
    retain: Annotated[bool, typer.Option("--retain", "-r", help="The broker keeps it for new subscribers.")] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Publish everything this many times.")] = 1,
    rate: Annotated[
        float | None, typer.Option(min=0.001, callback=finite, help="Messages per second (default: no limit).")
    ] = None,
    ack: Annotated[bool, typer.Option("--ack", help="Print partition:offset and durability of each message.")] = False,
    mqtt: MqttOption = DEFAULT_MQTT,
    protocol: Annotated[Literal["5", "3.1.1"], typer.Option("--protocol", "-V", help="MQTT version.")] = "5",
    client_id: Annotated[str, typer.Option("--id", help="Client id (default: assigned by the broker).")] = "",
    json: JsonOption = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=0.001, callback=finite, help="Stop after this many seconds without an acknowledgement (exit code 124)."
        ),
    ] = 30.0,
) -> None:
    """Publish messages, and return when the broker has acknowledged all of them."""
    if (message is None) == (file is None):
        raise typer.BadParameter("give either MESSAGE or --file")
    if lines and file is None:
        raise typer.BadParameter("--lines needs --file")
    if ack and (protocol != "5" or qos == 0):
        raise typer.BadParameter("--ack needs --protocol 5 and --qos 1: offsets travel in the PUBACK of MQTT 5")
    payloads = _payloads(message if message is not None else _open(file or "-"), lines, count)
    progress = _Progress(topic, show=ack, as_json=json)
    begin = time.monotonic()
    with Mqtt(mqtt, protocol=protocol, client_id=client_id, ask_places=ack, timeout_s=timeout) as connection:
        for number, payload in enumerate(payloads):
            if rate is not None:
                # Send times are planned from the beginning, so that a delayed send does not lower the rate.
                time.sleep(max(begin + number / rate - time.monotonic(), 0.0))
            while connection.outstanding >= WINDOW:
                progress.take(connection.next_ack(timeout))
            connection.publish(topic, payload, qos=qos, retain=retain)
        while connection.outstanding:
            progress.take(connection.next_ack(timeout))
    seconds = max(time.monotonic() - begin, 1e-6)
    if json and not ack:
        put_json({"topic": topic, "published": progress.acked, "seconds": round(seconds, 3)})
    elif sys.stderr.isatty() or progress.acked > 1:
        word = "acknowledged" if qos else "sent"
        say(f"{progress.acked} {word} in {seconds:.2f} s ({progress.acked / seconds:,.0f}/s)")


def _open(file: str) -> BinaryIO:
    """Opens the file of payloads before anything is sent."""
    try:
        return sys.stdin.buffer if file == "-" else Path(file).open("rb")
    except OSError as error:
        raise typer.BadParameter(f"cannot read `{file}`: {error.strerror}") from error


def _payloads(source: str | BinaryIO, lines: bool, count: int) -> Iterator[bytes]:
    """The payloads in order. Without repetition, lines of a stream are sent as they arrive."""
    if isinstance(source, str):
        yield from repeat(source.encode(), count)
        return
    with source:
        if lines and count == 1:
            yield from (line.rstrip(b"\r\n") for line in source)
            return
        whole = source.read()
    parts = [line.rstrip(b"\r") for line in whole.removesuffix(b"\n").split(b"\n")] if lines else [whole]
    for _ in range(count):
        yield from parts


def register(app: typer.Typer) -> None:
    app.command()(pub)
