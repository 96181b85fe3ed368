"""`headwater config show|check|schema`: the settings of a broker, and whether they are valid.

Only the broker's own code reads the settings; this module knows none of the keys.
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated

import typer

from broker_edge.errors import ConfigError
from broker_edge.native import native
from headwater_cli._options import JsonOption
from headwater_cli._output import put_json, say
from headwater_cli._settings import checked_settings

ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings as YAML.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; overrides the file.")
]

app = typer.Typer(help="Show, check or describe the settings of a broker.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def show(config: ConfigOption = None, settings: SetOption = None, json: JsonOption = False) -> None:
    """Print the settings that result from the defaults, the file, HEADWATER_… variables and --set."""
    if json:
        put_json(json_module.loads(checked_settings(config, settings)))
    else:
        _run("--print-config", config, settings)


@app.command()
def check(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Settings as YAML.", show_default=False)] = None,
    config: ConfigOption = None,
    settings: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Check whether the settings are valid; exit code 5 if not."""
    if file is not None and config is not None:
        raise typer.BadParameter("give the file once: as FILE or with --config")
    try:
        checked_settings(file or config, settings)
    except ConfigError as error:
        if not json:
            raise
        put_json({"valid": False, "error": str(error)})
        raise typer.Exit(5) from error
    if json:
        put_json({"valid": True, "error": None})
    else:
        say("the settings are valid")


@app.command()
def schema(json: JsonOption = True) -> None:
    """Print the JSON schema of the settings, for use in editors."""
    _run("--print-schema", None, None)


def _run(what: str, config: Path | None, settings: list[str] | None) -> None:
    """Lets headwaterd itself print, so that its messages are not duplicated here."""
    arguments = [what, *([] if config is None else ["--config", str(config)])]
    for pair in settings or []:
        arguments += ["--set", pair]
    code = native().run(arguments)
    if code:
        raise typer.Exit(code)


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="config")
