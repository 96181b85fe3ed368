"""`headwater access`: may this client do this on this topic, and which line of the ACL file decides."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from broker_edge.admin import DEFAULT_ADMIN, Admin
from headwater_cli._options import JsonOption, TimeoutOption
from headwater_cli._output import put_fields, put_json
from headwater_cli.clients import AdminOption

_DENIED = 1


def access(
    access: Annotated[
        Literal["publish", "subscribe", "receive", "replay"],
        typer.Option("--access", help="What the client wants to do.", show_default=False),
    ],
    topic: Annotated[
        str, typer.Option("--topic", help="A topic; with --access subscribe a filter.", show_default=False)
    ],
    for_user: Annotated[
        str | None,
        typer.Option(
            "--for-user", metavar="NAME", help="The client's user (default: without credentials).", show_default=False
        ),
    ] = None,
    client_id: Annotated[
        str | None, typer.Option("--client-id", metavar="ID", help="The client's id.", show_default=False)
    ] = None,
    admin: AdminOption = DEFAULT_ADMIN,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Ask a broker whether its files allow an access, and which line decides. Nothing is published or changed. Exit
    code 0 if it is allowed, 1 if not. --user is whoever asks, as everywhere."""
    found = Admin(admin, timeout_s=timeout).access(access, topic, user=for_user, client_id=client_id)
    if json:
        put_json(found)
    else:
        put_fields("allowed" if found["allowed"] else "not allowed", found["reason"])
        if found["line"] is not None:
            put_fields(f"line {found['line']['number']}", found["line"]["rule"])
        # A broker of an older version does not name it.
        if found.get("file") is not None:
            put_fields("ACL file", found["file"])
        for note in found["notes"]:
            put_fields("note", note)
    raise typer.Exit(0 if found["allowed"] else _DENIED)


def register(app: typer.Typer) -> None:
    app.command()(access)
