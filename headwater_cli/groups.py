"""`headwater groups`: consumer groups with their finished offsets and lag; `reset` moves one, `rm` removes one."""

from __future__ import annotations

from typing import Annotated

import typer

from broker_edge.errors import NotFoundError, RefusedError
from headwater_cli._nouns import Listed
from headwater_cli._options import DEFAULT_SERVER, JsonOption, ServerOption, TimeoutOption, connect
from headwater_cli._output import put_json, put_rows, say

app = typer.Typer(cls=Listed, help="List, move and remove consumer groups.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


@app.callback()
def _groups() -> None:
    """List, move and remove consumer groups."""


@app.command("list")
def list_(
    group: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this group.", show_default=False)] = None,
    server: ServerOption = DEFAULT_SERVER,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """List consumer groups: initial, committed and scanned offset of each partition, and the lag."""
    with connect(server, timeout) as client:
        found = [one for one in client.groups() if group in (None, one.group)]
        if group is not None and not found:
            raise _none(group, client.server)
        bounds = client.offsets().partitions if any(one.partitions for one in found) else {}
    names = ("group", "reader_epoch", "partition", "name", "initial", "committed", "scanned", "lag")
    rows = []
    for one in found:
        for number, place in one.partitions.items():
            # A group may name partitions that the broker does not have.
            there = bounds.get(number)
            lag = None if place.next is None or there is None else max(there.high_watermark - place.next, 0)
            name = None if there is None else there.name
            rows.append((one.group, one.reader_epoch, number, name, place.initial, place.committed, place.scanned, lag))
    if json:
        put_json({"groups": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        put_rows(names, rows, empty=f"{client.server} has no consumer groups with offsets")


@app.command()
def reset(
    group: NameArgument,
    to: Annotated[
        str,
        typer.Option(
            metavar="POSITION", help="earliest, latest, telemetry-0:1234[,…], or a time: -1h, 2027-01-15T22:00."
        ),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Move a group to other offsets, and end its readers.

    `earliest`, `latest` and times move all partitions in which the group has offsets. A Spark query continues from its
    checkpoint: begin it with a new checkpoint to read from here.
    """
    from broker_edge.positions import parse_position, resolve

    try:
        position = parse_position(to)
    except RefusedError as error:
        raise typer.BadParameter(f"--to: {error}") from error
    with connect(server, timeout) as client:
        # A change is sent once: the leader of a cluster is found by what changes nothing.
        there = client.offsets()
        before = next((one for one in client.groups() if one.group == group), None)
        if before is None:
            raise _none(group, client.server)
        starts = resolve(client, position, None)
        if position.offsets is None:
            starts = {number: at for number, at in starts.items() if number in before.partitions}
        if not starts:
            raise NotFoundError(f"consumer group `{group}` has no offsets: name partitions, as in --to telemetry-0:0")
        if not dry_run:
            client.reset_group(group, starts)
    names = ("partition", "name", "before", "now")
    rows = []
    for number, at in starts.items():
        place = before.partitions.get(number)
        was = None if place is None else place.finished
        rows.append((number, there.partitions[number].name, was, at))
    if json:
        moved = [dict(zip(names, row, strict=True)) for row in rows]
        put_json({"group": group, "log_id": there.log_id, "dry_run": dry_run, "partitions": moved})
    else:
        put_rows(names, rows)
    say(f"would move consumer group {group}" if dry_run else f"moved consumer group {group}; its readers end")


@app.command()
def rm(group: NameArgument, server: ServerOption = DEFAULT_SERVER, timeout: TimeoutOption = 30.0) -> None:
    """Remove a group, so that retention no longer waits for it. A reader that runs creates it again."""
    with connect(server, timeout) as client:
        # A change is sent once: the leader of a cluster is found by what changes nothing.
        client.offsets(partitions=[])
        client.remove_group(group)
    say(f"removed consumer group {group}")


def _none(group: str, server: str) -> NotFoundError:
    return NotFoundError(f"there is no consumer group `{group}` at {server}: see `headwater groups`")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="groups")
