"""`headwater setup spark` and `files`: what comes after `pip install`, each of them safe to run again.

`spark` fetches the jars that a session loads (`pipelines.spark.jars`), checks Java and writes the archive of classes
(`pipelines.spark.class_archive`); `files` copies the settings, schemas, alerts and dashboards that the wheel brings.
"""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from broker_edge.errors import ConfigError
from broker_edge.extras import require
from headwater_cli._options import JsonOption
from headwater_cli._output import put, put_json, put_rows, say

app = typer.Typer(help="Fetch the jars of Spark; write default settings and alerts.", no_args_is_help=True)


@app.callback()
def _setup() -> None:
    """Fetch the jars of Spark; write default settings and alerts."""


@app.command("spark")
def spark(
    to: Annotated[
        Path | None,
        typer.Option(
            "--to",
            metavar="FOLDER",
            help="Folder for the jars (default: HEADWATER_JARS, a folder of your cache, or .cache/jars of a checkout).",
            show_default=False,
        ),
    ] = None,
    repository: Annotated[
        str | None, typer.Option(metavar="URL", help="Maven repository in place of Maven Central.")
    ] = None,
    s3a: Annotated[bool, typer.Option("--s3a", help="Also the jars with which Spark reaches S3.")] = False,
    json: JsonOption = False,
) -> None:
    """Fetch the jars of Spark sessions, each checked by its digest, and check Java.

    Sessions find the jars in the default folder, or in the one that HEADWATER_JARS names. What is there already is
    checked and not fetched again; an interrupted run leaves nothing that counts. Beside the jars it writes Spark's
    classes into an archive (200 MB) from which sessions on this machine start faster.
    """
    require("this command", "pyspark")
    from pipelines.spark import class_archive, jars
    from pipelines.spark.java import require_java

    folder = (to or jars.default_folder()).absolute()
    s3a_folder = jars.s3a_folder(folder)
    rows = [("pyspark", "ok", version("pyspark")), ("java", "ok", str(require_java()))]
    if not jars.are_there(folder):
        say(f"fetching {len(jars.JAR_NAMES)} Delta jars into {folder}, which takes a minute; Ctrl-C stops it")
    was_fetched = jars.fetch(folder, repository=repository)
    rows.append(("delta jars", _done(was_fetched), f"{len(jars.JAR_NAMES)} in {folder}"))
    archive = class_archive.archive_path(folder)
    was_there = archive.is_file()
    if not was_there:
        say("writing Spark's classes into an archive from which sessions start faster, which takes half a minute")
    is_there = class_archive.record(folder)
    rows.append(("classes", ("ok" if was_there else "written") if is_there else "none", str(archive)))
    if s3a:
        was_there = s3a_folder.is_dir()
        if not was_there:
            say(f"fetching the jars of S3A into {s3a_folder}")
        found = jars.s3a_jars(folder, repository=repository)
        rows.append(("s3a jars", _done(not was_there), f"{len(found)} in {s3a_folder}"))
    if json:
        put_json({"steps": [{"step": step, "state": state, "detail": detail} for step, state, detail in rows]})
    else:
        put_rows(("step", "state", "detail"), rows)
    if s3a:
        say("in the settings of jobs: " + f"spark: {{conf: {{spark.driver.extraClassPath: '{s3a_folder}/*'}}}}")
    if to is not None and folder != jars.default_folder().absolute():
        say(f"sessions find the jars there with {jars.JARS_ENV}={folder}")


def _done(was_fetched: bool) -> str:
    return "fetched" if was_fetched else "ok"


@app.command("files")
def files(
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="New or empty folder.")] = Path("conf"),
    json: JsonOption = False,
) -> None:
    """Write every default setting with its meaning, a message schema with rules, alerts and a dashboard, to change.

    Jobs that start beside a folder `conf` take its schemas and rules; settings are read with --config.
    """
    from broker_edge.default_files import FOLDER, default_files

    try:
        if to.exists() and (not to.is_dir() or any(to.iterdir())):
            raise ConfigError(f"{to} is not empty: name a new folder with --to")
        made = [to / one for one in default_files()]
        for one, target in zip(default_files(), made, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(FOLDER / one, target)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename or to} ({error.strerror}): name another folder") from error
    if json:
        put_json({"files": [str(path) for path in made]})
        return
    for path in made:
        put(str(path))


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="setup")
