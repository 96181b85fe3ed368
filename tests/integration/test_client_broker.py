"""The Python client against the real broker: produced records can be read once, at their offset, also after a kill."""

from __future__ import annotations

import pyarrow as pa
import pytest
from support.flight_server import SCHEMA
from support.paho_client import PahoClient
from support.slow_link import SlowLink

from broker_edge import (
    Client,
    Commit,
    ConnectError,
    FencedError,
    NotFoundError,
    OutOfRangeError,
    Place,
    RefusedError,
    Row,
    UnavailableError,
)
from broker_edge.torture.process import BrokerProcess


def server(broker: BrokerProcess) -> str:
    return "grpc://{}:{}".format(*broker.flight)


def rows(count: int, *, device: str = "d1") -> list[Row]:
    return [Row(f"devices/{device}/telemetry", b"%d" % i) for i in range(count)]


def test_version_speaks_this_protocol(client: Client) -> None:
    version = client.version()
    assert (version.protocol, version.format) == (1, 1)
    assert len(version.log_id) == 36


def test_partitions_have_names_and_classes(client: Client) -> None:
    bounds = client.offsets().partitions
    assert "internal" not in {one.class_name for one in bounds.values()}
    assert {"control-0", "artifacts-0", "telemetry-0", "telemetry-1"} <= {one.name for one in bounds.values()}


def test_records_come_in_the_canonical_schema(client: Client) -> None:
    row = Row("devices/d1/telemetry", b"\x00\xff", key=b"k", headers=[("unit", b"K")], qos=1, retain=True)
    (place,) = client.produce([row])
    table = client.fetch(place.partition, place.offset, place.offset + 1).to_table()
    assert table.schema.equals(SCHEMA), table.schema
    (found,) = table.to_pylist()
    assert (found["topic"], found["value"], found["key"]) == (row.topic, row.value, b"k")
    assert found["headers"] == [{"key": "unit", "value": b"K"}]
    assert (found["partition"], found["offset"], found["timestampType"]) == (place.partition, place.offset, 1)
    assert (found["qos"], found["retain"], found["log_id"]) == (1, True, client.version().log_id)
    assert found["timestamp"].tzinfo is not None


def test_without_headers_they_are_null_and_the_key_is_the_routing_level(client: Client) -> None:
    (place,) = client.produce([Row("devices/d1/telemetry", b"")])
    (found,) = client.fetch(place.partition, place.offset, place.offset + 1).to_table().to_pylist()
    assert (found["headers"], found["key"]) == (None, b"d1")


def test_a_large_range_is_whole_and_in_order(client: Client) -> None:
    places = client.produce(rows(20_000))
    (partition,) = {place.partition for place in places}
    seen: list[int] = []
    with client.fetch(partition, 0, 20_000, batch_rows=1_000) as stream:
        for batch in stream:
            assert batch.num_rows <= 1_000
            seen += batch.column("offset").to_pylist()
    assert seen == list(range(20_000))


def test_a_plan_counts_matching_records(client: Client) -> None:
    places = client.produce([row for pair in zip(rows(50), rows(50, device="d1x"), strict=True) for row in pair])
    starts = dict.fromkeys({place.partition for place in places}, 0)
    plan = client.plan(starts, filters="devices/d1/telemetry", max_records=10)
    assert sum(one.records for one in plan.partitions.values()) == 10
    for one in plan.partitions.values():
        found = client.fetch(one.partition, one.start, one.end, filters="devices/d1/telemetry").to_table()
        assert found.num_rows == one.records


def test_a_tail_sees_what_a_device_publishes(broker: BrokerProcess, client: Client) -> None:
    topic = "devices/d1/telemetry"
    (place,) = client.produce([Row(topic, b"first")])
    with client.tail(place.partition, place.offset, filters=topic) as stream:
        assert next(stream).column("value").to_pylist() == [b"first"]
        with PahoClient(broker.mqtt[1], version="3.1.1", client_id="d1") as device:
            device.publish(topic, b"second")
        batch = next(stream)
        assert batch.column("value").to_pylist() == [b"second"]
        assert batch.column("client_id").to_pylist() == ["d1"]


def test_a_row_reaches_the_device_that_waits_for_it(broker: BrokerProcess, client: Client) -> None:
    with PahoClient(broker.mqtt[1], version="5", client_id="d1") as device:
        device.subscribe("devices/d1/actions")
        client.produce([Row("devices/d1/actions", b"go", idempotency_key="act/d1/1")])
        client.produce([Row("devices/d1/actions", b"go", idempotency_key="act/d1/1")])
        client.produce([Row("devices/d1/actions", b"stop", idempotency_key="act/d1/1/cancel")])
        assert device.payloads(2) == [b"go", b"stop"]


def test_an_idempotency_key_holds_over_a_kill(broker: BrokerProcess, client: Client) -> None:
    row = Row("devices/d1/actions", b"go", idempotency_key="act/d1/1")
    (first,) = client.produce([row])
    broker.kill()
    broker.start()
    with Client(server(broker)) as again:
        assert again.produce([row]) == [Place(first.partition, first.offset, True)]


def test_produced_rows_are_there_after_a_kill(broker: BrokerProcess, client: Client) -> None:
    places = client.produce(rows(1_000))
    log_id = client.version().log_id
    broker.kill()
    broker.start()
    with Client(server(broker)) as again:
        assert again.version().log_id == log_id
        table = again.fetch(places[0].partition, places[0].offset, places[-1].offset + 1).to_table()
    assert table.column("value").to_pylist() == [row.value for row in rows(1_000)]


def test_a_new_epoch_begins_with_a_restart(broker: BrokerProcess, client: Client) -> None:
    (place,) = client.produce([Row("a", b"1")])
    epoch = client.offsets(partitions=[place.partition]).partitions[place.partition].epoch
    broker.kill()
    broker.start()
    with Client(server(broker)) as again:
        (after,) = again.produce([Row("a", b"2")])
        bounds = again.offsets(partitions=[place.partition], epoch_before={place.partition: after.offset})
        one = bounds.partitions[place.partition]
        assert one.epoch > epoch
        assert one.epoch_before == epoch


def test_an_offset_that_is_not_there_names_the_bounds(client: Client) -> None:
    (place,) = client.produce([Row("a", b"")])
    for ask in (
        lambda: client.plan({place.partition: 99}),
        lambda: client.fetch(place.partition, 0, 99).to_table(),
        lambda: next(client.tail(place.partition, 99)),
    ):
        with pytest.raises(OutOfRangeError) as caught:
            ask()
        assert (caught.value.partition, caught.value.log_start) == (place.partition, 0)
        assert caught.value.high_watermark == 1


def test_requests_that_cannot_be_are_refused(client: Client) -> None:
    with pytest.raises(NotFoundError):
        client.fetch(9_999, 0, 0).to_table()
    for row in (Row("$receipts", b""), Row("a/+", b""), Row("", b"")):
        with pytest.raises(RefusedError):
            client.produce([row])
    with pytest.raises(RefusedError):
        client.produce(pa.table({"topic": ["a"], "payload": [b""]}))
    with pytest.raises(RefusedError):
        client.topics("a/#/b")


def test_groups_outlive_a_kill_and_fence_older_readers(broker: BrokerProcess, client: Client) -> None:
    (place,) = client.produce([Row("a", b"")])
    number = place.partition
    client.commit("bronze", reader_epoch=2, initial={number: 0})
    client.commit("bronze", reader_epoch=2, initial={number: 1}, offsets={number: Commit(1, scanned=1)})
    broker.kill()
    broker.start()
    with Client(server(broker)) as again:
        group = again.committed("bronze")
        one = group.partitions[number]
        assert (group.reader_epoch, one.initial, one.committed, one.scanned) == (2, 0, 1, 1)
        assert [one.group for one in again.groups()] == ["bronze"]
        with pytest.raises(FencedError) as caught:
            again.commit("bronze", reader_epoch=1, offsets={number: Commit(0)})
        assert caught.value.reader_epoch == 2


def test_a_removed_group_stays_removed_over_a_kill(broker: BrokerProcess, client: Client) -> None:
    client.commit("bronze", reader_epoch=5, initial={3: 0})
    client.remove_group("bronze")
    assert client.groups() == []
    with pytest.raises(NotFoundError, match="bronze"):
        client.remove_group("bronze")
    broker.kill()
    broker.start()
    with Client(server(broker)) as again:
        assert again.groups() == []
        group = again.commit("bronze", reader_epoch=1, initial={3: 0})
        assert group.reader_epoch == 1, "the group started again, so no older reader is fenced"


def test_a_gap_is_a_record_that_subscribers_see(broker: BrokerProcess, client: Client) -> None:
    client.gap(3, 0, 1, reason="test", group="bronze")
    (topic,) = client.topics("$gaps")
    assert topic.class_name == "control"


def test_a_slow_link_is_no_broker_that_is_away(broker: BrokerProcess) -> None:
    with SlowLink(broker.flight, delay_s=0.5) as link, Client("grpc://{}:{}".format(*link.address)) as client:
        # Neither is tried again, so the first attempt to connect has to wait for the answer.
        (place,) = client.produce(rows(1))
    with (
        SlowLink(broker.flight, delay_s=0.5) as link,
        Client("grpc://{}:{}".format(*link.address), retries=0) as client,
    ):
        assert client.offsets().partitions[place.partition].high_watermark == place.offset + 1


def test_a_broker_that_is_away_is_named(broker: BrokerProcess) -> None:
    address = server(broker)
    broker.stop()
    with Client(address, retries=0) as client, pytest.raises((ConnectError, UnavailableError), match=address):
        client.version()
