"""The telemetry job as a process: kill -9 while its tasks wait for rows (I10), a clean stop, a broker that is down.

test_telemetry_kill kills it and a real broker under load; this broker is in memory, because it can wait on demand.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from support.flight_server import FlightServer
from support.telemetry_job import TelemetryJob

from pipelines.jobs.process import EXIT_UNREACHABLE, run_job
from pipelines.settings import Settings, TelemetrySettings
from pipelines.telemetry import start_telemetry

Place = tuple[str, int, int]


def fill(server: FlightServer, count: int) -> None:
    for number in range(count):
        server.log.append(f"devices/d{number % 20}/telemetry", b"%d" % number)


def in_the_log(server: FlightServer) -> list[Place]:
    partitions = server.log.partitions.values()
    return sorted((server.log.log_id, one.number, record.offset) for one in partitions for record in one.records)


def in_bronze(job: TelemetryJob) -> list[Place]:
    columns = DeltaTable(str(job.table)).to_pyarrow_table(columns=["log_id", "partition", "offset"])
    return sorted(zip(*(columns.column(name).to_pylist() for name in columns.column_names), strict=True))


@pytest.fixture
def job(flight_server: FlightServer, tmp_path: Path) -> Iterator[TelemetryJob]:
    limits = ["--max-offsets-per-trigger", "100", "--trigger", "0 seconds"]
    with TelemetryJob(tmp_path / "job", server=flight_server.location, arguments=limits) as made:
        yield made


@pytest.mark.timeout(900)
def test_kill_while_the_rows_of_a_batch_are_awaited_brings_every_record_once(
    flight_server: FlightServer, job: TelemetryJob
) -> None:
    fill(flight_server, 300)
    job.start()
    job.until(lambda: job.newest("commits") >= 2, "three finished batches")

    # A batch is planned, its tasks have requested their rows, and none has arrived.
    is_reading, may_go_on = threading.Event(), threading.Event()

    def hold(name: str) -> None:
        if name == "DoGet":
            is_reading.set()
            may_go_on.wait(timeout=300)

    flight_server.before = hold
    finished = job.newest("commits")
    fill(flight_server, 300)
    job.until(is_reading.is_set, "task that reads")
    assert job.newest("offsets") == finished + 1 > job.newest("commits")
    job.kill()
    flight_server.before = lambda name: None
    may_go_on.set()

    fill(flight_server, 50)
    job.start()
    committed = flight_server.log.groups["telemetry"].committed
    job.until(lambda: sum(committed.values()) == 650, "end of the log")
    # A clean stop by signal.
    assert job.terminate() == 0, job.last_words()
    assert "Traceback" not in job.last_words()
    assert in_bronze(job) == in_the_log(flight_server)
    assert len(in_bronze(job)) == 650


def test_a_broker_that_is_down_ends_a_job_with_one_sentence(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flight_server.down()
    telemetry = TelemetrySettings(table_path=str(tmp_path / "bronze"), checkpoint=str(tmp_path / "checkpoint"))
    settings = Settings(servers=[flight_server.location], telemetry=telemetry)
    assert run_job(lambda: start_telemetry(spark, settings).awaitTermination()) == EXIT_UNREACHABLE
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"error: cannot reach the broker at {flight_server.location}: Connection refused; "
        "check that it runs and that `servers` names its Flight port"
    )
