"""`headwater spark pack`: only the command. `pipelines.spark.pack` makes the archive."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from broker_edge.extras import require
from headwater_cli._output import put, say

app = typer.Typer(help="Prepare jobs for a Spark cluster.", no_args_is_help=True)


@app.callback()
def _spark() -> None:
    """Prepare jobs for a Spark cluster."""


@app.command("pack")
def pack(
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Folder to make.")] = Path("dist/spark"),
    wheel: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Wheel of headwater (default: the packages that run now).")
    ] = None,
    extra: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Extra to include; repeatable (default: spark).")
    ] = None,
    master: Annotated[str, typer.Option(metavar="ADDRESS", help="Master in the printed command.")] = "MASTER",
) -> None:
    """Pack headwater and its dependencies for executors, and print the spark-submit command that uses them."""
    require("this command", "pyspark")
    packer = import_module("pipelines.spark.pack")
    made = packer.pack(to, wheel=wheel, extras=tuple(extra or ("spark",)))
    say(f"{made.packages} packages, {made.size_bytes / 1e6:.0f} MB: {made.folder / packer.ARCHIVE}")
    put(made.submit_line(master=master))


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="spark")
