"""`headwater sub`: subscribe over MQTT, from now on or from an offset of the log."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import typer

from broker_edge.errors import DeadlineError, RefusedError
from broker_edge.positions import parse_position
from headwater_cli._mqtt import Message, Mqtt
from headwater_cli._options import DEFAULT_MQTT, FROM_HELP, CountOption, JsonOption, LimitOption, MqttOption
from headwater_cli._output import payload_json, payload_text, put_fields, put_json, say


def sub(
    filters: Annotated[list[str], typer.Argument(metavar="FILTER...", help="MQTT filters.")],
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="POSITION", help=FROM_HELP),
    ] = None,
    policy: Annotated[
        Literal["none", "earliest", "latest"], typer.Option(help="What to do if the offset is gone (MQTT 5).")
    ] = "none",
    qos: Annotated[int, typer.Option("--qos", "-q", min=0, max=2)] = 1,
    count: CountOption = None,
    timeout: LimitOption = None,
    mqtt: MqttOption = DEFAULT_MQTT,
    protocol: Annotated[Literal["5", "3.1.1"], typer.Option("--protocol", "-V", help="MQTT version.")] = "5",
    client_id: Annotated[str, typer.Option("--id", help="Client id (default: assigned by the broker).")] = "",
    session: Annotated[bool, typer.Option("--session", help="Keep the session for a day; needs --id.")] = False,
    json: JsonOption = False,
) -> None:
    """Print messages: topic and payload, with --from also partition:offset."""
    position = _position(start)
    if session and not client_id:
        raise typer.BadParameter("--session needs --id: the broker finds the session by it")
    if policy != "none" and (protocol != "5" or position is None):
        raise typer.BadParameter("--policy needs --from and --protocol 5")
    deadline = None if timeout is None else time.monotonic() + timeout
    with Mqtt(mqtt, protocol=protocol, client_id=client_id, keep_session=session) as connection:
        for one in filters:
            answer = connection.subscribe(one, qos=qos, position=position, policy=policy)
            for gap in answer.gaps:
                say(f"headwater: offsets {gap} are gone")
        received = 0
        while count is None or received < count:
            left_s = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                message = connection.next_message(left_s)
            except DeadlineError as error:
                wanted = "" if count is None else f" of {count}"
                raise DeadlineError(f"{received}{wanted} messages within {timeout:g} s") from error
            received += 1
            _show(message, as_json=json, with_place=position is not None)


def _position(text: str | None) -> str | None:
    try:
        return None if text is None else parse_position(text).text
    except RefusedError as error:
        raise typer.BadParameter(str(error)) from error


def _show(message: Message, *, as_json: bool, with_place: bool) -> None:
    if as_json:
        found: dict[str, object] = {"topic": message.topic, **payload_json(message.payload), "qos": message.qos}
        found["retain"] = message.retain
        if message.place is not None:
            name, _, offset = message.place.rpartition(":")
            found |= {"partition": name, "offset": int(offset)}
        if message.ts is not None:
            found["ts"] = message.ts
        put_json(found)
        return
    place = (message.place,) if with_place else ()
    put_fields(*place, message.topic, payload_text(message.payload))


def register(app: typer.Typer) -> None:
    app.command()(sub)
