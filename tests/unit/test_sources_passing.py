"""A position follows what its query has passed: looked at, and nothing matched."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.flight_server import FlightServer
from support.source_driver import Json, Query, open_reader, read_rows

from broker_edge.errors import DataLossError
from sources.log_server import LogServer
from sources.passing import PASSED_BYTES_MIN, PASSED_PART, Extent, is_far

pytestmark = pytest.mark.usefixtures("without_idle_memory")

PARTITION = 3
# The payload of a record of another topic: 16 of them are as large as the least that a position follows.
PAYLOAD = bytes(PASSED_BYTES_MIN // 16)


def alarm(server: FlightServer, count: int = 1) -> None:
    """Records that the queries of this file read."""
    for _ in range(count):
        server.log.append("devices/d1/telemetry", b"1", partition=PARTITION)


def others(server: FlightServer, count: int) -> None:
    for _ in range(count):
        server.log.append("devices/d1/status", PAYLOAD, partition=PARTITION)


def gaps(server: FlightServer) -> list[tuple[int, int]]:
    return [(start, end) for number, start, end in server.log.reported_gaps() if number == PARTITION]


def position(query: Query) -> int:
    (places,) = query.start()["logs"].values()
    return int(places[str(PARTITION)][0])


def test_the_position_and_the_group_follow_with_one_batch(flight_server: FlightServer) -> None:
    alarm(flight_server)
    query = Query(flight_server, consumerGroup="g")
    query.drain()
    others(flight_server, 20)
    assert query.drain() == []
    assert position(query) == 21
    assert len(query.ends) == 2
    assert flight_server.log.groups["g"].committed[PARTITION] == 21
    assert flight_server.calls["DoGet"] == 1, "what was looked at is not read again"


def test_a_query_that_starts_again_has_lost_nothing_of_what_it_passed(flight_server: FlightServer) -> None:
    alarm(flight_server)
    query = Query(flight_server)
    query.drain()
    others(flight_server, 40)
    query.drain()
    flight_server.log.expire(PARTITION, 30)
    query.restart()
    alarm(flight_server)
    assert [row["offset"] for row in query.drain()] == [41]


@pytest.mark.parametrize("count", [1, 15])
def test_little_that_was_passed_gives_no_batch(flight_server: FlightServer, count: int) -> None:
    alarm(flight_server)
    query = Query(flight_server, consumerGroup="g")
    query.drain()
    others(flight_server, count)
    for _ in range(3):
        assert query.batch() == []
    assert len(query.ends) == 1
    assert flight_server.log.groups["g"].scanned[PARTITION] == 1 + count


def test_a_small_part_of_a_large_partition_gives_no_batch(flight_server: FlightServer) -> None:
    others(flight_server, 16 * PASSED_PART * 2)
    alarm(flight_server)
    query = Query(flight_server)
    query.drain()
    before = len(query.ends)
    others(flight_server, 16)
    query.drain()
    assert len(query.ends) == before
    others(flight_server, 24)
    query.drain()
    assert len(query.ends) == before + 1


def test_a_query_whose_topics_never_come_makes_few_batches(flight_server: FlightServer) -> None:
    query = Query(flight_server)
    query.start()
    for _ in range(256):
        others(flight_server, 4)
        query.drain()
    # 64 MiB: 1 MiB each up to 8, and then PASSED_PART for each doubling.
    assert 20 <= len(query.ends) <= 8 + 3 * PASSED_PART + 3


def test_a_run_that_ends_follows_up_to_its_end(flight_server: FlightServer) -> None:
    alarm(flight_server)
    query = Query(flight_server, consumerGroup="g")
    query.drain()
    others(flight_server, 20)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    assert query.drain() == []
    others(flight_server, 40)
    alarm(flight_server)
    assert query.drain() == []
    assert position(query) == 21
    assert flight_server.log.groups["g"].committed[PARTITION] == 21


def test_the_end_of_a_run_bounds_what_follows_behind_its_records(flight_server: FlightServer) -> None:
    alarm(flight_server)
    others(flight_server, 20)
    query = Query(flight_server)
    start = query.start()
    query.reader.prepareForTriggerAvailableNow()
    others(flight_server, 30)
    query.batch()
    assert json.dumps(query.start()) != json.dumps(start)
    others(flight_server, 30)
    query.drain()
    assert position(query) == 51


def test_a_position_that_retention_removed_follows_at_once(flight_server: FlightServer) -> None:
    """Only the running query knows that nothing was lost; its checkpoint must know before it ends."""
    alarm(flight_server)
    query = Query(flight_server)
    query.drain()
    others(flight_server, 5)
    query.drain()
    assert position(query) == 1
    flight_server.log.expire(PARTITION, 4)
    assert query.drain() == []
    assert position(query) == 6
    query.restart()
    alarm(flight_server)
    assert [row["offset"] for row in query.drain()] == [6]
    assert read_rows(query.reader, query.ends[-3], query.ends[-2]) == [], "as a replay"


@pytest.mark.parametrize("restarts", [False, True])
def test_retention_behind_the_plan_is_no_loss(flight_server: FlightServer, restarts: bool) -> None:
    """Nothing is read again of what was looked at, in a replay neither."""
    alarm(flight_server)
    query = Query(flight_server)
    query.drain()
    others(flight_server, 40)
    start, end = query.plan()
    assert start != end
    flight_server.log.expire(PARTITION, 41)
    if restarts:
        query.restart()
    assert read_rows(query.reader, start, end) == []


def test_what_was_looked_at_behind_the_end_of_a_run_is_no_loss_later(flight_server: FlightServer) -> None:
    alarm(flight_server)
    query = Query(flight_server)
    query.drain()
    others(flight_server, 5)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()

    def more(name: str) -> None:
        if name == "plan" and flight_server.log.partitions[PARTITION].high_watermark < 10:
            others(flight_server, 10)

    flight_server.before = more
    query.batch()
    flight_server.log.expire(PARTITION, 12)
    query.drain()
    query.restart()
    alarm(flight_server)
    assert [row["offset"] for row in query.drain()] == [16]


def test_a_loss_behind_the_end_of_a_run_is_reported_once(flight_server: FlightServer) -> None:
    alarm(flight_server, 10)
    query = Query(flight_server, failOnDataLoss="false")
    query.reader.prepareForTriggerAvailableNow()
    query.batch(4)
    alarm(flight_server, 20)
    flight_server.log.expire(PARTITION, 20)
    for _ in range(3):
        query.drain()
    assert gaps(flight_server) == [(4, 20)]


@pytest.mark.parametrize("replays", [False, True])
def test_a_broker_of_which_nothing_is_read_is_not_waited_for(flight_server: FlightServer, replays: bool) -> None:
    with FlightServer() as quiet:
        alarm(flight_server, 3)
        others(quiet, 40)
        query = Query(flight_server, quiet)
        start, end = query.plan()
        assert str(PARTITION) in end["logs"][quiet.log.log_id]
        quiet.down()
        if replays:
            query.restart()
            start = query.start()
        assert len(read_rows(query.reader, start, end)) == 3


def test_the_position_follows_before_records_that_are_too_few(flight_server: FlightServer) -> None:
    alarm(flight_server, 10)
    query = Query(flight_server, minOffsetsPerTrigger="5")
    query.drain()
    others(flight_server, 40)
    assert query.drain() == []
    alarm(flight_server, 2)
    assert query.drain() == []
    others(flight_server, 5)
    assert query.drain() == []
    flight_server.log.expire(PARTITION, 50)
    query.restart()
    assert len(query.drain()) == 2, "the first batch of a start does not wait"


def test_one_that_follows_takes_along_all(flight_server: FlightServer) -> None:
    """Or each of many partitions would have a batch of its own."""
    query = Query(flight_server)
    query.start()
    others(flight_server, 40)
    flight_server.log.append("devices/d2/status", b"1", partition=4)
    query.drain()
    assert len(query.ends) == 1
    (places,) = query.start()["logs"].values()
    assert places["4"] == [1, 1, 1]


def test_a_batch_with_records_elsewhere_takes_along_what_was_passed(flight_server: FlightServer) -> None:
    alarm(flight_server)
    query = Query(flight_server)
    query.drain()
    others(flight_server, 20)
    flight_server.log.append("devices/d2/telemetry", b"1", partition=4)
    assert [row["partition"] for row in query.batch()] == [4]
    assert position(query) == 21


def test_a_log_that_was_cut_before_the_position_is_noticed(flight_server: FlightServer) -> None:
    """The position has the epoch of the record before it, which is not one that the query has read."""
    alarm(flight_server)
    flight_server.log.new_epoch(PARTITION)
    query = Query(flight_server)
    query.drain()
    others(flight_server, 20)
    query.drain()
    (places,) = query.start()["logs"].values()
    assert places[str(PARTITION)] == [21, 2, 21]
    flight_server.log.new_epoch(PARTITION, cut_to=10)
    alarm(flight_server, 30)
    with pytest.raises(DataLossError, match="found epoch 3 instead of 2"):
        query.batch()


def test_nothing_follows_into_another_epoch(flight_server: FlightServer) -> None:
    alarm(flight_server)
    query = Query(flight_server)
    query.drain()
    others(flight_server, 20)
    asked = flight_server.calls["offsets"]

    def cut(name: str) -> None:
        # Between the plan and the question for the epoch.
        if name == "offsets" and flight_server.calls["offsets"] == asked + 2:
            flight_server.log.new_epoch(PARTITION, cut_to=5)
            alarm(flight_server, 30)

    flight_server.before = cut
    assert query.batch() == []
    assert position(query) == 1
    flight_server.before = lambda name: None
    assert [row["offset"] for row in query.drain()] == list(range(5, 35))


def test_a_cut_between_the_questions_of_a_plan_skips_nothing(flight_server: FlightServer) -> None:
    alarm(flight_server, 10)
    query = Query(flight_server, failOnDataLoss="false")
    query.drain()
    others(flight_server, 3)

    def cut(name: str) -> None:
        if name == "plan" and flight_server.log.partitions[PARTITION].epoch == 1:
            flight_server.log.new_epoch(PARTITION, cut_to=5)
            alarm(flight_server, 20)

    flight_server.before = cut
    assert query.batch() == []
    assert [row["offset"] for row in query.drain()] == list(range(5, 25))


def test_a_cut_in_a_run_that_ends_is_passed_once(flight_server: FlightServer) -> None:
    alarm(flight_server, 40)
    query = Query(flight_server, failOnDataLoss="false")
    query.reader.prepareForTriggerAvailableNow()
    query.batch(10)
    flight_server.log.new_epoch(PARTITION, cut_to=20)
    alarm(flight_server, 40)
    query.drain()
    assert [row["offset"] for row in query.rows] == list(range(40))


def test_damage_before_the_position_does_not_hide_a_cut(flight_server: FlightServer) -> None:
    """The epoch of a damaged record is not known; that of its partition is."""
    alarm(flight_server, 10)
    query = Query(flight_server, failOnDataLoss="false")
    query.drain()
    others(flight_server, 40)
    flight_server.log.lose(PARTITION, 49, 50)
    query.drain()
    assert position(query) == 50
    flight_server.log.new_epoch(PARTITION, cut_to=45)
    query.drain()
    assert len(query.rows) == 10


@pytest.mark.parametrize("gaps", ["listed", "too many", "not told"])
def test_damage_in_what_was_passed_ends_the_batch(
    flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch, gaps: str
) -> None:
    """Nobody knows the topic of what is gone. Where the broker does not list all damage, the batch looks for it."""
    whole = LogServer.offsets

    def offsets(server: LogServer, **asked: Any) -> Json:
        answer = whole(server, **asked)
        for row in answer["partitions"].values():
            if gaps != "listed":
                del row["gaps"]
            if gaps == "too many":
                row |= {"gaps": [], "gaps_left_out": 3}
        return answer

    monkeypatch.setattr(LogServer, "offsets", offsets)
    alarm(flight_server)
    query = Query(flight_server)
    query.drain()
    others(flight_server, 40)
    flight_server.log.lose(PARTITION, 5, 9)
    with pytest.raises(DataLossError, match="offset 5 of partition 3"):
        query.batch()


@pytest.mark.parametrize("more", [{}, {"minOffsetsPerTrigger": "5"}])
@pytest.mark.parametrize("waits", [0, 2])
def test_a_loss_that_may_be_skipped_is_reported_once(
    flight_server: FlightServer, more: dict[str, str], waits: int
) -> None:
    """Also where no record follows, or too few for a batch: these wait on."""
    alarm(flight_server, 10)
    query = Query(flight_server, failOnDataLoss="false", **more)
    query.drain()
    alarm(flight_server, 10)
    others(flight_server, 5)
    flight_server.log.expire(PARTITION, 22)
    alarm(flight_server, waits)
    for _ in range(3):
        query.drain()
    assert gaps(flight_server) == [(10, 22)]
    assert len(query.rows) == (10 if more else 10 + waits)
    query.restart()
    query.drain()
    assert gaps(flight_server) == [(10, 22)]


def test_a_cut_behind_which_nothing_comes_is_reported_once(flight_server: FlightServer) -> None:
    alarm(flight_server, 100)
    query = Query(flight_server, failOnDataLoss="false")
    query.drain()
    flight_server.log.new_epoch(PARTITION, cut_to=60)
    for _ in range(3):
        query.drain()
    assert gaps(flight_server) == [(60, 100)]
    alarm(flight_server, 5)
    assert [row["offset"] for row in query.drain()] == list(range(60, 65))


def test_a_broker_that_leaves_before_the_position_follows_only_delays_it(flight_server: FlightServer) -> None:
    alarm(flight_server)
    query = Query(flight_server)
    query.drain()
    others(flight_server, 20)
    asked = flight_server.calls["offsets"]

    def leave(name: str) -> None:
        if name == "offsets" and flight_server.calls["offsets"] == asked + 2:
            raise ConnectionResetError

    flight_server.before = leave
    query.batch()
    flight_server.before = lambda name: None
    query.drain()
    assert position(query) == 21


def test_the_rule() -> None:
    mib = PASSED_BYTES_MIN
    assert not is_far(5, 5, Extent(0, 100, 1, 100 * mib))
    assert not is_far(0, 99, Extent(0, 100, 1, mib)), "less than 1 MiB"
    assert is_far(0, 100, Extent(0, 100, 1, mib))
    assert not is_far(50, 62, Extent(0, 100, 1, 100 * mib)), "less than an eighth"
    assert is_far(50, 63, Extent(0, 100, 1, 100 * mib))
    assert is_far(3, 4, Extent(4, 100, 1, 0)), "the position is gone"
    assert not is_far(10, 20, Extent(10, 10, 1, 0)), "an empty partition, and records that came since"
    assert not Extent.of({"log_start": 0, "high_watermark": 9, "epoch": 1}).size_bytes, "a broker that tells no size"


def test_a_start_that_is_not_followed_stays_with_the_group(flight_server: FlightServer) -> None:
    """The place where a group began is not changed by what follows."""
    others(flight_server, 20)
    reader = open_reader(flight_server, startingOffsets="latest", consumerGroup="g")
    begun = reader.initialOffset()
    others(flight_server, 20)
    query = Query(flight_server, startingOffsets="latest", consumerGroup="g")
    query.drain()
    assert position(query) == 40
    query.restart()
    assert query.reader.initialOffset() == begun
