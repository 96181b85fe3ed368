"""`headwater init`: a folder with everything that a secured broker, its devices and its jobs need."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from broker_edge.errors import ConfigError
from headwater_cli._options import JsonOption
from headwater_cli._output import put, put_json, say

if TYPE_CHECKING:
    from broker_edge.secured_folder import SecuredFolder


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="New or empty folder.", show_default=False)],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            metavar="NAME",
            help="Name or address by which clients call the broker, in its certificate; repeatable, the first is used "
            "by the jobs. localhost is always one of them.",
        ),
    ] = None,
    bind: Annotated[
        str, typer.Option("--bind", metavar="ADDRESS", help="Where TLS listeners listen; 0.0.0.0: on every interface.")
    ] = "127.0.0.1",
    port: Annotated[
        list[str] | None,
        typer.Option("--port", metavar="NAME=PORT", help="Another port of mqtt, mqtts, flight or admin; repeatable."),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option(
            "--device",
            metavar="ID",
            help="A device, which gets a user; repeatable (default in a new folder: device-0001).",
        ),
    ] = None,
    beside: Annotated[
        Path | None,
        typer.Option(
            "--beside",
            metavar="FIRST",
            help="Folder of a first broker: write another broker with its users, rights and authority.",
        ),
    ] = None,
    client_certificates: Annotated[
        bool,
        typer.Option(
            "--client-certificates", help="Devices have certificates of their own for MQTT over TLS, and no passwords."
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Add what is missing to a folder with files; overwrites nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Write settings, users with passwords, rights, certificates and settings of jobs; print the next commands."""
    # Its library for certificates is loaded by this command only.
    from broker_edge.secured_folder import HOSTS, PORTS, SecuredFolder

    root = folder.absolute()
    if root.exists() and not force and (not root.is_dir() or any(root.iterdir())):
        raise ConfigError(f"{folder} is not empty: name a new folder, or add what is missing to it with --force")
    if beside is not None and client_certificates:
        raise typer.BadParameter(f"--client-certificates: a broker beside {beside} does as {beside} does")
    if beside is not None and device:
        raise ConfigError(
            f"the devices of a broker beside {beside} are those of {beside}: add them there, with "
            f"headwater init {beside} --force --device …, and copy its file `users`"
        )
    # A folder with settings keeps its devices: renewing a certificate lets nobody else in.
    kept = (root / "broker.yaml").exists()
    secured = SecuredFolder(
        root,
        devices=tuple(dict.fromkeys(device or ([] if kept else ["device-0001"]))),
        hosts=tuple(dict.fromkeys([*(host or []), *HOSTS])),
        bind=bind,
        ports=_ports(port or [], PORTS),
        beside=None if beside is None else beside.absolute(),
        client_certificates=client_certificates,
    )
    made = secured.write()
    commands = next_commands(secured, kept=kept)
    entry = f'- {{server: "{secured.server()}", name: {root.name}}}'
    if json:
        put_json({"files": [str(path) for path in made], "commands": commands, "broker": entry})
        return
    say(f"wrote {len(made)} files into {root}; keys and passwords can be read by this user only")
    if root / "tls/broker.pem" in made:
        say("the certificate of the broker is valid for a year, and its authority for ten")
        say(f"to renew it, remove {root}/tls/broker.pem and broker.key, run `{renewal(secured)}`, send SIGHUP")
    if secured.beside is not None and not kept:
        say(f"add to `brokers` of {secured.beside}/pipelines.yaml: {entry}")
    if kept:
        say("if the broker runs, send it SIGHUP: it then reads users and certificate again")
    say("next:")
    for command in commands:
        put(command)


def renewal(secured: SecuredFolder) -> str:
    """The command that writes a removed certificate again, with the names that clients check in it."""
    from broker_edge.secured_folder import HOSTS

    words = ["headwater", "init", str(secured.root), "--force"]
    if secured.beside is not None:
        words += ["--beside", str(secured.beside)]
    for host in secured.hosts:
        words += [] if host in HOSTS else ["--host", host]
    return shlex.join(words)


def next_commands(secured: SecuredFolder, *, kept: bool) -> list[str]:
    """A broker, and for a new first one a message of a device and the table that it becomes. The addresses in settings
    that were kept may be other ones than those of `secured`."""
    broker = ["headwater", "broker", "--config", str(secured.broker)]
    if secured.beside is not None or kept:
        return [shlex.join(broker)]
    device = secured.devices[0]
    publish = ["headwater", "pub", f"devices/{device}/telemetry", '{"celsius": 20.5}', "--id", device]
    publish += ["--mqtt", secured.mqtts(), "--tls-ca", str(secured.ca)]
    if secured.devices_ca.exists():
        cert, key = secured.certificate(device)
        publish += ["--tls-cert", str(cert), "--tls-key", str(key)]
    else:
        publish += ["--user", device, "--password-from", f"file:{secured.password(device)}"]
    jobs = ["headwater", "jobs", "run", "telemetry", "--available-now", "--config", str(secured.pipelines)]
    return [shlex.join(words) for words in (broker, publish, jobs)]


def _ports(texts: list[str], defaults: Mapping[str, int]) -> dict[str, int]:
    ports = dict(defaults)
    for text in texts:
        name, _, number = text.partition("=")
        if name not in ports or not (number.isascii() and number.isdigit()) or not 0 < int(number[:6]) < 65_536:
            raise typer.BadParameter(f"--port {text}: write NAME=PORT with {', '.join(ports)}")
        ports[name] = int(number)
    return ports


def register(app: typer.Typer) -> None:
    app.command()(init)
