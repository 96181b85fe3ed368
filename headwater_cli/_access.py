"""Options of credentials and certificates, the same for MQTT, Flight and admin HTTP, before or after the command.

Every command that takes an address takes them too: `give_access` adds them to it. They are passed on in the environment
(`HEADWATER_USER` and so on), where every client of this process finds them.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Annotated, Any

import typer

from broker_edge.credentials import PASSWORD_VARIABLE, REFERENCE, TOKEN_VARIABLE, USER_VARIABLE
from broker_edge.errors import ConfigError
from broker_edge.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE

UserOption = Annotated[str | None, typer.Option("--user", metavar="NAME", help="User; also HEADWATER_USER.")]
PasswordOption = Annotated[
    str | None,
    typer.Option("--password-from", metavar="REFERENCE", help="file:PATH or env:NAME; also HEADWATER_PASSWORD_FROM."),
]
TokenOption = Annotated[
    str | None,
    typer.Option("--token-from", metavar="REFERENCE", help="file:PATH or env:NAME; also HEADWATER_TOKEN_FROM."),
]
CaOption = Annotated[
    str | None, typer.Option("--tls-ca", metavar="FILE", help="Authority of the broker; also HEADWATER_TLS_CA.")
]
CertOption = Annotated[
    str | None, typer.Option("--tls-cert", metavar="FILE", help="Our certificate; also HEADWATER_TLS_CERT.")
]
KeyOption = Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its key; also HEADWATER_TLS_KEY.")]

_OPTIONS = {
    "user": (UserOption, USER_VARIABLE),
    "password_from": (PasswordOption, PASSWORD_VARIABLE),
    "token_from": (TokenOption, TOKEN_VARIABLE),
    "tls_ca": (CaOption, CA_VARIABLE),
    "tls_cert": (CertOption, CERT_VARIABLE),
    "tls_key": (KeyOption, KEY_VARIABLE),
}
_ADDRESSES = {"server", "mqtt", "admin"}
_SECRETS = ("password_from", "token_from")


def use(**given: str | None) -> None:
    """Puts the options that were given into the environment. A password replaces a token there, and the reverse. Raises
    ConfigError for a secret that is not a reference; what is incomplete is reported by the client that needs it."""
    chosen = {name: value for name, value in given.items() if value is not None}
    for name in _SECRETS:
        if name in chosen and REFERENCE.fullmatch(chosen[name]) is None:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} is a reference: write file:PATH or env:NAME, never the secret itself")
    for one, other in (_SECRETS, _SECRETS[::-1]):
        if one in chosen and other not in chosen:
            os.environ.pop(_OPTIONS[other][1], None)
            if one == "token_from" and "user" not in chosen:
                os.environ.pop(USER_VARIABLE, None)
    for name, value in chosen.items():
        os.environ[_OPTIONS[name][1]] = value


def given_to(context: typer.Context, **own: str | None) -> dict[str, str | None]:
    """The options of a command and those before it; the command's count first."""
    before = context.find_root().params
    return {name: own[name] if own.get(name) is not None else before.get(name) for name in _OPTIONS}


def give_access(app: typer.Typer) -> None:
    """Adds the options to every command of `app` that takes the address of a broker."""
    for command in app.registered_commands:
        if command.callback is not None and _ADDRESSES & inspect.signature(command.callback).parameters.keys():
            command.callback = _with_access(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            give_access(group.typer_instance)


def _with_access(command: Callable[..., Any]) -> Callable[..., Any]:
    own = list(inspect.signature(command, eval_str=True).parameters.values())

    def run(**given: Any) -> Any:
        use(**{name: given.pop(name) for name in _OPTIONS})
        return command(**given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [one.replace(kind=keyword) for one in own]
    added = [
        inspect.Parameter(name, keyword, default=None, annotation=annotation)
        for name, (annotation, _) in _OPTIONS.items()
    ]
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in [*own, *added]}
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run
