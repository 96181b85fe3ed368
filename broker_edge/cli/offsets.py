"""`headwater offsets`: the bounds of partitions, and which offset belongs to a time."""

from __future__ import annotations

from typing import Annotated

import typer

from broker_edge.cli._options import (
    DEFAULT_SERVER,
    FiltersArgument,
    JsonOption,
    ServerOption,
    TimeoutOption,
    connect,
)
from broker_edge.cli._output import put_json, put_rows


def offsets(
    filters: FiltersArgument = None,
    partition: Annotated[list[int] | None, typer.Option("--partition", "-p", min=0, help="Only this number.")] = None,
    time: Annotated[int | None, typer.Option(help="Add the first offset at or after this time (Unix µs).")] = None,
    server: ServerOption = DEFAULT_SERVER,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Show log start, high watermark, epoch and bytes of the partitions that the filters can reach."""
    with connect(server, timeout) as client:
        found = client.offsets(partitions=partition or None, filters=filters or None, time_us=time)
    names = ["partition", "name", "class", "log_start", "high_watermark", "epoch", "bytes"]
    rows = [
        [one.partition, one.name, one.class_name, one.log_start, one.high_watermark, one.epoch, one.bytes]
        for one in found.partitions.values()
    ]
    if time is not None:
        names.append("offset_for_time")
        for row, one in zip(rows, found.partitions.values(), strict=True):
            row.append(one.offset_for_time if one.offset_for_time is not None else "-")
    if json:
        put_json({"log_id": found.log_id, "partitions": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        put_rows(names, rows)


def register(app: typer.Typer) -> None:
    app.command()(offsets)
