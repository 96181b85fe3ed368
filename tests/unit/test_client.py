"""The Flight client against the service in memory: its requests and results, and that it reads each record once."""

from __future__ import annotations

import threading
import time

import pyarrow as pa
import pytest
from support.flight_server import SCHEMA, FlightServer, refusal

from broker_edge import Client, Commit, Place, RefusedError, Row


@pytest.fixture
def client(flight_server: FlightServer) -> Client:
    return Client(flight_server.location, timeout_s=60)


def fill(server: FlightServer, count: int, *, partition: int = 3, devices: int = 2) -> None:
    for i in range(count):
        server.log.append(f"devices/d{i % devices}/telemetry", b"%d" % i, partition=partition, timestamp_us=1_000 + i)


def offsets_of(table: pa.Table) -> list[int]:
    return list(table.column("offset").to_pylist())


def test_version_names_the_log(flight_server: FlightServer, client: Client) -> None:
    version = client.version()
    assert version.log_id == flight_server.log.log_id
    assert (version.protocol, version.format) == (1, 1)


def test_topics_come_from_every_result_of_a_long_listing(flight_server: FlightServer, client: Client) -> None:
    for i in range(2_500):
        flight_server.log.append(f"devices/d{i}/telemetry", b"")
    topics = client.topics("devices/+/telemetry")
    assert len({topic.topic for topic in topics}) == 2_500
    assert all(topic.first < topic.next and topic.class_name == "telemetry" for topic in topics)


def test_filters_choose_the_topics(flight_server: FlightServer, client: Client) -> None:
    flight_server.log.append("devices/a/telemetry", b"")
    flight_server.log.append("devices/a/actions", b"")
    assert [topic.topic for topic in client.topics(["devices/+/actions"])] == ["devices/a/actions"]
    assert client.topics("nothing/here") == []


def test_offsets_give_bounds_times_and_epochs(flight_server: FlightServer, client: Client) -> None:
    fill(flight_server, 10)
    flight_server.log.expire(3, 4)
    found = client.offsets(partitions=[3], time_us=1_006, epoch_before={3: 5})
    bounds = found.partitions[3]
    assert (bounds.log_start, bounds.high_watermark, bounds.offset_for_time, bounds.epoch_before) == (4, 10, 6, 1)
    assert client.offsets(partitions=[3], epoch_before={3: 4}).partitions[3].epoch_before is None


def test_a_plan_ends_after_the_last_matching_record(flight_server: FlightServer, client: Client) -> None:
    fill(flight_server, 10)
    plan = client.plan({3: 0}, filters="devices/d0/telemetry", max_records=2).partitions[3]
    assert (plan.start, plan.end, plan.scanned, plan.records) == (0, 3, 4, 2)
    none = client.plan({3: 9}, filters="devices/d0/telemetry").partitions[3]
    assert (none.end, none.scanned, none.records) == (9, 10, 0)


def test_fetch_gives_the_range_once_and_in_order(flight_server: FlightServer, client: Client) -> None:
    fill(flight_server, 100)
    table = client.fetch(3, 10, 60, batch_rows=7).to_table()
    assert offsets_of(table) == list(range(10, 60))
    assert table.schema == SCHEMA


def test_fetch_with_a_filter_still_reaches_the_end(flight_server: FlightServer, client: Client) -> None:
    fill(flight_server, 9)
    with client.fetch(3, 0, 9, filters="devices/d0/telemetry") as stream:
        assert [batch.column("offset").to_pylist() for batch in stream] == [[0, 2, 4, 6, 8]]
        assert stream.next_offset == 9


def test_an_empty_range_is_an_empty_table_with_the_schema(flight_server: FlightServer, client: Client) -> None:
    fill(flight_server, 3)
    table = client.fetch(3, 2, 2).to_table()
    assert (table.num_rows, table.schema) == (0, SCHEMA)


def test_tail_gives_old_and_new_records_until_it_is_closed(flight_server: FlightServer, client: Client) -> None:
    fill(flight_server, 3)
    seen: list[int] = []
    with client.tail(3, 1) as stream:
        for batch in stream:
            seen += batch.column("offset").to_pylist()
            if seen == [1, 2]:
                fill(flight_server, 2)
            if len(seen) >= 4:
                break
    assert seen == [1, 2, 3, 4]


def test_an_idle_tail_tells_that_nothing_new_is_there(flight_server: FlightServer, client: Client) -> None:
    fill(flight_server, 3)
    with client.tail(3, 3, idle=True) as stream:
        batch = next(stream)
        assert (batch.num_rows, stream.next_offset) == (0, 3)


def test_closing_a_tail_wakes_the_thread_that_waits_in_it(flight_server: FlightServer, client: Client) -> None:
    stream = client.tail(3, 0)
    seen: list[object] = []
    reader = threading.Thread(target=lambda: seen.extend(stream))
    reader.start()
    deadline = time.monotonic() + 60
    while flight_server.calls.get("DoGet", 0) == 0 and time.monotonic() < deadline:
        reader.join(0.01)
    stream.close()
    reader.join(60)
    assert not reader.is_alive()
    assert seen == []


def test_produced_rows_can_be_read_at_their_places(flight_server: FlightServer, client: Client) -> None:
    rows = [
        Row("devices/a/telemetry", b"1", key=b"k", headers=[("unit", b"K")], qos=0, retain=True),
        Row("other", b"\x00\xff"),
    ]
    places = client.produce(rows)
    for row, place in zip(rows, places, strict=True):
        (found,) = client.fetch(place.partition, place.offset, place.offset + 1).to_table().to_pylist()
        assert (found["topic"], found["value"], found["qos"]) == (row.topic, row.value, row.qos)
        assert found["retain"] is row.retain
    assert found["headers"] is None


def test_a_repeated_idempotency_key_appends_nothing(client: Client) -> None:
    rows = [Row("devices/a/actions", b"go", idempotency_key="act-1/a/1")]
    first = client.produce(rows)
    again = client.produce(rows)
    assert first == [Place(first[0].partition, first[0].offset, False)]
    assert again == [Place(first[0].partition, first[0].offset, True)]


def test_many_rows_go_in_several_batches_and_keep_their_order(flight_server: FlightServer, client: Client) -> None:
    places = client.produce(Row("one/topic", b"%d" % i) for i in range(10_000))
    assert [place.offset for place in places] == list(range(10_000))
    assert flight_server.calls["DoPut"] == 1


def test_an_arrow_table_can_be_produced(client: Client) -> None:
    table = pa.table({"topic": ["a", "a"], "value": pa.array([b"1", b"2"], pa.binary())})
    assert [place.offset for place in client.produce(table)] == [0, 1]


def test_a_reserved_topic_is_refused_and_nothing_of_the_batch_is_there(
    flight_server: FlightServer, client: Client
) -> None:
    with pytest.raises(RefusedError, match=r"\$receipts") as caught:
        client.produce([Row("fine", b""), Row("$receipts", b"")])
    assert caught.value.field == "topic"
    assert all(not partition.records for partition in flight_server.log.partitions.values())


def test_a_row_of_the_wrong_type_is_refused_before_anything_is_sent(
    flight_server: FlightServer, client: Client
) -> None:
    with pytest.raises(RefusedError, match="is str, not bytes"):
        client.produce([Row("a", "text")])  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="wrong type"):
        client.produce([Row("a", b"", qos="one")])  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="not dict"):
        client.produce([{"topic": "a"}])  # type: ignore[list-item]
    assert "DoPut" not in flight_server.calls


def test_groups_come_whole_however_many_pages_they_take(client: Client) -> None:
    names = [f"g{number}" for number in range(5)]
    for name in names:
        client.commit(name, reader_epoch=1)
    assert [group.group for group in client.groups()] == names


def test_groups_keep_the_first_initial_offsets_and_the_last_committed(client: Client) -> None:
    client.commit("bronze", reader_epoch=1, initial={3: 5})
    client.commit("bronze", reader_epoch=1, initial={3: 9, 4: 0}, offsets={3: Commit(7, scanned=8)})
    group = client.committed("bronze")
    assert (group.partitions[3].initial, group.partitions[3].committed, group.partitions[3].scanned) == (5, 7, 8)
    assert (group.partitions[4].initial, group.partitions[4].committed) == (0, None)
    assert [(one.finished, one.next) for one in group.partitions.values()] == [(7, 8), (0, 0)]
    assert [one.group for one in client.groups()] == ["bronze"]


def test_a_gap_is_recorded(flight_server: FlightServer, client: Client) -> None:
    client.gap(3, 5, 9, reason="retention", group="bronze")
    (record,) = flight_server.log.partitions[1].records
    assert record.topic == "$gaps"
    assert b'"start": 5' in record.value


def test_a_write_is_tried_once(flight_server: FlightServer, client: Client) -> None:
    def refuse(name: str) -> None:
        raise refusal("unavailable", "going down")

    flight_server.before = refuse
    for attempt in (lambda: client.commit("g", reader_epoch=1), lambda: client.produce([Row("a", b"")])):
        with pytest.raises(Exception, match="going down"):
            attempt()
    assert (flight_server.calls["commit"], flight_server.calls["DoPut"]) == (1, 1)
