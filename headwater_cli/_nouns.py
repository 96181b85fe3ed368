"""The commands, each imported when it is used: `headwater --version` loads none of the libraries behind them.

What `headwater --help` and a shell's completion say of them stands here, so that neither imports them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer._click.shell_completion import CompletionItem
from typer.core import TyperGroup

NOUNS: Mapping[str, str] = {
    "init": "Write settings, users, rights and certificates for a broker.",
    "setup": "Fetch the jars of Spark; write default settings and alerts.",
    "broker": "Run the broker in the foreground.",
    "cluster": "Three brokers that keep one log.",
    "demo": "Run the whole pipeline on this machine.",
    "pub": "Publish messages and wait until they are on the broker's disk.",
    "sub": "Print messages as they come over MQTT.",
    "tail": "Print records with their offsets, over Flight.",
    "topics": "List topics with their offsets.",
    "offsets": "Show the bounds of partitions, and what is lost.",
    "groups": "List, move and remove consumer groups.",
    "console": "Serve a page for a fleet: brokers, rollouts, devices, quality.",
    "top": "Show rates, latencies, lag and disk of brokers.",
    "clients": "List, show and disconnect clients.",
    "access": "Ask whether a client may do something, and which line decides.",
    "trace": "Show where one record is, and who has passed it.",
    "log": "Inspect, repair and copy the log of a broker.",
    "actions": "Send commands and firmware to devices, and follow them.",
    "rollout": "Plan and apply rollouts that are written in files.",
    "artifacts": "Push, list, verify and withdraw firmware.",
    "devices": "Keep the inventory; simulate a fleet; run one device.",
    "jobs": "Run the jobs that copy records into tables and send actions.",
    "spark": "Prepare jobs for a Spark cluster.",
    "context": "Keep addresses and credentials of fleets under names.",
    "config": "Show, check or describe the settings of a broker.",
    "doctor": "Check what this machine needs to run brokers and jobs.",
    "bench": "Measure an MQTT broker.",
    "torture": "Inject faults under load, and check that nothing is lost.",
    "completion": "Print the script that completes commands in a shell.",
    "users": "Add, list and verify the users of a broker.",
}
"""What each is for, in the order of the help. The module has the name of the noun."""
COMPLETE_VARIABLE = "_HEADWATER_COMPLETE"
"""The scripts of shells set it to ask for what can follow."""


@cache
def load(name: str) -> Any:
    """The command or group of a noun. Raises KeyError if there is no such noun."""
    NOUNS[name]
    from headwater_cli._access import give_access
    from headwater_cli._contexts import give_contexts
    from headwater_cli._tables import give_tables

    root = typer.Typer(add_completion=False, rich_markup_mode=None)
    import_module(f"headwater_cli.{name}").register(root)
    give_contexts(root)
    give_tables(root)
    give_access(root)
    return typer.main.get_group(root).commands[name]


class Listed(TyperGroup):
    """The group of a noun that people mostly list: without the name of another command it is `list`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["list", *args]
        return super().parse_args(ctx, args)


class _Commands(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        return load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NOUNS)

    def __len__(self) -> int:
        return len(NOUNS)


class Nouns(TyperGroup):
    """The group of all of them."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands = _Commands()  # type: ignore[assignment]  # nothing is added to it

    def shell_complete(self, ctx: Any, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name, help=text) for name, text in NOUNS.items() if name.startswith(incomplete)]
        return [*found, *super(TyperGroup, self).shell_complete(ctx, incomplete)]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, text in NOUNS.items()])
