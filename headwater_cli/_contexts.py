"""Contexts: addresses, credentials and tables of a fleet under a name, as one user keeps them on one machine.

The file is `contexts.json` in `$XDG_CONFIG_HOME/headwater` (`~/.config/headwater`), or what HEADWATER_CONTEXTS names:

    {"version": 1, "current": NAME | null, "contexts": {NAME: {FIELD: TEXT, …}}}

A context acts through the environment, where every command looks for what it was not given. With `--context` it takes
the place of all variables in `VARIABLES`. Without, the current context counts if none of them is set: credentials go
to no address of another source, unless somebody gives one on the command line.
"""

from __future__ import annotations

import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from broker_edge.credentials import PASSWORD_VARIABLE, TOKEN_VARIABLE, USER_VARIABLE
from broker_edge.draft import open_draft
from broker_edge.errors import ConfigError, NotFoundError
from broker_edge.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE

FILE_VARIABLE = "HEADWATER_CONTEXTS"
NAME_VARIABLE = "HEADWATER_CONTEXT"
VARIABLES: Mapping[str, str] = {
    "server": "HEADWATER_SERVER",
    "mqtt": "HEADWATER_MQTT",
    "admin": "HEADWATER_ADMIN",
    "user": USER_VARIABLE,
    "password_from": PASSWORD_VARIABLE,
    "token_from": TOKEN_VARIABLE,
    "tls_ca": CA_VARIABLE,
    "tls_cert": CERT_VARIABLE,
    "tls_key": KEY_VARIABLE,
    "tables": "HEADWATER_TABLES",
}
"""The fields of a context, and where commands find them."""
_REPLACED = (*VARIABLES.values(), "HEADWATER_ADMIN_AUTH")
_TAKERS = {"server", "mqtt", "admin", "tables"}
"""Commands with one of these parameters have `--context`."""
_VERSION = 1
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(slots=True)
class Contexts:
    """The file. `save` writes it again."""

    path: Path
    current: str | None = None
    contexts: dict[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def load(cls) -> Contexts:
        """Raises ConfigError if there is a file that is not one of ours."""
        path = _path()
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls(path)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the contexts in {path}: {error}") from error
        try:
            return cls(path, *_checked(json.loads(text)))
        except ValueError as error:
            raise ConfigError(
                f"{path} has no contexts of headwater: {error}; move it away, and add them again"
            ) from error

    def __getitem__(self, name: str) -> dict[str, str]:
        """Raises NotFoundError."""
        if name not in self.contexts:
            there = f"; there are: {', '.join(sorted(self.contexts))}" if self.contexts else ""
            raise NotFoundError(f"there is no context `{name}`{there} (see `headwater context add --help`)")
        return self.contexts[name]

    def save(self) -> None:
        """For this user only: addresses and the places of secrets concern nobody else."""
        path = self.path.resolve()  # People keep such files elsewhere, with a link here.
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f"{path.name}.draft")
        document = {"version": _VERSION, "current": self.current, "contexts": self.contexts}
        with open_draft(draft, text=True) as out:
            os.fchmod(out.fileno(), 0o600)
            out.write(json.dumps(document, indent=2, sort_keys=True) + "\n")
            out.flush()
            os.fsync(out.fileno())
        draft.replace(path)


def check_name(name: str) -> str:
    """A name that needs no quotes in a shell. Raises BadParameter."""
    if _NAME.fullmatch(name) is None:
        raise typer.BadParameter(f"`{name}` is no name of a context: write up to 64 letters, digits, `.`, `_` and `-`")
    return name


def use_context(name: str | None) -> str | None:
    """Puts this context into the environment, if one is named. Raises ConfigError and NotFoundError."""
    if name is not None:
        found = Contexts.load()[name]
        for variable in _REPLACED:
            os.environ.pop(variable, None)
        _put(found)
    return name


def _use_current(name: str | None) -> str | None:
    """The same, and the current context where none is named and the environment says nothing."""
    if name is None and not any(os.environ.get(variable) for variable in _REPLACED):
        contexts = Contexts.load()
        if contexts.current is not None:
            _put(contexts[contexts.current])
    return use_context(name)


def give_contexts(app: typer.Typer) -> None:
    """Adds `--context` to every command of `app` that takes the address of a broker, or tables."""
    for command in app.registered_commands:
        if command.callback is not None and _TAKERS & inspect.signature(command.callback).parameters.keys():
            command.callback = _with_context(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            give_contexts(group.typer_instance)


def _with_context(command: Callable[..., Any]) -> Callable[..., Any]:
    def run(*, of_context: str | None, **given: Any) -> Any:
        return command(**given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = inspect.signature(command, eval_str=True).parameters.values()
    option = _option(_use_current)
    added = inspect.Parameter("of_context", keyword, default=None, annotation=option)
    parameters = [*(one.replace(kind=keyword) for one in own), added]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run


def _put(context: Mapping[str, str]) -> None:
    for name, value in context.items():
        os.environ[VARIABLES[name]] = value


def names(incomplete: str) -> list[str]:
    """Of the contexts, for the completion of a shell."""
    try:
        return [name for name in sorted(Contexts.load().contexts) if name.startswith(incomplete)]
    except ConfigError:
        return []


def _option(callback: Callable[[str | None], str | None]) -> Any:
    """Read before all others: they look into the environment."""
    return Annotated[
        str | None,
        typer.Option(
            "--context",
            envvar=NAME_VARIABLE,
            metavar="NAME",
            is_eager=True,
            callback=callback,
            autocompletion=names,
            show_default=False,
            help="Addresses and credentials of `headwater context`.",
        ),
    ]


ContextOption = _option(use_context)
"""Before the command."""


def _path() -> Path:
    given = os.environ.get(FILE_VARIABLE)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "headwater" / "contexts.json"


def _checked(document: Any) -> tuple[str | None, dict[str, dict[str, str]]]:
    """The current context and all of them. Raises ValueError."""
    if not isinstance(document, dict) or document.get("version") != _VERSION:
        raise ValueError(f"it is not of version {_VERSION}")
    current, contexts = document.get("current"), document.get("contexts")
    if not isinstance(contexts, dict):
        raise ValueError("it has no object `contexts`")
    for name, context in contexts.items():
        if not isinstance(context, dict) or not all(
            place in VARIABLES and isinstance(value, str) for place, value in context.items()
        ):
            raise ValueError(f"context `{name}` has something else than texts of {', '.join(VARIABLES)}")
    if current is not None and current not in contexts:
        raise ValueError(f"its current context `{current}` is not there")
    return current, contexts
