"""`headwater context`: addresses and credentials of a fleet under a name, for `--context` of every other command."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from broker_edge.admin import parse_admin
from broker_edge.credentials import REFERENCE
from broker_edge.errors import ConfigError, NotFoundError
from broker_edge.mqtt_address import parse_mqtt
from broker_edge.server_address import is_tls, nodes_of, parse_server
from headwater_cli._contexts import Contexts, check_name, names
from headwater_cli._nouns import Listed
from headwater_cli._options import JsonOption
from headwater_cli._output import put_fields, put_json, put_rows, say

app = typer.Typer(cls=Listed, help="Keep addresses and credentials of fleets under names.")

_NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=names, show_default=False)]
_PORTS = {"mqtt": 1883, "mqtts": 8883, "flight": 8815, "admin": 8080}


@app.callback()
def _contexts() -> None:
    """Keep addresses and credentials of fleets under names."""


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the contexts; `*` marks the current one."""
    kept = Contexts.load()
    if json:
        rows = [{"name": name, "current": name == kept.current, **one} for name, one in sorted(kept.contexts.items())]
        put_json({"contexts": rows})
        return
    columns = ("server", "mqtt", "admin", "user", "tables")
    listed = [
        (name, "*" if name == kept.current else "", *(one.get(column) for column in columns))
        for name, one in sorted(kept.contexts.items())
    ]
    put_rows(("name", "current", *columns), listed, empty="there are no contexts: see `headwater context add --help`")


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    flight_at: Annotated[
        str | None, typer.Option("--server", metavar="ADDRESS", help="Flight: grpc://host:port.", show_default=False)
    ] = None,
    mqtt_at: Annotated[
        str | None, typer.Option("--mqtt", metavar="ADDRESS", help="MQTT: host:port or mqtts://.", show_default=False)
    ] = None,
    admin_at: Annotated[
        str | None, typer.Option("--admin", metavar="ADDRESS", help="Admin: http://host:port.", show_default=False)
    ] = None,
    user: Annotated[str | None, typer.Option("--user", metavar="NAME")] = None,
    password_from: Annotated[
        str | None, typer.Option("--password-from", "--password", metavar="REFERENCE", help="file:PATH or env:NAME.")
    ] = None,
    token_from: Annotated[
        str | None, typer.Option("--token-from", "--token", metavar="REFERENCE", help="file:PATH or env:NAME.")
    ] = None,
    tls_ca: Annotated[str | None, typer.Option("--tls-ca", metavar="FILE", help="Authority of the brokers.")] = None,
    tls_cert: Annotated[str | None, typer.Option("--tls-cert", metavar="FILE", help="Our certificate.")] = None,
    tls_key: Annotated[str | None, typer.Option("--tls-key", metavar="FILE", help="Its key.")] = None,
    tables_at: Annotated[
        str | None, typer.Option("--tables", metavar="FOLDER", help="Folder or object store of the action tables.")
    ] = None,
    replace: Annotated[bool, typer.Option("--replace", help="In place of one of the same name.")] = False,
    use: Annotated[bool, typer.Option("--use", help="Make it the current context.")] = False,
) -> None:
    """Add a context. Addresses that are not given are those of the same host, with the usual ports."""
    check_name(name)
    kept = Contexts.load()
    if name in kept.contexts and not replace:
        raise typer.BadParameter(f"there is a context `{name}` already: give --replace, or another name")
    for option, value in (("--password-from", password_from), ("--token-from", token_from)):
        if value is not None and REFERENCE.fullmatch(value) is None:
            raise ConfigError(f"{option} is a reference: write file:PATH or env:NAME, never the secret itself")
    if password_from is not None and token_from is not None:
        raise typer.BadParameter("give --password-from or --token-from, not both")
    if password_from is not None and user is None:
        raise typer.BadParameter("--password-from needs --user")
    given = {
        **_addresses(flight_at, mqtt_at, admin_at),
        "user": user,
        "password_from": _kept(password_from),
        "token_from": _kept(token_from),
        "tls_ca": _kept(tls_ca),
        "tls_cert": _kept(tls_cert),
        "tls_key": _kept(tls_key),
        "tables": _kept(tables_at),
    }
    context = {field: value for field, value in given.items() if value is not None}
    if not context:
        raise typer.BadParameter("give at least one address, as in --server grpc://edge-1:8815")
    kept.contexts[name] = context
    if use:
        kept.current = name
    kept.save()
    for field, value in context.items():
        put_fields(field, value)
    how = "is the current context" if kept.current == name else f"use it with --context {name}"
    say(f"added context {name} to {kept.path}; {how}")


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", autocompletion=names, show_default=False, help="Default: current.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show one context."""
    kept = Contexts.load()
    chosen = name or kept.current
    if chosen is None:
        raise NotFoundError("no context is current: name one, or see `headwater context use --help`")
    context = kept[chosen]
    if json:
        put_json({"name": chosen, "current": chosen == kept.current, **context})
        return
    for field, value in context.items():
        put_fields(field, value)


@app.command()
def use(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", autocompletion=names, show_default=False)] = None,
    none: Annotated[bool, typer.Option("--none", help="Use none again.")] = False,
) -> None:
    """Make a context the current one: it counts where neither --context nor the environment says anything."""
    if none == (name is not None):
        raise typer.BadParameter("name a context, or give --none")
    kept = Contexts.load()
    if name is not None:
        kept[name]
    kept.current = name
    kept.save()
    say("no context is current" if name is None else f"{name} is the current context")


@app.command()
def rm(name: _NameArgument) -> None:
    """Remove a context. The files that it refers to stay."""
    kept = Contexts.load()
    kept[name]
    del kept.contexts[name]
    kept.current = None if kept.current == name else kept.current
    kept.save()
    say(f"removed context {name}")


def _kept(text: str | None) -> str | None:
    """A path, or `file:PATH`, from the root: a context is used in other folders too. Other texts stay as they are."""
    if text is None or re.match(r"(?!file:)[a-z0-9]+:", text):
        return text
    scheme, path = ("file:", text.removeprefix("file:")) if text.startswith("file:") else ("", text)
    return f"{scheme}{Path(path).expanduser().absolute()}"


def _addresses(server: str | None, mqtt: str | None, admin: str | None) -> dict[str, str | None]:
    """The three addresses of a broker, or none. Raises BadParameter."""
    try:
        flight = None if server is None else parse_server(server)
        topics = None if mqtt is None else parse_mqtt(mqtt)
        control = None if admin is None else parse_admin(admin)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    if flight is not None:
        host, secure = nodes_of(flight)[0].rpartition("://")[2].rpartition(":")[0], is_tls(flight)
    elif topics is not None:
        host, secure = f"[{topics.host}]" if ":" in topics.host else topics.host, topics.is_tls
    elif control is not None:
        parts = urlsplit(control)
        host, secure = parts.netloc.rpartition(":")[0] or parts.netloc, parts.scheme == "https"
    else:
        return {}
    return {
        "server": flight or f"grpc{'+tls' if secure else ''}://{host}:{_PORTS['flight']}",
        "mqtt": str(topics)
        if topics
        else f"mqtts://{host}:{_PORTS['mqtts']}"
        if secure
        else f"{host}:{_PORTS['mqtt']}",
        "admin": control or f"http{'s' if secure else ''}://{host}:{_PORTS['admin']}",
    }


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="context")
