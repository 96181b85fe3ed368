"""The runner of jobs: temporary errors are retried with growing pauses, others end the run, alerts are sent once."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from rich.console import Console

from broker_edge.errors import (
    DataLossError,
    EngineFencedError,
    JobFailedError,
    SettingsError,
    TableStoreError,
)
from pipelines.catalogue import JOB_NAMES, names_of, needs_spark, stages
from pipelines.jobs.alerts import Alert, AlertKind, StreamWatch, Webhook
from pipelines.jobs.kinds import LoopJob, Progress, StreamJob, progress_of
from pipelines.jobs.process import EXIT_UNREACHABLE, StopSignal, exit_code
from pipelines.jobs.progress import JsonLines, LiveTable
from pipelines.jobs.retry import is_final, sentence
from pipelines.jobs.runner import JobState, JobView, RunFailedError, Runner
from pipelines.settings import JobsSettings, Settings
from pipelines.silver.job import start_silver
from pipelines.spark.jvm_end import jvm_may_end
from sources.broker_errors import unreachable

STORE_REFUSES = (
    "Generic S3 error ↳ Error performing GET http://h:9000/b/x in 4ms - Server returned non-2xx status code: ↳ 403 "
    "Forbidden ↳ <Error><Code>AccessDenied</Code><Message>No.</Message></Error>"
)
STORE_IS_SILENT = "Generic S3 error ↳ Error performing GET http://h:9000/b/x in 30s - HTTP error ↳ request timed out"
POLICY = JobsSettings(retries=3, retry_first_s=1.0, retry_max_s=3.0, lag_records_max=100, silent_s_max=30.0)


class FakeJob:
    """Follows its script: each start takes the next entry, an error to end with or None to keep running."""

    is_watched = True

    def __init__(self, *script: BaseException | None, at_start: bool = False) -> None:
        self.name = "fake"
        self.script, self.at_start = list(script), at_start
        self.starts, self.stops = 0, 0
        self.is_over = False
        self.now = Progress()
        self.failed_with: BaseException | None = None

    def start(self) -> None:
        self.starts += 1
        self.failed_with = self.script.pop(0) if self.script else None
        if self.at_start and self.failed_with is not None:
            raise self.failed_with

    def ended(self) -> bool:
        return self.is_over or self.failed_with is not None

    def error(self) -> BaseException | None:
        return self.failed_with

    def progress(self) -> Progress:
        return self.now

    def stop(self) -> None:
        self.stops += 1


class FakeScreen:
    def __init__(self) -> None:
        self.views: list[list[JobView]] = []
        self.alerts: list[Alert] = []

    def show(self, views: Sequence[JobView]) -> None:
        self.views.append(list(views))

    def alert(self, alert: Alert) -> None:
        self.alerts.append(alert)


class Clock:
    """Time moves only while the runner waits; after `until` stop returns True."""

    def __init__(self, turns: int) -> None:
        self.now_s, self.left = 0.0, turns

    def stop(self, seconds: float) -> bool:
        self.now_s += seconds
        self.left -= 1
        return self.left <= 0


def run(job: FakeJob, *, turns: int = 30) -> tuple[FakeScreen, Clock]:
    screen, clock = FakeScreen(), Clock(turns)
    runner = Runner([job], POLICY, screen, clock=lambda: clock.now_s)
    try:
        runner.run(clock.stop)
    finally:
        assert job.stops == 1, "whatever ends the run, every job is stopped"
    return screen, clock


def test_a_job_that_does_not_end_holds_up_neither_the_others_nor_the_run(caplog: pytest.LogCaptureFixture) -> None:
    ends = threading.Event()

    class Stuck(FakeJob):
        def stop(self) -> None:
            super().stop()
            ends.wait()

    class Broken(FakeJob):
        def stop(self) -> None:
            super().stop()
            raise RuntimeError("no answer")

    jobs = [FakeJob(), Stuck(), Broken(), FakeJob()]
    for name, job in zip("abcd", jobs, strict=True):
        job.name = name
    policy = POLICY.model_copy(update={"stop_s": 0.05})
    try:
        Runner(jobs, policy, FakeScreen()).run(lambda seconds: True)
        assert [job.stops for job in jobs] == [1, 1, 1, 1]
        messages = sorted(record.getMessage() for record in caplog.records)
        assert messages == [
            "b did not end within 0.05 s: the next start repeats what was begun",
            "c could not be stopped: no answer",
        ]
    finally:
        ends.set()


@pytest.mark.parametrize("at_start", [False, True])
def test_an_error_that_may_pass_is_tried_again_with_growing_pauses(at_start: bool) -> None:
    job = FakeJob(TableStoreError("disk"), unreachable("grpc://a", "gone"), None, at_start=at_start)
    screen, _ = run(job)
    assert job.starts == 3
    sentences = [alert.sentence for alert in screen.alerts]
    assert sentences[0] == "fake failed and restarts in 1 s: disk"
    assert sentences[1].startswith("fake failed and restarts in 2 s: cannot reach the broker at grpc://a")
    assert screen.views[-1][0].state is JobState.RUNNING
    assert screen.views[-1][0].restarts == 2


def test_an_error_that_stays_ends_the_run_after_the_last_try_with_its_sentence() -> None:
    job = FakeJob(*[unreachable("grpc://a", "gone")] * 9)
    with pytest.raises(RunFailedError, match=r"^fake: cannot reach the broker at grpc://a: gone") as failed:
        run(job)
    assert job.starts == 1 + POLICY.retries
    assert exit_code(failed.value.cause_name) == EXIT_UNREACHABLE


@pytest.mark.parametrize(
    "error",
    [
        DataLossError("gone", partition=3, start=0, end=1),
        SettingsError("wrong"),
        EngineFencedError("taken over"),
        OSError(STORE_REFUSES),
    ],
)
def test_an_error_that_waiting_cannot_mend_is_not_tried_again(error: Exception) -> None:
    job = FakeJob(error, None)
    with pytest.raises(RunFailedError):
        run(job)
    assert job.starts == 1


def test_a_store_that_does_not_answer_is_tried_again_and_said_in_one_sentence() -> None:
    behind = TableStoreError("the table actions cannot be read")
    behind.__cause__ = OSError(STORE_IS_SILENT)
    job = FakeJob(*[behind] * 9)
    with pytest.raises(RunFailedError) as failed:
        run(job)
    assert job.starts == 1 + POLICY.retries
    said = str(failed.value)
    assert said.startswith("fake: the object store refused or did not answer http://h:9000/b/x (request timed out): ")
    assert exit_code(failed.value.cause_name) == EXIT_UNREACHABLE


def test_a_table_that_another_job_makes_is_waited_for() -> None:
    settings = Settings.model_validate({"telemetry": {"table": "main.x.bronze", "table_path": None}})
    session = SimpleNamespace(catalog=SimpleNamespace(tableExists=lambda name: False))
    with pytest.raises(
        JobFailedError, match=r"there is no bronze table main\.x\.bronze: run the telemetry job"
    ) as error:
        start_silver(session, settings)
    assert not is_final(error.value)


def test_a_job_that_ran_long_has_all_its_tries_again() -> None:
    job = FakeJob(None)
    screen, clock = FakeScreen(), Clock(10_000)
    failures = 0

    def stop(seconds: float) -> bool:
        nonlocal failures
        # Each time it had run for a quarter of an hour.
        if job.failed_with is None and clock.now_s - failures * 900 > 900:
            failures += 1
            job.failed_with = TableStoreError("disk")
        return clock.stop(seconds)

    Runner([job], POLICY, screen, clock=lambda: clock.now_s).run(stop)
    assert failures > POLICY.retries
    assert job.starts == failures + 1


def test_a_run_ends_when_every_job_has_ended() -> None:
    job = FakeJob(None)
    job.is_over = True
    screen, clock = run(job, turns=1_000)
    assert clock.left > 900
    assert screen.views[-1][0].state is JobState.ENDED


def test_a_stream_that_lags_or_is_silent_is_told_once_and_when_it_is_over() -> None:
    watch = StreamWatch("telemetry", POLICY, now_s=0.0)
    assert watch.look(Progress(batch=1, lag_records=100), 1.0) == []
    (lags,) = watch.look(Progress(batch=2, lag_records=101), 2.0)
    assert lags == Alert(AlertKind.LAG, "telemetry", "telemetry lags by 101 records; the limit is 100")
    assert watch.look(Progress(batch=2, lag_records=102), 32.0) == []
    (silent,) = watch.look(Progress(batch=2, lag_records=102), 33.0)
    assert (silent.kind, silent.over) == (AlertKind.SILENT, False)
    over = watch.look(Progress(batch=3, lag_records=0), 34.0)
    assert [(alert.kind, alert.over) for alert in over] == [(AlertKind.LAG, True), (AlertKind.SILENT, True)]
    # Without records to read, silence is no reason for an alert.
    assert watch.look(Progress(batch=3, lag_records=0), 9_999.0) == []


def test_lag_is_what_the_brokers_have_and_the_batch_did_not_take() -> None:
    def offset(*places: int) -> str:
        return json.dumps({"v": 1, "logs": {"l": {str(number): [at, 1] for number, at in enumerate(places)}}})

    source = {"endOffset": offset(5, 7), "latestOffset": offset(9, 7, 3)}
    report = {"batchId": 4, "numInputRows": 10, "processedRowsPerSecond": 2.5, "durationMs": {"triggerExecution": 1500}}
    found = progress_of({**report, "sources": [source]})
    assert found == Progress(batch=4, rows=10, rows_per_s=2.5, batch_s=1.5, lag_records=4)
    # If Spark counts splits, the rows are the offsets.
    split = progress_of({**report, "sources": [{**source, "startOffset": offset(2, 1)}]}, has_splits=True)
    assert (split.rows, split.rows_per_s) == (9, 6.0)
    # Spark reports the first batch of a checkpoint without its start: the rows are then unknown, not zero.
    first = progress_of({**report, "sources": [{**source, "startOffset": None}]}, has_splits=True)
    assert (first.rows, first.rows_per_s, first.lag_records) == (None, None, 4)
    delta = {"endOffset": {"reservoirVersion": 3}, "latestOffset": None}
    assert progress_of({**report, "sources": [delta]}).lag_records is None


class GoneQuery:
    """A query whose JVM has ended."""

    isActive = True

    def __init__(self, error: Exception) -> None:
        self.error = error

    def stop(self) -> None:
        raise self.error


GONE = [ConnectionRefusedError(111, "Connection refused"), Py4JError("An error occurred while calling o1.stop")]
ENDING = Py4JJavaError("the context is shut down", SimpleNamespace(_target_id="o1", _gateway_client=None))
"""The answer of a JVM that is about to end; its text can no longer be fetched from the JVM."""


@pytest.mark.parametrize("error", [*GONE, ENDING])
def test_a_jvm_that_was_told_to_stop_as_well_is_no_failure(error: Exception) -> None:
    """systemd does this: it sends SIGTERM to every process of a service."""
    stream = StreamJob("stream", lambda: GoneQuery(error))
    stream.start()
    stream.stop()
    with jvm_may_end(lambda: True):
        raise error


@pytest.mark.parametrize("error", GONE)
def test_a_jvm_that_ends_by_itself_is_one_sentence(error: Exception) -> None:
    with pytest.raises(JobFailedError, match="the JVM of Spark has ended"), jvm_may_end(lambda: False):
        raise error
    with pytest.raises(Py4JJavaError), jvm_may_end(lambda: False):
        raise ENDING


def test_other_errors_of_a_stop_are_not_taken_for_the_end_of_the_jvm() -> None:
    stream = StreamJob("stream", lambda: GoneQuery(ZeroDivisionError()))
    stream.start()
    with pytest.raises(ZeroDivisionError):
        stream.stop()
    with pytest.raises(ZeroDivisionError), jvm_may_end(lambda: True):
        raise ZeroDivisionError


def test_a_loop_job_stops_when_told_and_keeps_its_error() -> None:
    begun = threading.Event()

    def work(stop: Callable[[float], bool]) -> None:
        begun.set()
        assert stop(60.0), "it returns before the minute is over"

    job = LoopJob("loop", work)
    job.start()
    assert begun.wait(60)
    assert not job.ended()
    job.stop()
    assert job.ended()
    assert job.error() is None

    def fail(stop: Callable[[float], bool]) -> None:
        raise TableStoreError("disk")

    broken = LoopJob("loop", fail)
    broken.start()
    broken.stop()
    assert isinstance(broken.error(), TableStoreError)


def test_json_lines_come_when_something_has_changed_and_alerts_go_to_both() -> None:
    out, talk = io.StringIO(), io.StringIO()
    lines = JsonLines(out, talk)
    view = JobView("telemetry", JobState.RUNNING, Progress(batch=1, rows=5, lag_records=0), 0)
    for _ in range(3):
        lines.show([view])
    lines.alert(Alert(AlertKind.LAG, "telemetry", "it lags"))
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert {name: first[name] for name in ("job", "state", "batch", "rows", "lag_records")} == {
        "job": "telemetry",
        "state": "running",
        "batch": 1,
        "rows": 5,
        "lag_records": 0,
    }
    assert second["alert"]["sentence"] == "it lags"
    assert talk.getvalue() == "alert: it lags\n"


def test_the_last_line_of_a_run_that_was_stopped_says_so() -> None:
    out = io.StringIO()
    lines = JsonLines(out, io.StringIO())
    lines.stopped()
    (line,) = (json.loads(line) for line in out.getvalue().splitlines())
    assert {**line, "at": None} == {"at": None, "state": "stopped"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_what_takes_long_to_start(number: int) -> None:
    before = [(one, signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM)]
    try:
        stop = StopSignal()
        assert stop.started(lambda: 5) == 5
        assert not stop.is_set()

        def start() -> None:
            # A session has its own handler.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.raise_signal(number)
            pytest.fail("the signal did not end the start")

        assert stop.started(start) is None
        assert stop.is_set()
        # Afterwards it only sets the flag.
        signal.raise_signal(signal.SIGINT)

        def end_of_the_jvm() -> None:
            raise ConnectionRefusedError

        assert stop.started(end_of_the_jvm) is None
    finally:
        for one, handler in before:
            signal.signal(one, handler)


def test_a_signal_ends_the_process_that_a_start_has_begun_and_no_other() -> None:
    before = [(one, signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM)]
    begun: list[subprocess.Popen[bytes]] = [subprocess.Popen(["sleep", "600"])]
    try:

        def start() -> None:
            begun.append(subprocess.Popen(["sleep", "600"]))
            signal.raise_signal(signal.SIGTERM)

        assert StopSignal().started(start) is None
        assert begun[1].wait(60) == -signal.SIGTERM
        assert begun[0].poll() is None
    finally:
        for process in begun:
            process.kill()
            process.wait()
        for one, handler in before:
            signal.signal(one, handler)


def test_what_fails_while_nobody_has_stopped_it_is_an_error() -> None:
    before = [(one, signal.getsignal(one)) for one in (signal.SIGINT, signal.SIGTERM)]
    try:
        stop = StopSignal()
        with pytest.raises(ZeroDivisionError):
            stop.started(lambda: 1 / 0)
        assert not stop.is_set()
    finally:
        for one, handler in before:
            signal.signal(one, handler)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "An error occurred while calling o123.start.\n: java.io.IOException: No space left on device\n\tat a.b(c)",
            "No space left on device (IOException)",
        ),
        (
            "An error occurred while calling z:a.b.\n: org.apache.spark.SparkException: [X] Job aborted.\n\tat a",
            "[X] Job aborted. (SparkException)",
        ),
        (
            "An error occurred while calling o1.a.\n: org.apache.spark.SparkException: \nError from python worker:\n"
            "  [Errno 13] Permission denied\n\tat a",
            "Error from python worker: [Errno 13] Permission denied (SparkException)",
        ),
        ("An error occurred while calling o1.a.\n: a.b.NullError:\n\tat a.b(c)", "a.b.NullError:"),
        ("An error occurred while calling o1.a.\n: odd\n", "odd"),
        ("An error occurred while calling o1.a. Trace:", "An error occurred while calling o1.a. Trace:"),
        ("[TABLE_OR_VIEW_NOT_FOUND] The table `x` cannot be found.\n\nJVM stacktrace:\norg", None),
        ("", "RuntimeError"),
    ],
)
def test_an_error_of_spark_begins_with_what_happened(text: str, says: str | None) -> None:
    assert sentence(RuntimeError(text)) == (says or text.splitlines()[0])


def test_the_live_table_shows_each_job() -> None:
    out = io.StringIO()
    with LiveTable(Console(file=out, force_terminal=True, width=120)) as table:
        table.show([JobView("silver", JobState.PAUSED, Progress(batch=7), 2, "a table is busy")])
        table.alert(Alert(AlertKind.RESTARTED, "silver", "[silver] failed"))
    shown = out.getvalue()
    assert "silver" in shown
    assert "paused: a table is busy" in shown
    assert "alert: [silver] failed" in shown


def test_alerts_are_posted_as_json() -> None:
    got: list[dict[str, object]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return None

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        hook = Webhook(f"http://127.0.0.1:{server.server_port}/alerts")
        hook.send(Alert(AlertKind.STOPPED, "actions", "actions stopped: why"))
        hook.close()
        server.shutdown()
        thread.join()
    assert got == [{"kind": "stopped", "job": "actions", "sentence": "actions stopped: why", "over": False}]


def test_a_receiver_that_fails_harms_nothing_and_a_wrong_address_is_refused() -> None:
    def fail(url: str, body: bytes) -> None:
        raise OSError("nobody there")

    hook = Webhook("http://127.0.0.1:1/", post=fail)
    hook.send(Alert(AlertKind.LAG, "a", "b"))
    hook.close()
    with pytest.raises(SettingsError, match="must be an http:// or https:// address"):
        Webhook("file:///etc/passwd")


def test_names_stages_and_who_needs_spark() -> None:
    assert names_of(["all"]) == list(JOB_NAMES)
    assert names_of(["silver", "telemetry"]) == ["telemetry", "silver"]
    with pytest.raises(SettingsError, match="there is no job bronze: telemetry, status,"):
        names_of(["bronze"])
    assert stages(["telemetry", "silver", "gaps"], available_now=True) == [["telemetry"], ["silver"], ["gaps"]]
    assert stages(["telemetry", "silver"], available_now=False) == [["telemetry", "silver"]]
    assert not needs_spark(["actions", "gaps", "quality", "maintenance"], Settings())
    assert needs_spark(["silver"], Settings())
    named = Settings.model_validate({"silver": {"root": None, "catalog_schema": "main.headwater"}})
    assert needs_spark(["gaps"], named)
