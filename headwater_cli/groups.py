"""`headwater groups`: consumer groups, their finished offsets and lag; `groups rm` removes one."""

from __future__ import annotations

from typing import Annotated

import typer

from broker_edge.errors import NotFoundError
from headwater_cli._options import DEFAULT_SERVER, JsonOption, ServerOption, TimeoutOption, connect
from headwater_cli._output import put_json, put_rows, say


def groups(
    group: Annotated[str | None, typer.Argument(help="Only this group, or `rm`.", show_default=False)] = None,
    removed: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="With `rm`: the group to remove.", show_default=False)
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """List consumer groups: initial, committed and scanned offset of each partition, and the lag.

    `headwater groups rm NAME` removes a group, so that retention no longer waits for it.
    """
    if removed is not None:
        if group != "rm":
            raise typer.BadParameter(f"unexpected argument `{removed}`: did you mean `headwater groups rm {removed}`?")
        with connect(server, timeout) as client:
            # A change is sent once: the leader of a cluster is found by what changes nothing.
            client.offsets(partitions=[])
            client.remove_group(removed)
        say(f"removed consumer group {removed}")
        return
    with connect(server, timeout) as client:
        found = [one for one in client.groups() if group in (None, one.group)]
        if group is not None and not found:
            raise NotFoundError(f"there is no consumer group `{group}` at {client.server}: see `headwater groups`")
        bounds = client.offsets().partitions if any(one.partitions for one in found) else {}
    names = ("group", "reader_epoch", "partition", "name", "initial", "committed", "scanned", "lag")
    rows = []
    for one in found:
        for number, place in one.partitions.items():
            # A group may name partitions that the broker does not have.
            there = bounds.get(number)
            reached = next((at for at in (place.scanned, place.committed, place.initial) if at is not None), None)
            lag = None if reached is None or there is None else max(there.high_watermark - reached, 0)
            name = None if there is None else there.name
            rows.append((one.group, one.reader_epoch, number, name, place.initial, place.committed, place.scanned, lag))
    if json:
        put_json({"groups": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        put_rows(names, rows)


def register(app: typer.Typer) -> None:
    app.command()(groups)
