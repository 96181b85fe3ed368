"""`headwater topics list`: the topics of a broker with their partitions and offsets."""

from __future__ import annotations

import typer

from headwater_cli._nouns import Listed
from headwater_cli._options import (
    DEFAULT_SERVER,
    FiltersArgument,
    JsonOption,
    ServerOption,
    TimeoutOption,
    connect,
)
from headwater_cli._output import put_json, put_rows

app = typer.Typer(cls=Listed, help="List topics with their offsets.")


@app.callback()
def _topics() -> None:
    """List topics with their offsets."""


@app.command("list")
def list_(
    filters: FiltersArgument = None,
    server: ServerOption = DEFAULT_SERVER,
    json: JsonOption = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """List topics with their partition and the offsets [first, next) between which they have records."""
    with connect(server, timeout) as client:
        found = client.topics(filters or None)
    names = ("topic", "class", "partition", "name", "first", "next")
    rows = [(one.topic, one.class_name, one.partition, one.name, one.first, one.next) for one in found]
    if json:
        put_json({"topics": [dict(zip(names, row, strict=True)) for row in rows]})
    else:
        whose = "of these filters" if filters else "yet"
        put_rows(names, rows, empty=f"{client.server} has no topics {whose}")


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="topics")
