"""`headwater jobs run` and `list`: only the commands. `pipelines.run_jobs`, which needs Spark, runs the jobs."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from broker_edge.extras import require
from headwater_cli._access import (
    CaOption,
    CertOption,
    KeyOption,
    PasswordOption,
    TokenOption,
    UserOption,
    given_to,
)
from headwater_cli._options import JsonOption
from headwater_cli._output import put_json, put_rows

_NEEDED = ("pyarrow", "pyspark", "delta", "deltalake", "pydantic", "yaml")

app = typer.Typer(help="Run the jobs that copy records into tables and send actions to devices.", no_args_is_help=True)


@app.callback()
def _jobs() -> None:
    """Run the jobs that copy records into tables and send actions to devices."""


@app.command("list")
def list_(json: JsonOption = False) -> None:
    """List the jobs and what each does."""
    from pipelines.job_names import JOBS

    if json:
        put_json({"jobs": [{"name": name, "what": what} for name, what in JOBS.items()]})
    else:
        put_rows(("name", "what"), list(JOBS.items()))


@app.command("run")
def run(
    context: typer.Context,
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...", help="telemetry, status, silver, actions, gaps, quality, maintenance, or all."
        ),
    ],
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Settings file (default: the defaults of conf/pipelines.yaml).")
    ] = None,
    available_now: Annotated[bool, typer.Option("--available-now", help="Do the available work, then exit.")] = False,
    webhook: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Post alerts as JSON to this URL, or file:PATH, env:NAME."),
    ] = None,
    broker: Annotated[
        list[str] | None,
        typer.Option("--server", metavar="ADDRESS", help="A broker, in place of those in the settings; repeatable."),
    ] = None,
    user: UserOption = None,
    password_from: PasswordOption = None,
    token_from: TokenOption = None,
    tls_ca: CaOption = None,
    tls_cert: CertOption = None,
    tls_key: KeyOption = None,
    json: JsonOption = False,
) -> None:
    """Run jobs in one process until Ctrl-C: a live table on a terminal, JSON lines otherwise; alerts on stderr."""
    require("this command", *_NEEDED)
    jobs = import_module("pipelines.run_jobs")
    access = given_to(
        context,
        user=user,
        password_from=password_from,
        token_from=token_from,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    code = jobs.run(
        names,
        config=config,
        available_now=available_now,
        as_json=json,
        webhook=webhook,
        brokers={"server": broker, **access},
    )
    raise typer.Exit(int(code))


def register(parent: typer.Typer) -> None:
    parent.add_typer(app, name="jobs")
