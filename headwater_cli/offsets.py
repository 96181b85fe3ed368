"""`headwater offsets list`: the bounds of partitions, and the offset that belongs to a time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headwater_cli._nouns import Listed
from headwater_cli._options import (
    DEFAULT_SERVER,
    FiltersArgument,
    JsonOption,
    PartitionsOption,
    ServerOption,
    TimeoutOption,
    connect,
    numbers_of,
    time_of,
)
from headwater_cli._output import put_json, put_rows, say

app = typer.Typer(cls=Listed, help="Show the bounds of partitions, and what is lost.")


@app.callback()
def _offsets() -> None:
    """Show the bounds of partitions, and what is lost."""


@app.command("list")
def list_(
    filters: FiltersArgument = None,
    partition: PartitionsOption = None,
    time: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Show the first offset at or after this time too: -1h, 2027-01-15T22:00, …"),
    ] = None,
    server: ServerOption = DEFAULT_SERVER,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Show log start, high watermark, epoch, bytes and gaps of the partitions that the filters can reach."""
    time_us = time_of("--time", time)
    with connect(server, timeout) as client:
        found = client.offsets(partitions=numbers_of(client, partition), filters=filters or None, time_us=time_us)
    names = ["partition", "name", "class", "log_start", "high_watermark", "epoch", "bytes"]
    rows = [
        [one.partition, one.name, one.class_name, one.log_start, one.high_watermark, one.epoch, one.bytes]
        for one in found.partitions.values()
    ]
    if time_us is not None:
        names.append("offset_for_time")
        for row, one in zip(rows, found.partitions.values(), strict=True):
            row.append(one.offset_for_time if one.offset_for_time is not None else "-")
    gaps = [[asdict(gap) for gap in one.gaps] for one in found.partitions.values()]
    if json:
        documents = [
            {**dict(zip(names, row, strict=True)), "gaps": of_row} for row, of_row in zip(rows, gaps, strict=True)
        ]
        put_json({"log_id": found.log_id, "partitions": documents})
        return
    put_rows(names, rows, empty=f"no topic at {client.server} matches: see `headwater topics`")
    for one in found.partitions.values():
        for gap in one.gaps:
            say(f"{one.name}: offsets [{gap.start}, {gap.end}) are gone: {gap.reason}")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="offsets")
