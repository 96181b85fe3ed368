"""`headwater devices simulate`: a fleet of simulated devices against any MQTT broker."""

from __future__ import annotations

import json as json_
import time
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from broker_edge.cli._options import DEFAULT_MQTT, JsonOption, MqttOption, parse_mqtt
from broker_edge.cli._output import put, put_json, say
from broker_edge.errors import ConfigError

app = typer.Typer(help="Devices: simulate a fleet.", no_args_is_help=True)

_EVERY_S = 1.0


@app.callback()
def _noun() -> None:
    """Keeps `simulate` a word of its own while it is the only one."""


@app.command()
def simulate(
    count: Annotated[int, typer.Argument(min=1, metavar="N", help="How many devices.")],
    mqtt: MqttOption = DEFAULT_MQTT,
    interval: Annotated[float, typer.Option(min=0.001, metavar="SECONDS", help="Between two samples.")] = 1.0,
    seconds: Annotated[float | None, typer.Option("--for", min=0.001, help="End after this time.")] = None,
    prefix: Annotated[str, typer.Option(help="Devices are named PREFIX-0001 and so on.")] = "device",
    series: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="JSON lines, an object a line; default: NOAA.")
    ] = None,
    acked: Annotated[Path | None, typer.Option(help="Append each acknowledgement to this file.")] = None,
    json: JsonOption = False,
) -> None:
    """Devices that replay a measured series, carry out commands and report; until Ctrl-C, or --for."""
    if find_spec("gmqtt") is None:
        raise ConfigError("simulated devices need gmqtt: install headwater with the extra `device`")
    from broker_edge.device import FleetSettings, RunningFleet

    host, port = parse_mqtt(mqtt)
    settings = FleetSettings(count=count, host=host, port=port, interval_s=interval, prefix=prefix, acked_path=acked)
    fleet = RunningFleet(settings, _series(series))
    deadline = None if seconds is None else time.monotonic() + seconds
    with fleet:
        say(f"{count} devices publish on {host}:{port}")
        try:
            while deadline is None or time.monotonic() < deadline:
                time.sleep(_EVERY_S if deadline is None else max(0.0, min(_EVERY_S, deadline - time.monotonic())))
        except KeyboardInterrupt:
            say("stopping")
    counts = {**asdict(fleet.counts()), "unacked": fleet.unacked_at_stop}
    if json:
        put_json(counts)
    else:
        put(f"published {counts['published']}, acknowledged {counts['acked']}, refused {counts['refused']}")


def _series(path: Path | None) -> list[dict[str, Any]]:
    if path is None:
        if find_spec("vega_datasets") is None:
            raise ConfigError("the default series comes with the extra `notebooks`; or name a file with --series")
        from pipelines.demo.series import hourly_temperatures

        return [{"temperature_c": celsius} for celsius in hourly_temperatures()]
    found = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            value = json_.loads(line)
        except ValueError as error:
            raise typer.BadParameter(f"{path}:{number} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise typer.BadParameter(f"{path}:{number} is not a JSON object")
        found.append(value)
    return found


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="devices")
