"""`headwater jobs run`: from names and settings to an exit code. Its command line is in `headwater_cli.jobs`; `main` is
that of a platform which runs one program, such as `spark-submit`.

exit codes: 0 ended or stopped by a signal, 1 a job failed, 3 no broker answers or the object store does not answer or
refuses, 4 a broker refuses, 5 a setting is wrong
"""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console

from broker_edge.escape import shown_lines
from pipelines.catalogue import JOB_NAMES, make_job, names_of, needs_spark, refuse_stores, stages
from pipelines.jobs.alerts import Alert, Webhook
from pipelines.jobs.posting import address_of
from pipelines.jobs.process import StopSignal, exit_code, mute_query_traces, run_job
from pipelines.jobs.progress import JsonLines, LiveTable
from pipelines.jobs.runner import RunFailedError, Runner
from pipelines.settings import Settings, load_settings
from pipelines.settings.job_options import add_broker_options, with_brokers
from pipelines.spark.jvm_end import CALL_ERRORS, jvm_may_end
from pipelines.spark.session import OpenSession, open_session

SESSION_NAME = "headwater-jobs"


def run(
    wanted: Sequence[str],
    *,
    config: Path | None,
    available_now: bool,
    as_json: bool,
    webhook: str | None,
    brokers: Mapping[str, Any] | None = None,
) -> int:
    """Runs the jobs until a signal arrives, all have ended, or one fails. `brokers` holds the options of
    `add_broker_options` by name, None for one that was not given. Raises PipelineError if a setting is wrong."""
    names = names_of(wanted)
    settings = load_settings(config)
    if brokers is not None:
        settings = with_brokers(settings, Namespace(**brokers))
    given = webhook or settings.jobs.webhook
    url = None if given is None else address_of(given, what="jobs.webhook")
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    with ExitStack() as stack:
        on_alert: Callable[[Alert], None] = lambda alert: None  # noqa: E731
        if url is not None:
            hook = Webhook(url)
            stack.callback(hook.close)
            on_alert = hook.send
        live = sys.stdout.isatty() and not as_json
        screen: LiveTable | JsonLines = LiveTable(Console()) if live else JsonLines(sys.stdout, sys.stderr)
        stop = StopSignal()
        stack.callback(lambda: screen.stopped() if stop.is_set() else None)
        spark = _Session(settings, names)
        stack.callback(spark.close)
        stop.started(spark.open)
        stack.enter_context(screen)
        try:
            for stage in stages(names, available_now=available_now):
                if stop.is_set():
                    break
                jobs = [make_job(name, settings, spark, available_now=available_now, beside=names) for name in stage]
                with jvm_may_end(stop.is_set):
                    Runner(jobs, settings.jobs, screen, on_alert=on_alert).run(stop.wait)
        except RunFailedError as error:
            if stop.is_set() and isinstance(error.__cause__, CALL_ERRORS):
                return 0
            sys.stderr.write(f"error: {shown_lines(str(error))}\n")
            return exit_code(error.cause_name)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the jobs that the arguments name. Progress is on stdout as JSON lines, unless that is a terminal."""
    parser = ArgumentParser(prog="headwater_job.py jobs", description="Runs several jobs in one process.")
    parser.add_argument("jobs", nargs="+", metavar="JOB", help=f"{', '.join(JOB_NAMES)}, or all")
    parser.add_argument("--config", type=Path, help="settings file (default: the defaults of conf/pipelines.yaml)")
    add_broker_options(parser)
    parser.add_argument("--available-now", action="store_true", help="do the available work, then exit")
    parser.add_argument("--webhook", metavar="URL", help="post alerts as JSON to this URL, or file:PATH, env:NAME")
    options = parser.parse_args(arguments)
    codes = []

    def work() -> None:
        code = run(
            options.jobs,
            config=options.config,
            available_now=options.available_now,
            as_json=False,
            webhook=options.webhook,
            brokers=vars(options),
        )
        codes.append(code)

    return run_job(work) or codes[0]


class _Session:
    """The session of the run: opened once, before the first job, if any job needs it."""

    def __init__(self, settings: Settings, names: Sequence[str]) -> None:
        self._settings = settings
        self._names = names
        self._is_needed = needs_spark(names, settings)
        self._session: OpenSession | None = None

    def open(self) -> None:
        if not self._is_needed:
            return
        refuse_stores(self._names, self._settings)
        self._session = open_session(SESSION_NAME, self._settings.spark)
        mute_query_traces(self._session.spark)

    def __call__(self) -> SparkSession:
        assert self._session is not None, "no job needs Spark, according to the catalogue"
        return self._session.spark

    def close(self) -> None:
        if self._session is None:
            return
        # The signal may also have reached the JVM.
        with suppress(*CALL_ERRORS):
            self._session.close()
