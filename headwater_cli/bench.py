"""`headwater bench`: load on an MQTT broker, with the native load generator in this process."""

from __future__ import annotations

import typer

from headwater_cli._native import run_native


def bench(context: typer.Context) -> None:
    """Measure an MQTT broker: publishers, subscribers, pairs of both, or connections."""
    raise typer.Exit(run_native("bench", *context.args))


def register(app: typer.Typer) -> None:
    # Every argument is passed to the native code, --help too.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings, add_help_option=False)(bench)
