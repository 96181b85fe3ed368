"""The stream reader while brokers are unreachable, join late, or are gone permanently."""

from __future__ import annotations

import json

import pytest
from support.flight_server import FlightServer, refusal
from support.memory_log import MemoryLog
from support.source_driver import Query, fill, open_reader, places, read_rows, through_json

from broker_edge.errors import OffsetError, OptionError, UnavailableError


@pytest.fixture(autouse=True)
def without_idle_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sources.stream.IDLE_SECONDS", 0.0)
    # On a busy machine a refused connection is slow, and its broker would be left alone for a while.
    monkeypatch.setattr("sources.servers._LEAVE_ALONE_FACTOR", 0.0)


def test_a_broker_that_is_down_at_the_start_is_one_sentence(flight_server: FlightServer) -> None:
    reader = open_reader(flight_server)
    flight_server.down()
    with pytest.raises(UnavailableError) as error:
        reader.initialOffset()
    assert str(error.value) == (
        f"cannot reach the broker at {flight_server.location}: Connection refused; "
        "check that it runs and that `servers` names its Flight port"
    )


def test_a_broker_that_goes_away_delays_and_does_not_end_the_query(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    query = Query(flight_server, consumerGroup="g")
    query.drain()
    flight_server.down()
    assert query.batch() == []
    flight_server.up()
    fill(flight_server, 10)
    assert len(query.drain()) == 10


def test_one_broker_away_delays_only_its_own_records() -> None:
    with FlightServer() as one, FlightServer() as other:
        fill(one, 10)
        fill(other, 10)
        query = Query(one, other)
        query.drain()
        other.down()
        fill(one, 5)
        assert len(query.drain()) == 5
        other.up()
        fill(other, 5)
        assert len(query.drain()) == 5


def test_a_log_that_nobody_holds_any_more_is_named(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    query = Query(flight_server)
    query.drain()
    before = flight_server.log.log_id
    flight_server.down()
    flight_server.log = MemoryLog()
    flight_server.up()
    query.restart()
    with pytest.raises(OptionError, match=f"no server holds log {before}"):
        query.batch()


def test_another_broker_at_the_same_address_is_not_read(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    query = Query(flight_server)
    start, end = query.plan()
    tasks = query.reader.partitions(start, end)
    before = flight_server.log.log_id
    flight_server.down()
    flight_server.log = MemoryLog()
    flight_server.up()
    fill(flight_server, 10)
    with pytest.raises(UnavailableError, match=f"it holds log {flight_server.log.log_id} and not log {before}"):
        list(query.reader.read(tasks[0]))


def test_a_broker_away_after_planning_is_waited_for_until_the_deadline(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    query = Query(flight_server)
    start, end = query.plan()
    tasks = query.reader.partitions(start, end)
    flight_server.down()
    with pytest.raises(UnavailableError):
        list(query.reader.read(tasks[0]))
    query.restart()
    with pytest.raises(UnavailableError):
        query.reader.partitions(start, end)


def test_a_broker_that_is_away_at_the_first_start_enters_when_it_is_there() -> None:
    with FlightServer() as one, FlightServer() as late:
        fill(one, 10)
        fill(late, 20)
        late.down()
        query = Query(one, late)
        assert len(query.drain()) == 10
        late.up()
        assert len(query.drain()) == 20
        assert len(set(places(query.rows))) == len(query.rows)


def test_a_first_batch_is_not_replayed_without_the_broker_it_read() -> None:
    with FlightServer() as one, FlightServer() as other:
        fill(one, 10)
        fill(other, 20)
        query = Query(one, other)
        _, end = query.plan()
        other.down()
        query.restart()
        start = through_json(query.reader.initialOffset())
        with pytest.raises(OffsetError, match="the start of the first batch"):
            query.reader.partitions(start, end)
        other.up()
        query.restart()
        start = through_json(query.reader.initialOffset())
        assert len(read_rows(query.reader, start, end)) == 30


@pytest.mark.parametrize("start", [{"startingOffsets": "latest"}, {"startingTimestamp": "1"}])
def test_a_start_that_moves_needs_every_broker(flight_server: FlightServer, start: dict[str, str]) -> None:
    with FlightServer() as away:
        away.down()
        with pytest.raises(UnavailableError, match=away.location):
            open_reader(flight_server, away, consumerGroup="g", **start).initialOffset()


def test_a_slow_failure_is_not_paid_for_in_each_batch(
    flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sources.servers._SLOW_FAILURE_SECONDS", 0.0)
    monkeypatch.setattr("sources.servers._LEAVE_ALONE_FACTOR", 1e6)
    with FlightServer() as hung:
        query = Query(flight_server, hung)
        query.drain()

        def hang(name: str) -> None:
            raise refusal("unavailable", "too much to do")

        hung.before = hang
        fill(flight_server, 5)
        assert len(query.drain()) == 5
        calls = sum(hung.calls.values())
        fill(flight_server, 5)
        assert len(query.drain()) == 5
        assert sum(hung.calls.values()) == calls


def test_two_addresses_of_one_broker_are_refused_by_name(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    other = flight_server.location.replace("127.0.0.1", "localhost")
    query = Query(flight_server.location, other)
    with pytest.raises(OptionError) as told:
        query.batch()
    assert str(told.value) == (
        f"{flight_server.location} and {other} say that they hold the same log {flight_server.log.log_id}, and a log "
        "belongs to one entry of `brokers`: remove one of the two, or set log_id in the entry that has this log; the "
        "nodes of a cluster are one entry, grpc://HOST:PORT/HOST:PORT/HOST:PORT"
    )


# Retired logs


def test_a_retired_log_is_dropped_and_its_rest_is_on_record() -> None:
    with FlightServer() as one, FlightServer() as dead:
        fill(one, 10)
        fill(dead, 20)
        query = Query(one, dead, consumerGroup="g")
        query.drain()
        place = query.ends[-1]["logs"][dead.log.log_id]
        dead.down()
        query._servers = (one,)
        query.restart()
        with pytest.raises(OptionError, match=f"retireLogs={dead.log.log_id}"):
            query.batch()
        query._options = {**query._options, "retireLogs": dead.log.log_id}
        query.restart()
        fill(one, 5)
        assert len(query.drain()) == 5
        assert list(query.ends[-1]["logs"]) == [one.log.log_id]
        gaps = [json.loads(record.value) for record in one.log.partitions[1].records]
        assert {(gap["log_id"], str(gap["partition"]), gap["start"], gap["end"], gap["group"]) for gap in gaps} == {
            (dead.log.log_id, number, at[0], None, "g") for number, at in place.items()
        }
        # The checkpoint no longer names it: the option may be removed.
        query._options = {"consumerGroup": "g"}
        query.restart()
        assert query.batch() == []


def test_a_planned_batch_of_a_retired_log_is_replayed_without_it() -> None:
    with FlightServer() as one, FlightServer() as dead:
        fill(one, 10)
        fill(dead, 20)
        query = Query(one, dead)
        start, end = query.plan()
        dead.down()
        query._servers = (one,)
        query._options = {"retireLogs": dead.log.log_id}
        query.restart()
        assert len(read_rows(query.reader, start, end)) == 10


def test_a_log_that_a_server_holds_is_not_retired(flight_server: FlightServer) -> None:
    reader = open_reader(flight_server, retireLogs=flight_server.log.log_id)
    with pytest.raises(OptionError, match="remove that broker from option servers"):
        reader.initialOffset()


# Patterns, and the size of a batch
