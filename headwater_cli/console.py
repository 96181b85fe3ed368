"""`headwater console`: only the command. `fleet_console` serves the page."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from broker_edge.extras import require
from headwater_cli._output import put

_NEEDED = ("pyarrow", "deltalake", "pydantic", "yaml", "starlette", "uvicorn")


def console(
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings file (default: the defaults of conf/console.yaml).")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Where to listen (default: 127.0.0.1:8090).")
    ] = None,
    root: Annotated[
        str | None,
        typer.Option(
            "--root", envvar="HEADWATER_TABLES", metavar="FOLDER", help="Folder or object store of the action tables."
        ),
    ] = None,
    bronze: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Folder or address of bronze (default: data/bronze/telemetry).")
    ] = None,
    admin: Annotated[
        list[str] | None,
        typer.Option("--admin", metavar="ADDRESS", help="A broker, in place of those in the settings; repeatable."),
    ] = None,
) -> None:
    """Serve a page for a fleet: its brokers, rollouts, devices and quality, until Ctrl-C."""
    require("the console of a fleet", *_NEEDED)
    import_module("fleet_console.memory").keep_little()
    settings = import_module("fleet_console.settings")
    chosen = settings.load_settings(config)
    changes: dict[str, object] = {} if listen is None else {"listen": listen}
    if admin:
        changes["brokers"] = [{"admin": one} for one in admin]
    places = {name: value for name, value in (("root", root), ("bronze", bronze)) if value is not None}
    if places:
        changes["tables"] = {**chosen.tables.model_dump(), **places}
    if changes:
        chosen = settings.checked(chosen, changes)
    import_module("fleet_console.serve").serve(chosen, lambda address: put(f"ready {address}"))


def register(app: typer.Typer) -> None:
    app.command()(console)
