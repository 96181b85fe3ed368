"""Where the tables of devices and actions are, for every command that works on them: `--root`, a settings file, or
HEADWATER_TABLES.

A command takes a parameter `tables`; `give_tables` turns it into the options. Nothing here opens a table.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from broker_edge.extras import require
from headwater_cli._options import DEFAULT_SERVER

if TYPE_CHECKING:
    from broker_edge.access import BrokerAccess
    from pipelines.settings import Settings
    from sinks.store import StoreAccess

DEFAULT_ROOT = "data/tables"
_NEEDED = ("pyarrow", "pydantic", "yaml")

_RootOption = Annotated[
    str,
    typer.Option(
        "--root", envvar="HEADWATER_TABLES", metavar="FOLDER", help="Folder or object store of the action tables."
    ),
]
_ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="Settings file: its actions.root, storage and tenant count."),
]


@dataclass(frozen=True, slots=True)
class Tables:
    """The folder of the tables. Without settings an object store is reached as the environment says."""

    root: str
    settings: Settings | None = None

    @property
    def access(self) -> StoreAccess:
        from sinks.store import StoreAccess  # `sinks` loads libraries that most commands do not need.

        return StoreAccess.of({}) if self.settings is None else self.settings.storage.access()

    @property
    def tenant(self) -> str:
        from sinks.tables import DEFAULT_TENANT

        return DEFAULT_TENANT if self.settings is None else self.settings.tenant


def settings_of(config: Path | None, *, option: str) -> Settings:
    """The settings in a file, or the defaults. Raises SettingsError, and MissingExtraError for `option`."""
    require(option, *_NEEDED)
    settings: Settings = import_module("pipelines.settings").load_settings(config)
    return settings


def brokers_of(servers: list[str] | None, *, every: bool, settings: Settings | None) -> tuple[BrokerAccess, ...]:
    """The brokers that --server or --all name. Raises ConfigError and BadParameter."""
    from broker_edge.access import from_environment

    if not every:
        return from_environment(servers or [DEFAULT_SERVER])
    if servers:
        raise typer.BadParameter(
            "give --all or --server, not both; the variable HEADWATER_SERVER counts as --server, and so does a context"
        )
    return (settings or settings_of(None, option="--all")).fleet()


def require_tables() -> None:
    """Raises MissingExtraError if the library for Delta tables is missing."""
    require("a Delta table", "deltalake")


def give_tables(app: typer.Typer) -> None:
    """Adds the options to every command of `app` that takes `tables`."""
    for command in app.registered_commands:
        if command.callback is not None and "tables" in inspect.signature(command.callback).parameters:
            command.callback = _with_tables(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            give_tables(group.typer_instance)


def _with_tables(command: Callable[..., Any]) -> Callable[..., Any]:
    def run(*, context: typer.Context, root: str, config: Path | None, **given: Any) -> Any:
        return command(tables=_chosen(context, root, config), **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    added = [
        inspect.Parameter("context", keyword, annotation=typer.Context),
        inspect.Parameter("root", keyword, default=DEFAULT_ROOT, annotation=_RootOption),
        inspect.Parameter("config", keyword, default=None, annotation=_ConfigOption),
    ]
    parameters: list[inspect.Parameter] = []
    for one in inspect.signature(command, eval_str=True).parameters.values():
        parameters += added if one.name == "tables" else [one.replace(kind=keyword)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _chosen(context: typer.Context, root: str, config: Path | None) -> Tables:
    """`--root` counts most, then the settings, then the variable."""
    if config is None:
        return Tables(root)
    settings = settings_of(config, option="--config")
    source = context.get_parameter_source("root")
    is_given = source is not None and source.name == "COMMANDLINE"
    return Tables(root if is_given else settings.actions.root, settings)
