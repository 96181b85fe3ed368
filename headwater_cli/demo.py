"""`headwater demo`: only the command. The demo itself is `pipelines.demo`, which needs Spark and the device agent."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from broker_edge.extras import require
from headwater_cli._options import JsonOption, finite

_NEEDED = ("pyarrow", "pyspark", "delta", "deltalake", "gmqtt", "vega_datasets")


def demo(
    seconds: Annotated[
        float | None,
        typer.Option(
            "--for", min=1, callback=finite, metavar="SECONDS", help="Stop after this time (default: at Ctrl-C)."
        ),
    ] = None,
    headless: Annotated[bool, typer.Option("--headless", help="No live table.")] = False,
    json: JsonOption = False,
    devices: Annotated[int, typer.Option(min=1, max=2_000, help="Simulated devices.")] = 200,
    secure: Annotated[
        bool, typer.Option("--secure", help="Users and TLS as `init` sets them up; each device is a user of its own.")
    ] = False,
    brokers: Annotated[
        int, typer.Option(min=1, max=4, help="Brokers; with more than one, the last restarts in the middle.")
    ] = 1,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="Three brokers as one (needs etcd); the leader is killed in the middle.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Keep log, tables and checkpoints here (default: delete them at the end)."),
    ] = None,
) -> None:
    """Run the whole pipeline on this machine: broker, devices, Spark into Delta, and an action for 20 of the
    devices."""
    require("the demo", *_NEEDED)
    run = import_module("pipelines.demo").run
    given = {"devices": devices, "brokers": brokers, "cluster": cluster, "data": data, "secure": secure}
    raise typer.Exit(int(run(seconds=seconds, headless=headless, as_json=json, **given)))


def register(app: typer.Typer) -> None:
    app.command()(demo)
