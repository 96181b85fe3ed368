"""The stream reader against a broker in memory: where it starts, how far a batch goes, and identical replays."""

from __future__ import annotations

import json
import pickle

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.flight_server import FlightServer, refusal
from support.memory_log import Partition
from support.source_driver import Query, fill, open_reader, places, read_rows, through_json

from broker_edge.errors import FencedError, OffsetError, OptionError, UnavailableError


@pytest.fixture(autouse=True)
def without_idle_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sources.stream.IDLE_SECONDS", 0.0)


def test_every_matching_record_comes_once_and_nothing_else(flight_server: FlightServer) -> None:
    fill(flight_server, 200)
    fill(flight_server, 50, topic="devices/d1/status")
    query = Query(flight_server)
    assert len(query.drain()) == 200
    fill(flight_server, 30)
    assert len(query.drain()) == 30
    assert len(set(places(query.rows))) == 230
    assert {row["topic"].rpartition("/")[2] for row in query.rows} == {"telemetry"}


def test_a_restart_goes_on_where_the_checkpoint_is(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    query = Query(flight_server, maxOffsetsPerTrigger="30")
    query.batch()
    query.restart()
    query.drain()
    assert len(set(places(query.rows))) == len(query.rows) == 100


def test_a_replayed_batch_reads_the_same_rows(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    query = Query(flight_server)
    start, end = query.plan(40)
    rows = read_rows(query.reader, start, end)
    fill(flight_server, 100)
    query.restart()
    assert read_rows(query.reader, start, end) == rows


def test_a_batch_holds_at_most_max_offsets(flight_server: FlightServer) -> None:
    fill(flight_server, 500)
    query = Query(flight_server, maxOffsetsPerTrigger="70")
    sizes = []
    while rows := query.batch():
        sizes.append(len(rows))
    assert max(sizes) <= 70
    assert sum(sizes) == 500


def test_the_limit_is_shared_by_all_brokers() -> None:
    with FlightServer() as one, FlightServer() as other:
        fill(one, 300)
        fill(other, 100)
        query = Query(one, other, maxOffsetsPerTrigger="40")
        assert 0 < len(query.batch()) <= 40
        query.drain()
        assert len(set(places(query.rows))) == 400


def test_an_idle_query_moves_nothing_and_asks_little(
    flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sources.stream.IDLE_SECONDS", 3_600.0)
    fill(flight_server, 10)
    query = Query(flight_server, consumerGroup="g")
    query.drain()
    start, end = query.plan()
    calls = sum(flight_server.calls.values())
    assert calls > 0
    for _ in range(20):
        assert json.dumps(query.plan()) == json.dumps((start, end))
    assert json.dumps(start) == json.dumps(end)
    assert sum(flight_server.calls.values()) == calls


def test_records_that_do_not_match_move_nothing(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    query = Query(flight_server)
    query.drain()
    fill(flight_server, 100, topic="devices/d1/status")
    assert query.batch() == []
    assert len(query.ends) == 1


def test_available_now_ends_at_the_heads_it_saw(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    query = Query(flight_server, maxOffsetsPerTrigger="30")
    query.reader.prepareForTriggerAvailableNow()
    assert len(query.batch()) == 30
    fill(flight_server, 500)
    query.drain()
    assert len(query.rows) == 100
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    query.drain()
    assert len(set(places(query.rows))) == len(query.rows) == 600


def test_a_new_partition_enters_empty_and_is_then_read_whole(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    query = Query(flight_server)
    query.drain()
    log = flight_server.log
    log.partitions[9] = Partition(9, "telemetry", 2)
    fill(flight_server, 25, partition=9)
    assert query.batch() == []
    assert len(query.drain()) == 25


def test_a_new_broker_enters_with_all_it_has() -> None:
    with FlightServer() as one, FlightServer() as other:
        fill(one, 10)
        fill(other, 20)
        query = Query(one)
        query.drain()
        query._servers = (one, other)
        query.restart()
        assert len(query.drain()) == 20


# The start


@pytest.mark.parametrize("start", [{"startingOffsets": "latest"}, {"startingTimestamp": "2999999"}])
def test_a_start_that_moves_is_resolved_once(flight_server: FlightServer, start: dict[str, str]) -> None:
    if "startingTimestamp" in start:
        start = {"startingTimestamp": "2100-01-01T00:00:00Z", "startingOffsetsByTimestampStrategy": "latest"}
    fill(flight_server, 10)
    first = open_reader(flight_server, consumerGroup="g", **start).initialOffset()
    fill(flight_server, 10)
    assert open_reader(flight_server, consumerGroup="g", **start).initialOffset() == first
    # Negative control: without the group's stored start, the start moves.
    assert open_reader(flight_server, consumerGroup="other", **start).initialOffset() != first


def test_a_start_by_time_is_the_first_record_at_or_after_it(flight_server: FlightServer) -> None:
    for second in range(10):
        flight_server.log.append("devices/d1/telemetry", b"x", timestamp_us=second * 1_000_000)
    query = Query(flight_server, startingTimestamp="3500", consumerGroup="g")
    assert [row["timestamp"].second for row in query.drain()] == [4, 5, 6, 7, 8, 9]


def test_named_starting_offsets_are_kept_to_and_others_begin_at_the_oldest(flight_server: FlightServer) -> None:
    fill(flight_server, 10, partition=3)
    fill(flight_server, 10, partition=4)
    offsets = json.dumps({flight_server.log.log_id: {"3": [7, 1]}})
    query = Query(flight_server, startingOffsets=offsets)
    rows = query.drain()
    assert [row["offset"] for row in rows if row["partition"] == 3] == [7, 8, 9]
    assert len([row for row in rows if row["partition"] == 4]) == 10


def test_starting_offsets_for_what_is_not_there_are_refused(flight_server: FlightServer) -> None:
    log_id = flight_server.log.log_id
    with pytest.raises(OptionError, match="no server holds log nowhere"):
        open_reader(flight_server, startingOffsets='{"nowhere":{"3":1}}').initialOffset()
    with pytest.raises(OptionError, match="names partition 2 of log"):
        open_reader(flight_server, startingOffsets=json.dumps({log_id: {"2": 0}})).initialOffset()


def test_assigned_partitions_are_read_whole(flight_server: FlightServer) -> None:
    fill(flight_server, 10, partition=3)
    fill(flight_server, 5, partition=4)
    fill(flight_server, 5, partition=4, topic="other")
    query = Query(flight_server, assign=json.dumps({flight_server.log.log_id: [4]}))
    assert len(query.drain()) == 10


# The group


def test_the_group_hears_what_has_been_finished(flight_server: FlightServer) -> None:
    fill(flight_server, 50, partition=3)
    query = Query(flight_server, consumerGroup="g")
    query.batch(20)
    group = flight_server.log.groups["g"]
    assert group.initial == {3: 0, 4: 0}
    assert group.committed.get(3, 0) == 0, "a planned batch is not a finished one"
    query.batch(20)
    assert group.committed[3] == 20


def test_a_group_with_a_narrow_filter_says_how_far_it_has_looked(
    flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lag is what it has not looked at: an idle group would otherwise look stuck."""
    now = [1_000.0]
    monkeypatch.setattr("sources.group.time.monotonic", lambda: now[0])
    fill(flight_server, 10, partition=3)
    query = Query(flight_server, consumerGroup="g")
    query.drain()
    group = flight_server.log.groups["g"]
    fill(flight_server, 100, partition=3, topic="devices/d1/status")

    def commits() -> int:
        return flight_server.calls["commit"]

    told = commits()
    for _ in range(5):
        assert query.batch() == []
    assert commits() == told, "news without records wait a while"
    now[0] += 11.0
    assert query.batch() == []
    assert (group.committed[3], group.scanned[3], commits()) == (10, 110, told + 1)
    now[0] += 11.0
    assert query.batch() == []
    assert commits() == told + 1, "nothing is new"
    fill(flight_server, 1, partition=3)
    assert len(query.batch()) == 1
    query.batch()
    assert (group.committed[3], commits()) == (111, told + 2), "a finished record is told at once"


def test_a_newer_reader_of_the_group_ends_the_older(flight_server: FlightServer) -> None:
    fill(flight_server, 50)
    older = Query(flight_server, consumerGroup="g")
    older.batch(10)
    newer = Query(flight_server, consumerGroup="g")
    newer.batch(10)
    with pytest.raises(FencedError, match="another query reads with consumer group g"):
        older.batch(10)


# Unreachable brokers


def test_a_pattern_reads_topics_that_come_later_too(flight_server: FlightServer) -> None:
    query = Query(flight_server, subscribePattern="devices/(d1|e.)/telemetry")
    fill(flight_server, 40)
    assert {row["topic"] for row in query.drain()} == {"devices/d1/telemetry"}
    flight_server.log.append("devices/e5/telemetry", b"new")
    flight_server.log.append("devices/e55/telemetry", b"no")
    assert [row["topic"] for row in query.drain()] == ["devices/e5/telemetry"]


def test_a_small_batch_waits_until_it_is_large_enough_or_late(
    flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000.0]
    monkeypatch.setattr("sources.stream.monotonic", lambda: now[0])
    query = Query(flight_server, minOffsetsPerTrigger="20", maxTriggerDelay="60s")
    fill(flight_server, 5)
    assert len(query.batch()) == 5, "as in Kafka, the first batch does not wait"
    fill(flight_server, 19)
    fill(flight_server, 100, topic="devices/d1/status")
    assert query.batch() == []
    fill(flight_server, 1)
    assert len(query.batch()) == 20
    fill(flight_server, 3)
    now[0] += 59.0
    assert query.batch() == []
    now[0] += 2.0
    assert len(query.batch()) == 3


def test_a_small_batch_does_not_wait_in_a_run_that_ends(flight_server: FlightServer) -> None:
    query = Query(flight_server, minOffsetsPerTrigger="20")
    fill(flight_server, 5)
    query.drain()
    fill(flight_server, 5)
    query.restart()
    query.reader.prepareForTriggerAvailableNow()
    query.reader._session.planned_at = 1e12
    assert len(query.drain()) == 5


def test_a_batch_that_the_limit_cut_does_not_wait(flight_server: FlightServer) -> None:
    query = Query(flight_server, minOffsetsPerTrigger="50", maxBytesPerTrigger="10")
    fill(flight_server, 5)
    query.drain()
    fill(flight_server, 40)
    assert len(query.batch()) > 0


def test_what_waits_and_matches_nothing_does_not_starve_another_broker() -> None:
    with FlightServer() as loud, FlightServer() as quiet:
        fill(loud, 3_000, topic="devices/d1/status")
        query = Query(loud, quiet, maxOffsetsPerTrigger="10")
        fill(quiet, 25)
        assert len(query.batch()) > 0
        assert len(query.drain()) + len(query.rows) >= 25


def test_what_matches_nothing_is_looked_through_once(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    query = Query(flight_server)
    query.drain()
    fill(flight_server, 500, topic="devices/d1/status")
    assert query.batch() == []
    plans = flight_server.calls["plan"]
    assert query.batch() == []
    assert flight_server.calls["plan"] == plans, "there are no new records since"
    fill(flight_server, 3)
    assert len(query.batch()) == 3
    # A truncated log is scanned again, because its new records may match.
    fill(flight_server, 50, topic="devices/d1/status", partition=3)
    query.batch()
    head = flight_server.log.partitions[3].high_watermark
    flight_server.log.new_epoch(3, cut_to=head - 50)
    fill(flight_server, 50, partition=3)
    assert len(query.drain()) == 50


def test_a_time_after_the_newest_record_is_an_error_unless_allowed(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    late = {"startingTimestamp": "2100-01-01T00:00:00Z", "consumerGroup": "g"}
    with pytest.raises(OptionError, match="startingOffsetsByTimestampStrategy=latest"):
        open_reader(flight_server, **late).initialOffset()
    assert flight_server.log.groups.get("g") is None, "a refused start is not stored"
    query = Query(flight_server, startingOffsetsByTimestampStrategy="latest", **late)
    assert query.batch() == []
    fill(flight_server, 5)
    assert len(query.drain()) == 5


def test_a_partition_that_is_quiet_begins_at_its_end_where_another_has_the_time(flight_server: FlightServer) -> None:
    flight_server.log.append("devices/d1/telemetry", b"old", timestamp_us=1_000_000, partition=3)
    flight_server.log.append("devices/d2/telemetry", b"new", timestamp_us=9_000_000, partition=4)
    query = Query(flight_server, startingTimestamp="5000", consumerGroup="g")
    assert [row["value"] for row in query.drain()] == [b"new"]


def test_a_call_is_tried_again_as_often_as_allowed(flight_server: FlightServer) -> None:
    fill(flight_server, 5)
    failures = [2]

    def fail(name: str) -> None:
        if failures[0]:
            failures[0] -= 1
            raise refusal("unavailable", "too much to do")

    flight_server.before = fail
    assert open_reader(flight_server).initialOffset()["logs"]
    failures[0] = 1
    with pytest.raises(UnavailableError, match="too much to do"):
        open_reader(flight_server, **{"fetchOffset.numRetries": "0"}).initialOffset()


# Spark's requirements


def test_readers_are_cheap_to_make_and_travel(flight_server: FlightServer) -> None:
    reader = open_reader(flight_server, consumerGroup="g")
    assert flight_server.calls == {}
    start = reader.initialOffset()
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.latestOffset(start, ReadAllAvailable()) == start


def test_min_partitions_splits_ranges_without_loss(flight_server: FlightServer) -> None:
    fill(flight_server, 100, partition=3)
    fill(flight_server, 300, partition=4)
    query = Query(flight_server, minPartitions="8")
    start, end = query.plan()
    assert len(query.reader.partitions(start, end)) == 8
    assert len(set(places(read_rows(query.reader, start, end)))) == 400


def test_a_changed_subscription_is_refused(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    query = Query(flight_server)
    query.drain()
    reader = open_reader(flight_server, subscribe="artifacts/#")
    with pytest.raises(OffsetError, match="the subscription was changed"):
        reader.latestOffset(through_json(query.start()), ReadAllAvailable())
