"""`headwater broker`: `headwaterd` in this process, with the same arguments, signals and exit codes."""

from __future__ import annotations

import typer

from headwater_cli._native import run_native


def broker(context: typer.Context) -> None:
    """Run the broker in the foreground; takes the arguments of headwaterd (`headwater broker --help`)."""
    raise typer.Exit(run_native("broker", *context.args))


def register(app: typer.Typer) -> None:
    # Every argument is passed to headwaterd, --help too.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings, add_help_option=False)(broker)
