"""`headwater log`: inspect, repair and copy the log of a broker. The native tools do the work and print the results.

All commands except `segments` and `backup --server` work on a folder that no broker has open. Exit codes: 0 done, 1
failed or damage found, 2 usage, 4 refused, 130 interrupted. Each command can be repeated.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from broker_edge.admin import DEFAULT_ADMIN, Admin
from broker_edge.escape import moment
from broker_edge.native import native
from headwater_cli._options import JsonOption, TimeoutOption, connect, finite
from headwater_cli._output import put_json, put_rows, say
from headwater_cli.clients import AdminOption

app = typer.Typer(help="The log of a broker: inspect, repair, copy.", no_args_is_help=True)

_PARTITION = ("partition", "segments", "bytes", "goes next", "rule", "in s", "held by")
_SEGMENT = ("partition", "base", "next", "bytes", "first", "last", "state", "index")

DirArgument = Annotated[Path, typer.Argument(metavar="DATA_DIR", help="`data_dir` of the broker.", show_default=False)]
OnlineOption = Annotated[bool, typer.Option("--online", help="The broker is running: skip the newest segments.")]


def _run(verb: str, *words: object) -> None:
    """Runs a native tool in this process; its exit code ends the command."""
    run = native().run
    # The native code handles interrupts; Python's handler would only run after it.
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
def segments(
    partition: Annotated[
        str | None, typer.Option("--partition", "-p", metavar="NAME", help="Only this one, such as telemetry-0.")
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of segments.")] = None,
    admin: AdminOption = DEFAULT_ADMIN,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """List the segments of a running broker, which of them retention removes next, and what is kept aside."""
    found = Admin(admin, timeout_s=timeout).segments(partition=partition, limit=limit)
    if json:
        put_json(found)
        return
    put_rows(_PARTITION, [_goes_next(one) for one in found["partitions"]])
    put_rows(_SEGMENT, [_segment(one) for one in found["segments"]])
    kept = [(one["name"], file["name"], file["bytes"]) for one in found["partitions"] for file in one["kept_files"]]
    if kept:
        put_rows(("partition", "kept aside", "bytes"), kept)


def _goes_next(one: Mapping[str, Any]) -> tuple[object, ...]:
    goes = one["goes_next"] or {"base": None, "rule": None, "in_s": None, "held_by": []}
    in_s = None if goes["in_s"] is None else f"{goes['in_s']:.0f}"
    return (one["name"], one["segments"], one["bytes"], goes["base"], goes["rule"], in_s, ", ".join(goes["held_by"]))


def _segment(one: Mapping[str, Any]) -> tuple[object, ...]:
    first, last = (None if one[name] is None else moment(one[name]) for name in ("first_us", "last_us"))
    return (one["name"], one["base"], one["next"], one["bytes"], first, last, one["state"], one["index"])


@app.command()
def verify(data_dir: DirArgument, online: OnlineOption = False, json: JsonOption = False) -> None:
    """Read every byte and report what is intact and what is lost. Changes nothing; exit code 1 if there is damage."""
    _run("verify", data_dir, *_switch("--online", online), *_switch("--json", json))


@app.command()
def dump(
    data_dir: DirArgument,
    partition: Annotated[list[str] | None, typer.Option("--partition", "-p", help="For example telemetry-0.")] = None,
    first: Annotated[int, typer.Option("--from", min=0, help="First offset.")] = 0,
    until: Annotated[int | None, typer.Option("--until", min=0, help="Offset after the last one.")] = None,
    filter_: Annotated[list[str] | None, typer.Option("--filter", help="MQTT filter.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Maximum number of records.")] = None,
    online: OnlineOption = False,
    json: JsonOption = False,
) -> None:
    """Print records as JSON lines, and the lost offsets between them."""
    del json  # The output is always JSON.
    words = [*_each("--partition", partition), *_each("--filter", filter_), f"--from={first}"]
    words += [] if until is None else [f"--until={until}"]
    words += [] if limit is None else [f"--limit={limit}"]
    _run("dump", data_dir, *words, *_switch("--online", online))


@app.command()
def repair(
    data_dir: DirArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be done.")] = False,
    template: Annotated[
        list[str] | None,
        typer.Option(metavar="CLASS=TEMPLATE", help="Routing template of a class, if log.meta is lost."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Rebuild log.meta and indexes, and move unusable files to quarantine. Deletes nothing."""
    _run("repair", data_dir, *_switch("--dry-run", dry_run), *_each("--template", template), *_switch("--json", json))


@app.command()
def backup(
    dest: Annotated[
        str, typer.Argument(metavar="DEST", help="Folder; with --server a name in the broker's log.backup_dir.")
    ],
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", help="`data_dir` of a stopped broker.", show_default=False)
    ] = None,
    server: Annotated[
        str | None, typer.Option("--server", metavar="ADDRESS", help="A running broker: grpc://host:port.")
    ] = None,
    json: JsonOption = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, callback=finite, metavar="SECONDS", help="Time limit with --server.")
    ] = 3600.0,
) -> None:
    """Copy the log up to its high watermarks. A second backup to the same place copies only new segments."""
    if (data_dir is None) == (server is None):
        raise typer.BadParameter("give either --data-dir or --server")
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
            say(f"  offsets [{start}, {end}) are damaged and not in the backup")
    say(f"{report['copied']} segments copied ({report['copied_bytes']} bytes), {report['reused']} already existed")


@app.command()
def restore(
    source: Annotated[Path, typer.Argument(metavar="SRC", help="Folder of a backup.", show_default=False)],
    data_dir: Annotated[
        Path, typer.Argument(metavar="DATA_DIR", help="A folder that does not exist yet.", show_default=False)
    ],
    same_id: Annotated[
        bool, typer.Option("--same-id", help="Keep the log id; only if the original log no longer exists.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Create a log from a backup, with a new log id."""
    _run("restore", source, data_dir, *_switch("--same-id", same_id), *_switch("--json", json))


@app.command()
def purge(
    data_dir: DirArgument,
    device: Annotated[
        str | None, typer.Option("--device", help="Everything it sent and received, and its state.")
    ] = None,
    filter_: Annotated[list[str] | None, typer.Option("--filter", help="MQTT filter of topics.")] = None,
    json: JsonOption = False,
) -> None:
    """Remove the records of a device, or of topics, from the log permanently; their offsets become a gap."""
    if (device is None) == (not filter_):
        raise typer.BadParameter("give either --device or --filter")
    chosen = [f"--device={device}"] if device is not None else _each("--filter", filter_)
    _run("purge", data_dir, *chosen, *_switch("--json", json))


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="log")
