"""Under whose name a command writes into the tables: the one that a broker has verified, or the one that is given."""

from __future__ import annotations

import getpass
from dataclasses import dataclass
from typing import Annotated

import typer

from broker_edge.admin import Admin
from broker_edge.errors import ConfigError, NotFoundError, RefusedError
from headwater_cli.clients import parsed_admin

_ASK_S = 10.0

ByOption = Annotated[str | None, typer.Option("--by", envvar="HEADWATER_BY", help="Your name (default: your login).")]
SignInOption = Annotated[
    str | None,
    typer.Option(
        "--admin",
        metavar="ADDRESS",
        callback=parsed_admin,
        help="Admin address of a broker: it verifies your name (--user, --password-from), which replaces --by.",
    ),
]


@dataclass(frozen=True, slots=True)
class Author:
    name: str
    confirmed_by: str | None = None
    """The log id of the broker that verified the name."""


def author(by: str | None, admin: str | None) -> Author:
    """Raises ConfigError if the broker knows another name than `by`, or none."""
    if admin is None:
        return Author(by or getpass.getuser())
    try:
        found = Admin(admin, timeout_s=_ASK_S).whoami()
    except NotFoundError as error:
        raise ConfigError(f"the broker at {admin} is too old to say who you are: omit --admin, or update it") from error
    except RefusedError as error:
        raise ConfigError(f"the broker at {admin} does not let you in and verifies no name: {error}") from error
    user = found.get("user")
    if not user:
        raise ConfigError(
            f"the broker at {admin} does not know your name: give --user with --password-from, or --token-from "
            "(docs/security.md), or omit --admin"
        )
    if by is not None and by != user:
        raise ConfigError(f"--by {by}: the broker at {admin} knows you as {user}; omit --by (or unset HEADWATER_BY)")
    return Author(str(user), str(found["log_id"]))
