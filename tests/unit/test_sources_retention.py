"""Retention that acts while a batch is planned: between the list of the offsets and the plan, or before the read.

A query then ends, or passes the loss, as if retention had acted before the first question.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from support.flight_server import FlightServer, refusal
from support.source_driver import Json, Query, fill, places, read_rows

from broker_edge.errors import DataLossError, RefusedError

pytestmark = pytest.mark.usefixtures("without_idle_memory")

PARTITION, OTHER = 3, 4


def once(server: FlightServer, name: str, act: Callable[[], None]) -> None:
    """Acts before the next request of this name is answered."""

    def before(called: str) -> None:
        if called == name:
            server.before = lambda _: None
            act()

    server.before = before


def gaps(server: FlightServer, partition: int = PARTITION) -> list[tuple[int, int]]:
    return [(start, end) for number, start, end in server.log.reported_gaps() if number == partition]


def offsets_of(rows: list[Json], partition: int = PARTITION) -> list[int]:
    return [row["offset"] for row in rows if row["partition"] == partition]


def position(query: Query, partition: int = PARTITION) -> list[int | None]:
    (found,) = query.start()["logs"].values()
    return found[str(partition)]  # type: ignore[no-any-return]


def at_the_oldest(server: FlightServer, **options: str) -> Query:
    """A query whose position, 20, is the oldest record of 100."""
    fill(server, 100, partition=PARTITION)
    query = Query(server, **options)
    query.batch(20)
    server.log.expire(PARTITION, 20)
    return query


def behind_others(server: FlightServer, **options: str) -> Query:
    """A query at position 10, which has looked at the records of other topics up to 60; 40 of its own follow."""
    fill(server, 10, partition=PARTITION)
    query = Query(server, **options)
    query.drain()
    fill(server, 50, partition=PARTITION, topic="devices/d1/status")
    assert query.drain() == []
    fill(server, 40, partition=PARTITION)
    return query


Begin = Callable[..., Query]
CASES: list[tuple[Begin, int, list[tuple[int, int]]]] = [
    (at_the_oldest, 50, [(20, 50)]),
    (at_the_oldest, 100, [(20, 100)]),
    (behind_others, 40, []),
    (behind_others, 70, [(10, 70)]),
    (behind_others, 100, [(10, 100)]),
]
WHEN = pytest.mark.parametrize("when", ["offsets", "plan"])


@WHEN
@pytest.mark.parametrize(("begin", "log_start", "lost"), CASES)
def test_the_loss_is_named(
    flight_server: FlightServer, when: str, begin: Begin, log_start: int, lost: list[tuple[int, int]]
) -> None:
    query = begin(flight_server, consumerGroup="g")
    once(flight_server, when, lambda: flight_server.log.expire(PARTITION, log_start))
    if not lost:
        assert offsets_of(query.drain()) == list(range(60, 100))
        return
    says = f"offset {lost[0][0]} of partition 3 .* the oldest kept is {log_start} .*retention .* failOnDataLoss=false"
    with pytest.raises(DataLossError, match=says):
        query.plan()
    assert gaps(flight_server) == []


@pytest.mark.parametrize("options", [{}, {"minOffsetsPerTrigger": "5"}, {"maxOffsetsPerTrigger": "7"}])
@pytest.mark.parametrize("is_bounded", [False, True])
@WHEN
@pytest.mark.parametrize(("begin", "log_start", "lost"), CASES)
def test_the_loss_is_passed_and_recorded_once(
    flight_server: FlightServer,
    when: str,
    begin: Begin,
    log_start: int,
    lost: list[tuple[int, int]],
    is_bounded: bool,
    options: dict[str, str],
) -> None:
    query = begin(flight_server, failOnDataLoss="false", **options)
    already = len(query.rows)
    if is_bounded:
        query.reader.prepareForTriggerAvailableNow()
    once(flight_server, when, lambda: flight_server.log.expire(PARTITION, log_start))
    for _ in range(2):
        query.drain()
    read = [offset for offset in range(log_start, 100) if begin is at_the_oldest or offset >= 60]
    assert offsets_of(query.rows[already:]) == read
    assert gaps(flight_server) == lost
    query.restart()
    assert query.drain() == []
    assert gaps(flight_server) == lost
    assert position(query)[0] == 100


def test_the_batch_of_the_loss_is_the_same_in_a_replay(flight_server: FlightServer) -> None:
    query = at_the_oldest(flight_server, failOnDataLoss="false")
    once(flight_server, "plan", lambda: flight_server.log.expire(PARTITION, 50))
    start, end = query.plan(10)
    query.restart()
    assert offsets_of(read_rows(query.reader, start, end)) == list(range(50, 60))
    assert gaps(flight_server) == [(20, 50)]


def test_a_loss_that_was_recorded_already_is_not_recorded_again(flight_server: FlightServer) -> None:
    """Retention acts before the first question and between the two, in one partition and in another."""
    for number in (PARTITION, OTHER):
        fill(flight_server, 100, partition=number)
    query = Query(flight_server, failOnDataLoss="false")
    query.batch(40)
    flight_server.log.expire(PARTITION, 50)

    def expire() -> None:
        flight_server.log.expire(PARTITION, 60)
        flight_server.log.expire(OTHER, 70)

    once(flight_server, "plan", expire)
    query.drain()
    assert gaps(flight_server) == [(20, 50), (50, 60)]
    assert gaps(flight_server, OTHER) == [(20, 70)]
    assert offsets_of(query.rows) == [*range(20), *range(60, 100)]
    assert offsets_of(query.rows, OTHER) == [*range(20), *range(70, 100)]


def test_a_loss_in_one_partition_stays_passed_when_another_is_looked_at_again(flight_server: FlightServer) -> None:
    for number in (PARTITION, OTHER):
        fill(flight_server, 100, partition=number)
    query = Query(flight_server, failOnDataLoss="false")
    query.batch(40)
    flight_server.log.expire(PARTITION, 100)
    once(flight_server, "plan", lambda: flight_server.log.expire(OTHER, 70))
    query.drain()
    assert gaps(flight_server) == [(20, 100)]
    assert gaps(flight_server, OTHER) == [(20, 70)]
    assert position(query) == [100, 1, 100]


def test_a_partition_that_joins_begins_at_its_oldest_record_of_then(flight_server: FlightServer) -> None:
    for number in (PARTITION, OTHER):
        fill(flight_server, 10, partition=number)
    query = Query(flight_server, failOnDataLoss="false")
    start = query.start()
    del start["logs"][flight_server.log.log_id][str(OTHER)]
    query.ends.append(start)

    def expire() -> None:
        flight_server.log.expire(PARTITION, 3)
        flight_server.log.expire(OTHER, 5)

    once(flight_server, "plan", expire)
    query.drain()
    assert gaps(flight_server) == [(0, 3)]
    assert gaps(flight_server, OTHER) == []
    assert offsets_of(query.rows, OTHER) == list(range(5, 10))


def test_the_second_plan_of_a_broker_with_more_records_than_its_share(flight_server: FlightServer) -> None:
    """Another broker has many records that do not match, and leaves its share of the limit to this one."""
    with FlightServer() as quiet:
        fill(flight_server, 100, partition=PARTITION)
        fill(quiet, 100, partition=PARTITION, topic="devices/d1/status")
        query = Query(flight_server, quiet, failOnDataLoss="false")
        query.start()
        once(
            flight_server,
            "plan",
            lambda: once(flight_server, "plan", lambda: flight_server.log.expire(PARTITION, 30)),
        )
        assert offsets_of(query.batch(40)) == list(range(30, 70))
        assert gaps(flight_server) == [(0, 30)]


def test_a_broker_that_goes_away_once_its_loss_is_skipped_does_not_go_back(flight_server: FlightServer) -> None:
    """Its first plan of the batch began before what retention has removed since."""
    plans = itertools.count(1)

    def act(name: str) -> None:
        if name != "plan":
            return
        number = next(plans)
        if number == 2:
            flight_server.log.expire(PARTITION, 30)
        elif number > 2:
            raise refusal("unavailable", "it stops")

    with FlightServer() as quiet:
        fill(flight_server, 100, partition=PARTITION)
        fill(quiet, 100, partition=PARTITION, topic="devices/d1/status")
        query = Query(flight_server, quiet, failOnDataLoss="false")
        query.start()
        flight_server.before = act
        assert query.batch(40) == []
        assert next(plans) > 3
        flight_server.before = lambda _: None
        query.drain()
        assert offsets_of(query.rows) == list(range(30, 100))
        assert gaps(flight_server) == [(0, 30)]


@pytest.mark.parametrize("fails", [True, False])
def test_a_log_that_is_cut_between_the_questions(flight_server: FlightServer, fails: bool) -> None:
    fill(flight_server, 40, partition=PARTITION)
    query = Query(flight_server, failOnDataLoss=str(fails).lower())
    query.drain()
    fill(flight_server, 5, partition=PARTITION)
    once(flight_server, "plan", lambda: flight_server.log.new_epoch(PARTITION, cut_to=30))
    if fails:
        with pytest.raises(DataLossError, match="the log ends at 30: the log was truncated and rewritten"):
            query.drain()
    else:
        query.drain()
        assert gaps(flight_server) == [(30, 40)]
        fill(flight_server, 3, partition=PARTITION)
        assert offsets_of(query.drain()) == [30, 31, 32]


def test_retention_that_is_always_faster_ends_no_query(flight_server: FlightServer) -> None:
    """After some questions the next plan asks on."""
    query = at_the_oldest(flight_server, failOnDataLoss="false")

    def expire(name: str) -> None:
        place = flight_server.log.partitions[PARTITION]
        if name == "plan" and place.log_start < 90:
            flight_server.log.expire(PARTITION, place.log_start + 1)

    flight_server.before = expire
    asked = flight_server.calls["plan"]
    assert query.batch() == []
    assert flight_server.calls["plan"] - asked < 10
    query.drain()
    assert offsets_of(query.rows) == [*range(20), *range(90, 100)]
    assert gaps(flight_server) == [(offset, offset + 1) for offset in range(20, 90)]


def test_a_refusal_that_nothing_explains_ends_the_query(flight_server: FlightServer) -> None:
    query = at_the_oldest(flight_server, failOnDataLoss="false")

    def refuse(name: str) -> None:
        if name == "plan":
            raise refusal("out_of_range", "never", partition=3, log_start=0, high_watermark=100, wanted=20)

    flight_server.before = refuse
    with pytest.raises(RefusedError, match="out_of_range"):
        query.batch()


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize(("log_start", "lost"), [(50, (20, 50)), (100, (20, 100))])
def test_retention_between_the_plan_and_the_read(
    flight_server: FlightServer, fails: bool, log_start: int, lost: tuple[int, int]
) -> None:
    query = at_the_oldest(flight_server, failOnDataLoss=str(fails).lower())
    once(flight_server, "DoGet", lambda: flight_server.log.expire(PARTITION, log_start))
    if fails:
        says = f"offset 20 of partition 3 .* the oldest kept is {log_start} .*retention .* failOnDataLoss=false"
        with pytest.raises(DataLossError, match=says):
            query.batch()
    else:
        assert offsets_of(query.batch()) == list(range(log_start, 100))
        assert query.drain() == []
        assert gaps(flight_server) == [lost]
        assert len(set(places(query.rows))) == len(query.rows)
