"""`headwater rollout`: an action as a file that people review and keep. The keys are in docs/actions.md §8."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker_edge.errors import ConfigError, SettingsError
from broker_edge.extras import require
from headwater_cli._author import ByOption, SignInOption
from headwater_cli._options import JsonOption
from headwater_cli._output import put, put_fields, put_json, say
from headwater_cli._tables import Tables
from headwater_cli.actions import open_desk, planned

if TYPE_CHECKING:
    from actions.rollout_file import Rollout

app = typer.Typer(help="Rollouts as files: plan, then apply.", no_args_is_help=True)

FileArgument = Annotated[Path, typer.Argument(metavar="FILE.yaml", show_default=False, help="The rollout file.")]


@app.command()
def plan(file: FileArgument, tables: Tables, by: ByOption = None, json: JsonOption = False) -> None:
    """Show which devices the rollout would select, in which wave, and which would be skipped and why. Writes nothing.

    With --config the brokers of the settings are asked which logs they serve.
    """
    rollout = _read(file)
    with open_desk(tables, by) as desk:
        planned(desk, rollout.order, rollout.action_id, tables.settings, json=json)


@app.command("apply")
def apply_(
    file: FileArgument, tables: Tables, by: ByOption = None, admin: SignInOption = None, json: JsonOption = False
) -> None:
    """Insert the action of the file, unless the engine would refuse it. The same file again changes nothing; another
    content under its id is refused."""
    rollout = _read(file)
    with open_desk(tables, by, admin) as desk:
        from actions.rollouts import apply

        limits = None if tables.settings is None else tables.settings.actions.limits()
        inserted = apply(desk, rollout, limits=limits)
    if json:
        put_json({"action_id": rollout.action_id, "inserted": inserted})
        return
    id_ = rollout.action_id
    put_fields(f"{id_} was inserted" if inserted else f"{id_} exists with the same content: nothing was changed")
    say(f"follow it with `headwater actions watch {id_}`")


@app.command()
def example() -> None:
    """Print a rollout file to begin with."""
    _needs_yaml()
    from actions.rollout_file import EXAMPLE

    for line in EXAMPLE.splitlines():
        put(line)
    say("Save it, for example with `headwater rollout example > rollout.yaml`, and change it.")


def _read(file: Path) -> Rollout:
    _needs_yaml()
    from actions.rollout_file import read_rollout

    try:
        return read_rollout(file)
    except SettingsError as error:
        raise ConfigError(str(error)) from error  # A line for each mistake.


def _needs_yaml() -> None:
    require("a rollout", "deltalake", "yaml")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="rollout")
