"""`headwater cluster`: three brokers that keep one log. Make one, look at it, try one out on this machine.

`status` and `elect` ask the admin listeners of the nodes; only `init` and the brokers themselves speak with etcd.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

from broker_edge.admin import Admin
from broker_edge.cluster_status import ClusterStatus, ask_cluster
from broker_edge.cluster_status import elect as elect_leader
from broker_edge.errors import HeadwaterError
from broker_edge.local_cluster import LocalCluster
from broker_edge.native import native
from headwater_cli._options import JsonOption, TimeoutOption, finite
from headwater_cli._output import put, put_json, put_rows, say
from headwater_cli.clients import parsed_admins

app = typer.Typer(help="Three brokers that keep one log.", no_args_is_help=True, rich_markup_mode=None)

_COLUMNS = ("node", "role", "epoch", "in sync", "copy", "end", "synced", "committed", "lag", "mqtt", "flight")
_LOOK_S = 0.5
_AGAIN_S = 5.0
"""A broker that ended is started again after this time, so that one can see what the others do meanwhile."""


_AdminsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--admin",
        envvar="HEADWATER_ADMIN",
        metavar="ADDRESS",
        show_default=False,
        help="Admin of a node: http://host:port; repeatable, the first that answers names the others.",
    ),
]


@app.command()
def status(
    admin: _AdminsOption = None,
    json: JsonOption = False,
    timeout: TimeoutOption = 5.0,
) -> None:
    """Show who leads, who is in sync, and how far each node's copy is. Exit code 1 if a node is missing or behind."""
    found = ask_cluster(lambda address: Admin(address, timeout_s=timeout), parsed_admins(admin))
    if json:
        put_json(_document(found))
    else:
        put_rows(_COLUMNS, [_row(found, node) for node in found.nodes])
        say(_sentence(found))
        for node, why in found.silent.items():
            say(f"{node}: {why}")
        for node, ahead_ms in found.clocks_apart.items():
            side = "ahead of" if ahead_ms > 0 else "behind"
            say(
                f"{node}: its clock is {abs(ahead_ms) // 1000} s {side} that of {found.newest['node']}; set both by NTP"
            )
    if not found.is_whole:
        raise typer.Exit(1)


@app.command()
def elect(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node that is to lead.", show_default=False)],
    admin: _AdminsOption = None,
    json: JsonOption = False,
    timeout: TimeoutOption = 15.0,
) -> None:
    """Have the leader give the log to another node that is in sync, for example before its box is worked on.

    Sessions are stored first, as at a stop, and nothing acknowledged is lost; clients connect again to the new leader.
    If that does not take over within 2 s, the old one goes on."""
    found = elect_leader(
        lambda address: Admin(address, timeout_s=timeout), parsed_admins(admin), node, timeout_s=timeout
    )
    if json:
        put_json(_document(found))
    else:
        say(_sentence(found))


def _document(found: ClusterStatus) -> dict[str, object]:
    return {
        "leader": found.leader,
        "epoch": found.epoch,
        "in_sync": list(found.in_sync),
        "whole": found.is_whole,
        "nodes": {node: dict(report) for node, report in found.reports.items()},
        "silent": dict(found.silent),
        "lag": {node: found.lag(node) for node in found.nodes},
    }


def _row(found: ClusterStatus, node: str) -> tuple[object, ...]:
    in_sync = "yes" if node in found.in_sync else "no"
    if (report := found.reports.get(node)) is None:
        return (node, "silent", None, in_sync, *[None] * (len(_COLUMNS) - 4))
    marks = (found.total(node, mark) for mark in ("end", "synced", "high_watermark"))
    at = report["nodes"].get(node) or {}
    places = (at.get("mqtt"), at.get("flight"))
    return (node, report["role"], report["epoch"], in_sync, report["trust"], *marks, found.lag(node), *places)


def _sentence(found: ClusterStatus) -> str:
    leads = "nobody leads" if found.leader is None else f"{found.leader} leads"
    return f"{leads} in epoch {found.epoch}; in sync: {', '.join(found.in_sync) or 'nobody'}"


@app.command()
def init(
    nodes: Annotated[str, typer.Option("--nodes", metavar="NAME,NAME,NAME", help="The names of the three nodes.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Settings of one of the nodes.", show_default=False),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting; repeatable.")
    ] = None,
) -> None:
    """Make the cluster in etcd, and the file with the secret of its log. Once, before the nodes start; can be repeated.

    Copy the file to the other nodes. If `data_dir` has the log of a broker that is stopped, the cluster goes on with
    it; the folders of the other nodes are empty."""
    words = [f"--nodes={nodes}", *([] if config is None else [f"--config={config}"])]
    words += [word for setting in set_ or () for word in ("--set", setting)]
    raise typer.Exit(native().run(["cluster", "init", *words]))


@app.command()
def verify(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DATA_DIR...", help="`data_dir` of two or three stopped nodes.")
    ],
    json: JsonOption = False,
) -> None:
    """Read the copies of stopped nodes and report where they differ. Changes nothing; exit code 1 if they do.

    What is not known to be committed may differ: a node that starts puts it right."""
    words = [*map(str, folders), *(["--json"] if json else [])]
    # The native code handles interrupts; Python's handler would only run after it.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        code = native().run(["log", "compare", *words])
    finally:
        signal.signal(signal.SIGINT, before)
    raise typer.Exit(code)


@app.command()
def certificates(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Gets the files; a new one is made.", show_default=False)
    ],
    nodes: Annotated[str, typer.Option("--nodes", metavar="NAME,...", help="The names of the nodes.")],
) -> None:
    """Make an authority of the cluster and a certificate for each node: ca.pem, ca.key, NAME.pem, NAME.key.

    Existing files stay, so a node can be added; to renew a certificate, remove its two files first. ca.key belongs on
    none of the boxes."""
    # Its library for certificates is loaded by this command only.
    from broker_edge.node_certificates import write_certificates

    for path in write_certificates(folder, [name.strip() for name in nodes.split(",")]):
        put(str(path))


@app.command()
def dev(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Keeps the data; a new one is made.", show_default=False)
    ],
    first_port: Annotated[
        int | None,
        typer.Option("--ports", min=1, metavar="FIRST", help="14 ports from this one on (default: free ones)."),
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            "--for", min=1, callback=finite, metavar="SECONDS", help="Stop after this time (default: at Ctrl-C)."
        ),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", help="Certificates between the nodes, which the folder keeps.")] = False,
    restart: Annotated[
        bool, typer.Option("--restart/--no-restart", help="Start a broker that ended again, after 5 seconds.")
    ] = True,
    json: JsonOption = False,
) -> None:
    """Run etcd and three brokers on this machine, follow who leads, and stop them at Ctrl-C.

    For trying it out: there are no users, and only this machine can connect. Kill a broker to see another one lead. The
    same folder can be run again with its data and its ports."""
    with _asked_to_stop() as stop, LocalCluster(folder, first_port=first_port, tls=tls) as cluster:
        end = None if seconds is None else time.monotonic() + seconds
        cluster.start(is_stopped=stop.is_set)
        for node in cluster.nodes.values():
            say(f"{node.name}: pid {node.process.pid}, MQTT {node.mqtt}, {node.server}, {node.admin}")
        say(f"the logs are {cluster.root}/*.log; Ctrl-C stops the cluster and keeps its data")
        follower = _Follower(cluster, restarts=restart, json=json)
        while not stop.wait(_LOOK_S) and (end is None or time.monotonic() < end):
            follower.look()
        say("stopping")


@contextmanager
def _asked_to_stop() -> Iterator[threading.Event]:
    """Set at the first Ctrl-C or SIGTERM; the second one interrupts."""
    stop = threading.Event()

    def asked(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = [(number, signal.signal(number, asked)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield stop
    finally:
        for number, handler in before:
            signal.signal(number, handler)


class _Follower:
    """Says what has changed since the last look, and starts brokers again."""

    def __init__(self, cluster: LocalCluster, *, restarts: bool, json: bool) -> None:
        self._cluster, self._restarts, self._json = cluster, restarts, json
        self._shown: object = None
        self._ended: dict[str, float] = {}

    def look(self) -> None:
        self._processes()
        try:
            found = self._cluster.status(timeout_s=_LOOK_S)
        except HeadwaterError:
            return
        shown = (found.leader, found.epoch, found.in_sync)
        if shown == self._shown:
            return
        self._shown = shown
        if self._json:
            put_json({"leader": found.leader, "epoch": found.epoch, "in_sync": list(found.in_sync)})
        else:
            say(_sentence(found))

    def _processes(self) -> None:
        now = time.monotonic()
        for name, node in self._cluster.nodes.items():
            if node.process.is_running:
                continue
            if name not in self._ended:
                self._ended[name] = now
                say(f"{name} has ended; the end of {self._cluster.log_file(name)} may say why")
            elif self._restarts and now >= self._ended[name] + _AGAIN_S:
                del self._ended[name]
                node.process.kill()
                node.process.spawn()
                say(f"{name} starts again: pid {node.process.pid}")


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="cluster")
