"""`headwater clients list|show|history|kick`: the clients of a broker, their traffic, and how to disconnect one."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.live import Live
from rich.table import Table

from broker_edge.admin import DEFAULT_ADMIN, Admin, parse_admin
from broker_edge.errors import ConfigError
from broker_edge.escape import moment
from headwater_cli._options import JsonOption, TimeoutOption, finite
from headwater_cli._output import put_json, put_rows, say, text_cell

app = typer.Typer(help="The clients of a broker.", no_args_is_help=True, rich_markup_mode=None)

_COLUMNS = (
    "client",
    "user",
    "state",
    "address",
    "version",
    "since",
    "subscriptions",
    "in/s",
    "out/s",
    "inflight",
    "lag",
)
_WATCHED_MAX = 200
_ID_CELLS = 16


def parsed_admin(text: str | None) -> str | None:
    """The address as a usage error before anything is opened; None stays None."""
    if text is None:
        return None
    try:
        return parse_admin(text)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error


def parsed_admins(texts: list[str] | None) -> list[str]:
    """Of an option that can be repeated; without it the default."""
    return [parsed_admin(text) or text for text in texts or [DEFAULT_ADMIN]]


AdminOption = Annotated[
    str,
    typer.Option(
        "--admin", envvar="HEADWATER_ADMIN", callback=parsed_admin, metavar="ADDRESS", help="Admin: http://host:port."
    ),
]
ClientArgument = Annotated[str, typer.Argument(metavar="CLIENT_ID", show_default=False)]


@app.command("list")
def list_(
    part: Annotated[
        str | None, typer.Argument(metavar="[PART]", help="Only ids that contain this text.", show_default=False)
    ] = None,
    connected: Annotated[
        bool | None,
        typer.Option(
            "--connected/--away", help="Only connected or only offline clients (default: both).", show_default=False
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of clients.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh repeatedly; only on a terminal.")] = False,
    every: Annotated[
        float, typer.Option("--every", min=0.2, callback=finite, metavar="SECONDS", help="Refresh interval of --watch.")
    ] = 2.0,
    admin: AdminOption = DEFAULT_ADMIN,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """List clients by id: state, connect time, traffic, and how far sessions are behind."""
    broker = Admin(admin, timeout_s=timeout)
    if watch:
        if json or not sys.stdout.isatty():
            raise typer.BadParameter("--watch needs a terminal and cannot be used with --json")
        _watch(broker, part, connected, min(limit or _WATCHED_MAX, _WATCHED_MAX), every)
        return
    found = list(broker.clients(contains=part, connected=connected, limit=limit))
    if json:
        put_json({"clients": found})
    else:
        put_rows(_COLUMNS, [_row(one) for one in found], empty=f"{admin} has no such clients")


@app.command()
def show(
    client_id: ClientArgument,
    admin: AdminOption = DEFAULT_ADMIN,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Show one client: totals, subscriptions, and its position in each partition."""
    found = Admin(admin, timeout_s=timeout).client(client_id)
    if json:
        put_json(found)
        return
    put_rows(_COLUMNS, [_row(found)])
    filters = [(one["filter"], one["qos"], one["replaying"]) for one in found["filters"]]
    put_rows(("filter", "qos", "replaying"), filters, empty="it has no subscriptions")
    names = ("partition", "next", "high watermark", "live")
    cursors = [(one["name"], one["next"], one["high_watermark"], one["live"]) for one in found["cursors"]]
    put_rows(names, cursors, empty="it has no position in any partition")


@app.command()
def history(
    client_id: Annotated[
        str | None, typer.Argument(metavar="[CLIENT_ID]", help="Only this client.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Maximum number of events.")] = 100,
    admin: AdminOption = DEFAULT_ADMIN,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """List what happened to clients recently, the newest first: connects, ends, refusals, kicks. The broker keeps about
    7,000 events in memory; equal ones that follow each other are one row, with the topic of the last refusal."""
    found = list(Admin(admin, timeout_s=timeout).events(client_id=client_id, limit=limit))
    if json:
        put_json({"events": found})
        return
    names = ("last", "client", "what", "reason", "topic", "times", "first", "user", "address", "version")
    whose = f" of {client_id}" if client_id is not None else ""
    put_rows(names, [_event(one) for one in found], empty=f"{admin} knows no events{whose}")


def _event(one: Mapping[str, Any]) -> tuple[object, ...]:
    what = one["what"] if one["act"] is None else f"{one['what']} {one['act']}"
    client = f"{one['client_id']}…" if one["is_cut"] else one["client_id"]
    last, first = moment(one["last_us"]), moment(one["first_us"])
    topic = f"{one['topic']}…" if one["is_topic_cut"] else one["topic"]
    return (last, client, what, one["reason"], topic, one["count"], first, one["user"], one["address"], one["version"])


@app.command()
def kick(
    client_id: ClientArgument,
    session: Annotated[bool, typer.Option("--session", help="End the session too.")] = False,
    admin: AdminOption = DEFAULT_ADMIN,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Close a client's connection. It may reconnect: remove its permissions to keep it out."""
    done = Admin(admin, timeout_s=timeout).kick(client_id, session=session)
    if json:
        put_json(done)
        return
    what = "closed the connection of" if done["was_connected"] else "there was no connection of"
    say(f"{what} {client_id}{'; its session has ended' if done['session_ended'] else ''}")


def _watch(broker: Admin, part: str | None, connected: bool | None, limit: int, every_s: float) -> None:
    with Live(console=Console(), screen=True, auto_refresh=False) as live:
        while True:
            rows = [_row(one) for one in broker.clients(contains=part, connected=connected, limit=limit)]
            live.update(_table(rows), refresh=True)
            time.sleep(every_s)


def _table(rows: Sequence[Sequence[object]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title=f"{len(rows)} clients")
    for name in _COLUMNS:
        # The id comes before the rest: without it a row says nothing.
        table.add_column(name, no_wrap=True, min_width=_ID_CELLS if name == _COLUMNS[0] else None)
    for row in rows:
        table.add_row(*(text_cell(field) for field in row))
    return table


def _row(one: Mapping[str, Any]) -> tuple[object, ...]:
    since = None if one["since_us"] is None else moment(one["since_us"])
    rates = one["per_second"]
    return (
        one["client_id"],
        one["user"],
        "connected" if one["connected"] else "away",
        one["address"],
        one["version"],
        since,
        one["subscriptions"],
        f"{rates['received_messages']:.1f}",
        f"{rates['sent_messages']:.1f}",
        one["inflight_out"],
        one["lag_records"],
    )


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="clients")
