"""Data loss: it is detected and named, and with `failOnDataLoss=false` skipped with exactly the reported gaps."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pyarrow as pa
import pytest
from support.flight_server import FlightServer, refusal
from support.source_driver import Json, Query, open_reader, places, read_rows

from broker_edge.errors import DataLossError, UnavailableError
from sources.broker_errors import unreachable
from sources.log_server import LogServer

pytestmark = pytest.mark.usefixtures("without_idle_memory")

PARTITION = 3


def fill(server: FlightServer, count: int) -> None:
    for number in range(count):
        server.log.append("devices/d1/telemetry", b"%d" % number, partition=PARTITION)


def pass_others(server: FlightServer, query: Query, count: int) -> None:
    """Appends records of another topic, which the query then looks at without a match. Its group stores how far."""
    for number in range(count):
        server.log.append("devices/d1/status", b"%d" % number, partition=PARTITION)
    for _ in range(2):
        assert query.batch() == []


def gaps(server: FlightServer) -> list[tuple[int, int]]:
    return [(start, end) for number, start, end in server.log.reported_gaps() if number == PARTITION]


def offsets_of(rows: list[Json]) -> list[int]:
    return [row["offset"] for row in rows]


def test_what_retention_removed_is_named(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    query = Query(flight_server)
    query.batch(20)
    flight_server.log.expire(PARTITION, 50)
    with pytest.raises(DataLossError) as error:
        query.batch()
    message = str(error.value)
    assert "devices/+/telemetry" in message
    assert "offset 20 of partition 3" in message
    assert "the oldest kept is 50" in message
    assert "failOnDataLoss=false" in message


def test_what_retention_removed_is_passed_with_the_gap_reported(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    query = Query(flight_server, failOnDataLoss="false", consumerGroup="g")
    query.batch(20)
    flight_server.log.expire(PARTITION, 50)
    query.drain()
    assert offsets_of(query.rows) == [*range(20), *range(50, 100)]
    assert gaps(flight_server) == [(20, 50)]


def test_what_no_filter_of_the_query_matches_is_not_lost(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    query = Query(flight_server, consumerGroup="g")
    query.drain()
    pass_others(flight_server, query, 500)
    flight_server.log.expire(PARTITION, 400)
    assert query.batch() == []
    fill(flight_server, 3)
    assert offsets_of(query.batch()) == [510, 511, 512]
    assert gaps(flight_server) == []
    query.restart()
    assert offsets_of(read_rows(query.reader, query.ends[-2], query.ends[-1])) == [510, 511, 512], "as a replay"


@pytest.mark.parametrize(("removed", "restarts"), [(520, False), (400, True)])
def test_what_the_query_has_not_looked_at_is_lost(flight_server: FlightServer, removed: int, restarts: bool) -> None:
    """The group of a query that starts again may have had another filter, so what it has passed says nothing."""
    fill(flight_server, 10)
    query = Query(flight_server, consumerGroup="g")
    query.drain()
    pass_others(flight_server, query, 500)
    fill(flight_server, 20)
    if restarts:
        query.restart()
    flight_server.log.expire(PARTITION, removed)
    with pytest.raises(DataLossError, match="offset 10 of partition 3"):
        query.batch()


@pytest.mark.parametrize("fails", [True, False])
def test_a_replay_of_a_batch_that_retention_reached(flight_server: FlightServer, fails: bool) -> None:
    fill(flight_server, 100)
    query = Query(flight_server, failOnDataLoss=str(fails).lower())
    start, end = query.plan()
    flight_server.log.expire(PARTITION, 30)
    query.restart()
    if fails:
        with pytest.raises(DataLossError, match="offset 0 of partition 3"):
            read_rows(query.reader, start, end)
        assert gaps(flight_server) == []
    else:
        assert offsets_of(read_rows(query.reader, start, end)) == list(range(30, 100))
        assert gaps(flight_server) == [(0, 30)]


def test_a_batch_that_is_gone_altogether_is_one_gap(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    query = Query(flight_server, failOnDataLoss="false")
    start, end = query.plan(40)
    flight_server.log.expire(PARTITION, 70)
    assert read_rows(query.reader, start, end) == []
    assert gaps(flight_server) == [(0, 40)]


@pytest.mark.parametrize("fails", [True, False])
def test_damage_in_the_middle(flight_server: FlightServer, fails: bool) -> None:
    fill(flight_server, 100)
    flight_server.log.lose(PARTITION, 0, 10)
    flight_server.log.lose(PARTITION, 60, 100)
    fill(flight_server, 10)
    query = Query(flight_server, failOnDataLoss=str(fails).lower())
    if fails:
        with pytest.raises(DataLossError, match="partition 3"):
            query.drain()
    else:
        query.drain()
        served = offsets_of(query.rows)
        missing = {offset for start, end in gaps(flight_server) for offset in range(start, end)}
        assert sorted({*served, *missing}) == list(range(110))
        assert not missing & set(served)


def cut_and_grow(server: FlightServer, *, keep: int, grow: int) -> None:
    """The tail is lost, and its offsets are reused in a new epoch."""
    server.log.new_epoch(PARTITION, cut_to=keep)
    fill(server, grow)


@pytest.mark.parametrize(("keep", "grow", "says"), [(60, 10, "the log ends at 70"), (60, 80, "found epoch 2 instead")])
def test_a_log_that_was_cut_is_noticed(flight_server: FlightServer, keep: int, grow: int, says: str) -> None:
    fill(flight_server, 100)
    query = Query(flight_server)
    query.drain()
    cut_and_grow(flight_server, keep=keep, grow=grow)
    with pytest.raises(DataLossError, match=says):
        query.batch()


@pytest.mark.parametrize("grow", [10, 80])
def test_a_log_that_was_cut_is_read_on_without_doubles(flight_server: FlightServer, grow: int) -> None:
    fill(flight_server, 100)
    query = Query(flight_server, failOnDataLoss="false")
    query.drain()
    cut_and_grow(flight_server, keep=60, grow=grow)
    rows = query.drain()
    assert [(row["offset"], row["epoch"]) for row in rows] == [(offset, 2) for offset in range(60, 60 + grow)]
    assert gaps(flight_server) == [(60, 100)]
    fill(flight_server, 5)
    query.restart()
    assert len(query.drain()) == 5
    assert len(set(places(query.rows))) == len(query.rows)


def test_a_new_term_without_loss_is_no_loss(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    query = Query(flight_server)
    query.drain()
    flight_server.log.new_epoch()
    fill(flight_server, 10)
    assert len(query.drain()) == 10


def test_a_replay_of_a_batch_whose_end_was_written_again_is_noticed(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    query = Query(flight_server)
    start, end = query.plan()
    cut_and_grow(flight_server, keep=60, grow=80)
    with pytest.raises(DataLossError, match="found epoch 2 instead of 1"):
        read_rows(query.reader, start, end)


def test_a_kept_start_that_retention_passed_is_loss(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    open_reader(flight_server, consumerGroup="g").initialOffset()
    flight_server.log.expire(PARTITION, 10)
    with pytest.raises(DataLossError, match="a new checkpoint and consumerGroup"):
        open_reader(flight_server, consumerGroup="g").initialOffset()


def test_a_gap_that_cannot_be_recorded_is_not_passed(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    query = Query(flight_server, failOnDataLoss="false")
    query.batch(20)
    flight_server.log.expire(PARTITION, 50)

    def refuse(name: str) -> None:
        if name == "gap":
            raise refusal("full", "no space", partition=1)

    flight_server.before = refuse
    with pytest.raises(DataLossError, match="could not be recorded"):
        query.batch()


# A connection that drops during the read of a range


class Cut:
    """Ends the answers of `LogServer.get` after some batches, as a broken connection does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, after_batches: int, times: int) -> None:
        self.left = times
        self.starts: list[int] = []
        whole = LogServer.get

        def get(
            server: LogServer, partition: int, start: int, end: int, **more: object
        ) -> Iterator[tuple[pa.RecordBatch, int]]:
            self.starts.append(start)
            for number, answer in enumerate(whole(server, partition, start, end, **more)):  # type: ignore[arg-type]
                if self.left and number == after_batches:
                    self.left -= 1
                    raise unreachable(server.address, "Socket closed")
                yield answer

        monkeypatch.setattr(LogServer, "get", get)
        monkeypatch.setattr("sources.log_server.BATCH_ROWS", 10)


def test_a_dropped_connection_resumes_behind_the_last_batch(
    flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(flight_server, 100)
    cut = Cut(monkeypatch, after_batches=3, times=2)
    query = Query(flight_server, pollTimeoutMs="20000")
    query.drain()
    assert offsets_of(query.rows) == list(range(100))
    assert cut.starts == [0, 30, 60]


def test_who_takes_longer_than_the_patience_for_a_batch_still_resumes(
    flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends a read whose batches are not fetched for long, for example while the JVM collects garbage."""
    fill(flight_server, 100)
    cut = Cut(monkeypatch, after_batches=3, times=1)
    now = [0.0]
    monkeypatch.setattr("sources.fetch.time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None))
    query = Query(flight_server, pollTimeoutMs="20000")
    offsets: list[int] = []
    for part in query.reader.partitions(*query.plan()):
        for batch in query.reader.read(part):
            offsets += batch.column("offset").to_pylist()
            now[0] += 60.0
    assert offsets == list(range(100))
    assert cut.starts == [0, 30]


def test_a_connection_that_never_comes_back_ends_the_task(
    flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(flight_server, 100)
    Cut(monkeypatch, after_batches=0, times=1_000_000)
    with pytest.raises(UnavailableError, match="Socket closed"):
        Query(flight_server).batch()
