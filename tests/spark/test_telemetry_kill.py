"""The telemetry job and its broker, both killed -9 under load: what was acknowledged is in bronze once (I10).

What needs a broker that waits on demand is in test_telemetry_job.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.bronze_check import BronzePlace, Content, Fault, LoggedRecords, compare, read_bronze, read_log
from support.mosquitto import free_port
from support.programs import headwaterd
from support.telemetry_job import TelemetryJob

from broker_edge.torture.load import LoadResult, MqttLoad, Place, Published
from broker_edge.torture.process import BrokerProcess
from broker_edge.torture.records import Publisher, Recipe, chosen_seed, publishers

PUBLISHERS = publishers(6, protocols=(5,), control=False)
CLOSED_S = 20.0  # for the connections of a killed broker to end


@pytest.fixture
def recipe() -> Recipe:
    return Recipe(chosen_seed())


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A real broker whose Flight address stays over restarts: the job knows it by that."""
    headwaterd()
    settings = {"listeners.flight.bind": f"127.0.0.1:{free_port()}"}
    with BrokerProcess(data_dir=tmp_path / "log", settings=settings, log_file=tmp_path / "broker.txt") as process:
        process.start()
        yield process


@pytest.fixture
def job(broker: BrokerProcess, tmp_path: Path) -> Iterator[TelemetryJob]:
    server = "grpc://{}:{}".format(*broker.flight)
    with TelemetryJob(tmp_path / "job", server=server, arguments=["--trigger", "0 seconds"]) as made:
        yield made


def steady_load(broker: BrokerProcess, recipe: Recipe, *, run: int) -> MqttLoad:
    """Some thousand records a second for as long as it lives: enough for every batch, without the whole machine."""
    return MqttLoad(address=broker.mqtt, run=run, recipe=recipe, publishers=PUBLISHERS, window=10, pause_s=0.03)


def until_in_a_batch(job: TelemetryJob) -> None:
    """Returns right after a batch was planned, before it is finished."""
    known = job.newest("offsets")
    job.until(lambda: job.newest("commits") < job.newest("offsets") > known, "newly planned batch")


def until_between_batches(job: TelemetryJob, *, after: int) -> None:
    """Returns right after a batch above `after` was finished, before the next is planned."""
    job.until(lambda: after < job.newest("commits") == job.newest("offsets"), f"finished batch after batch {after}")


@pytest.mark.timeout(600)
def test_acknowledged_records_are_in_bronze_once_whatever_is_killed(
    broker: BrokerProcess, job: TelemetryJob, recipe: Recipe
) -> None:
    with steady_load(broker, recipe, run=1) as load:
        job.start()
        job.until(lambda: job.newest("commits") >= 0, "finished batch")
        until_in_a_batch(job)
        job.kill()
        assert job.newest("offsets") == job.newest("commits") + 1

        job.start()
        until_in_a_batch(job)
        broker.kill()
        load.wait(lambda one: one.over, seconds=CLOSED_S, what="the connections to end with the broker")
        first = load.stop()
    job.until(lambda: "cannot reach the broker" in job.last_words(), "complaint that the broker is away")
    broker.start()
    with steady_load(broker, recipe, run=2) as load:
        # By the job that saw the broker go.
        until_between_batches(job, after=job.newest("offsets"))
        job.kill()
        second = load.stop()
    assert job.newest("offsets") == job.newest("commits")

    job.start("--available-now")
    assert job.wait() == 0, job.last_words()
    log = read_log(broker.flight, class_name="telemetry")
    assert len({content.epoch for content in log.records.values()}) == 2, "the broker was killed and came back"
    assert min(first.acked, second.acked) > 0
    assert compare(read_bronze(job.table), log, [first, second]) == {}, f"seed {recipe.seed}"


def test_control_the_comparison_finds_each_fault(recipe: Recipe) -> None:
    """Negative control: what the kills must not do would be seen."""
    (publisher,) = publishers(1, protocols=(5,), control=False)
    result = told_places(recipe, publisher, count=4)
    records = {
        BronzePlace("log-a", 3, offset): Content(1, publisher.topic, recipe.payload(result.name(one, offset)))
        for one in result.connections
        for offset in one.acked
    }
    log = LoggedRecords("log-a", {"telemetry-0": 3}, records)
    rows = sorted(records.items())
    assert compare(rows, log, [result]) == {}
    place, content = rows[-1]
    assert compare(rows[:-1], log, [result]) == {Fault.MISSING: 1, Fault.UNREAD: 1}
    assert compare([*rows, rows[0]], log, [result]) == {Fault.DOUBLED: 1}
    assert compare([*rows, (replace(place, offset=9), content)], log, [result]) == {Fault.UNEXPECTED: 1}
    assert compare([*rows[:-1], (place, replace(content, epoch=2))], log, [result]) == {Fault.EPOCH: 1}
    # Unlike the log, and unlike what was sent.
    assert compare([*rows[:-1], (place, replace(content, value=b"?"))], log, [result]) == {Fault.CHANGED: 2}


def told_places(recipe: Recipe, publisher: Publisher, *, count: int) -> LoadResult:
    """A load whose records were acknowledged at offsets that equal their sequence."""
    acked: dict[int, Place | None] = {sequence: Place("telemetry-0", sequence) for sequence in range(count)}
    return LoadResult(1, recipe, (Published(publisher, sent=count, acked=acked),))
