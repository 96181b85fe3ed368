"""`headwater broker`: `headwaterd` in this process, with the same arguments, signals and exit codes."""

from __future__ import annotations

import signal

import typer

from broker_edge.native import native


def broker(context: typer.Context) -> None:
    """Run the broker in the foreground; takes the arguments of headwaterd (`headwater broker --help`)."""
    run = native().run
    # The native signal handling also calls the previous handler: Python's would turn a clean stop into an interrupt.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise typer.Exit(run(context.args))


def register(app: typer.Typer) -> None:
    # Every argument is passed to headwaterd, --help too.
    settings = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(context_settings=settings, add_help_option=False)(broker)
