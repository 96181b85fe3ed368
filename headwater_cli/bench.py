"""`headwater bench`: load on an MQTT broker, with the native load generator in this process."""

from __future__ import annotations

import signal

import typer

from broker_edge.native import native


def bench(context: typer.Context) -> None:
    """Measure an MQTT broker: publishers, subscribers, pairs of both, or connections."""
    run = native().bench
    # The native code handles interrupts; Python's handler would only run after it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise typer.Exit(run(context.args))


def register(app: typer.Typer) -> None:
    # Every argument is passed to the native code, --help too.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings, add_help_option=False)(bench)
