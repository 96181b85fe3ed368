"""`headwater log`: look at, mend and copy the log of a broker. The native tools do the work and print what they find.

All but `backup --server` work on a folder that no broker has open, without a broker. Exit codes: 0 done, 1 failed or
damage found, 2 usage, 4 refused, 130 interrupted; each of them can be run again.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from broker_edge.broker import native
from headwater_cli._options import JsonOption, connect
from headwater_cli._output import put_json, say

app = typer.Typer(help="The log of a broker: look at it, mend it, copy it.", no_args_is_help=True)

DirArgument = Annotated[Path, typer.Argument(metavar="DATA_DIR", help="`data_dir` of the broker.", show_default=False)]
OnlineOption = Annotated[
    bool, typer.Option("--online", help="While a broker has it open: everything but the newest segments.")
]


def _run(verb: str, *words: object) -> None:
    """Runs a native tool in this process; its exit code ends the command."""
    run = native().run
    # The native side handles interrupts: Python's handler would come only after it.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        code = run(["log", verb, *(str(word) for word in words)])
    finally:
        signal.signal(signal.SIGINT, before)
    raise typer.Exit(code)


def _each(option: str, values: list[str] | None) -> list[str]:
    return [f"{option}={value}" for value in values or ()]


def _switch(option: str, wanted: bool) -> list[str]:
    return [option] if wanted else []


@app.command()
def verify(data_dir: DirArgument, online: OnlineOption = False, json: JsonOption = False) -> None:
    """Read every byte and say what is whole and what is lost. Changes nothing; exit code 1 when there is damage."""
    _run("verify", data_dir, *_switch("--online", online), *_switch("--json", json))


@app.command()
def dump(
    data_dir: DirArgument,
    partition: Annotated[list[str] | None, typer.Option("--partition", "-p", help="For example telemetry-0.")] = None,
    first: Annotated[int, typer.Option("--from", min=0, help="First offset.")] = 0,
    until: Annotated[int | None, typer.Option("--until", min=0, help="Offset after the last.")] = None,
    filter_: Annotated[list[str] | None, typer.Option("--filter", help="MQTT filter.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Records at most.")] = None,
    online: OnlineOption = False,
    json: JsonOption = False,
) -> None:
    """Print records as JSON lines, and the offsets that are lost between them."""
    del json  # There is no other form.
    words = [*_each("--partition", partition), *_each("--filter", filter_), f"--from={first}"]
    words += [] if until is None else [f"--until={until}"]
    words += [] if limit is None else [f"--limit={limit}"]
    _run("dump", data_dir, *words, *_switch("--online", online))


@app.command()
def repair(
    data_dir: DirArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    template: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=TEMPLATE", help="Routing template of a class, when log.meta is gone."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Make log.meta and indexes again and move aside what can not be used. Deletes nothing."""
    _run("repair", data_dir, *_switch("--dry-run", dry_run), *_each("--template", template), *_switch("--json", json))


@app.command()
def backup(
    dest: Annotated[
        str, typer.Argument(metavar="DEST", help="Folder; with --server a name in the broker's log.backup_dir.")
    ],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="Of a broker that does not run.", show_default=False)
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="ADDRESS", help="A running broker: grpc://host:port.")
    ] = None,
    json: JsonOption = False,
    timeout: Annotated[float, typer.Option("--timeout", min=1, metavar="SECONDS", help="With --server.")] = 3600.0,
) -> None:
    """Copy the log up to its high watermarks; again into the same place copies only what is new."""
    if (data_dir is None) == (server is None):
        raise typer.BadParameter("give one of --data-dir and --server")
    if data_dir is not None:
        _run("backup", data_dir, dest, *_switch("--json", json))
    assert server is not None
    with connect(server, timeout) as client:
        report = client.backup(dest, timeout_s=timeout)
    _show_backup(report, json)


def _show_backup(report: dict[str, Any], json: bool) -> None:
    if json:
        put_json(report)
        return
    for one in report["partitions"]:
        say(f"{one['name']}: offsets [{one['log_start']}, {one['high_watermark']})")
        for start, end in one["damaged"]:
            say(f"  offsets [{start}, {end}) are damaged and not in it")
    say(f"{report['copied']} segments copied ({report['copied_bytes']} bytes), {report['reused']} were there")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of a backup.", show_default=False)],
    data_dir: Annotated[Path, typer.Argument(metavar="DATA_DIR", help="Not there yet.", show_default=False)],
    same_id: Annotated[
        bool, typer.Option("--same-id", help="Keep the log id: only when the log that was backed up is gone.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Make a log of a backup, with a log id of its own."""
    _run("restore", source, data_dir, *_switch("--same-id", same_id), *_switch("--json", json))


@app.command()
def purge(
    data_dir: DirArgument,
    device: Annotated[str | None, typer.Option("--device", help="All it sent and got, and its state.")] = None,
    filter_: Annotated[list[str] | None, typer.Option("--filter", help="MQTT filter of topics.")] = None,
    json: JsonOption = False,
) -> None:
    """Take the records of a device, or of topics, out of the log for good; their offsets become a gap."""
    if (device is None) == (not filter_):
        raise typer.BadParameter("give one of --device and --filter")
    chosen = [f"--device={device}"] if device is not None else _each("--filter", filter_)
    _run("purge", data_dir, *chosen, *_switch("--json", json))


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="log")
