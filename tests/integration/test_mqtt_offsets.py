"""Offsets over MQTT as paho sees them: user properties with MQTT 5, `$at/…` with 3.1.1 (docs/protocols.md)."""

from __future__ import annotations

import time

from support.paho_client import PahoClient

from broker_edge import Client
from broker_edge.torture.process import BrokerProcess


def port(broker: BrokerProcess) -> int:
    return broker.mqtt[1]


def publish(broker: BrokerProcess, count: int) -> list[str]:
    """Publishes 0, 1, 2… as one device; returns the log positions."""
    with PahoClient(port(broker), version="5", client_id="d7", ask_places=True) as pub:
        answers = [pub.publish("devices/d7/telemetry", b"%d" % i) for i in range(count)]
    assert {answer.properties["stream-durability"] for answer in answers} == {"synced"}
    return [answer.properties["stream-offset"] for answer in answers]


def test_acknowledgements_name_the_place_that_flight_reads(broker: BrokerProcess, client: Client) -> None:
    places = publish(broker, 3)
    numbers = {bounds.name: number for number, bounds in client.offsets().partitions.items()}
    for i, place in enumerate(places):
        name, _, offset = place.rpartition(":")
        (row,) = client.fetch(numbers[name], int(offset), int(offset) + 1).to_table().to_pylist()
        assert (row["topic"], row["value"], row["client_id"]) == ("devices/d7/telemetry", b"%d" % i, "d7")


def test_only_who_asks_gets_places(broker: BrokerProcess) -> None:
    with PahoClient(port(broker), version="5") as pub, PahoClient(port(broker), version="5") as sub:
        sub.subscribe("a/b")
        assert pub.publish("a/b", b"").properties == {}
        assert sub.receive().properties == {}


def test_the_earliest_replays_all_with_places_and_times(broker: BrokerProcess) -> None:
    places = publish(broker, 5)
    with PahoClient(port(broker), version="5") as sub:
        answer = sub.subscribe("devices/d7/#", stream_offset="earliest")
        received = [sub.receive() for _ in range(5)]
    assert {"stream-start", "stream-end"} <= set(answer.properties)
    assert [one.payload for one in received] == [b"0", b"1", b"2", b"3", b"4"]
    assert [one.properties["stream-offset"] for one in received] == places
    times = [int(one.properties["ts"]) for one in received]
    assert times == sorted(times)
    assert abs(times[0] / 1e6 - time.time()) < 600


def test_an_offset_or_a_time_begins_there(broker: BrokerProcess) -> None:
    places = publish(broker, 5)
    with PahoClient(port(broker), version="5") as sub:
        sub.subscribe("devices/d7/#", stream_offset=places[3])
        third = sub.receive()
        assert [third.payload, sub.receive().payload] == [b"3", b"4"]
    with PahoClient(port(broker), version="5") as sub:
        sub.subscribe("devices/d7/#", stream_offset=third.properties["ts"])
        got = sub.receive()
        # Records of the same microsecond have that time too.
        assert int(got.properties["ts"]) == int(third.properties["ts"])


def test_replay_runs_into_live_without_a_gap(broker: BrokerProcess) -> None:
    publish(broker, 100)
    with PahoClient(port(broker), version="5") as sub, PahoClient(port(broker), version="5") as pub:
        sub.subscribe("devices/d7/#", stream_offset="earliest")
        for i in range(100, 200):
            pub.publish("devices/d7/telemetry", b"%d" % i)
        assert sub.payloads(200) == [b"%d" % i for i in range(200)]


def test_a_position_that_cannot_be_is_refused_with_a_reason(broker: BrokerProcess) -> None:
    with PahoClient(port(broker), version="5") as sub:
        bad = sub.subscribe("devices/d7/#", stream_offset="yesterday")
        assert bad.code == 0x83
        assert bad.reason
        above = sub.subscribe("devices/d7/#", stream_offset="telemetry-0:999999")
        assert above.code == 0x8F
        assert above.reason
    with PahoClient(port(broker), version="3.1.1") as sub:
        assert sub.subscribe("$at/yesterday/devices/#").code == 0x80


def test_3_1_1_names_a_position_in_the_filter(broker: BrokerProcess) -> None:
    publish(broker, 3)
    with PahoClient(port(broker), version="3.1.1") as sub:
        assert sub.subscribe("$at/earliest/devices/d7/#").code == 1
        first = sub.receive()
        assert (first.topic, first.payload) == ("devices/d7/telemetry", b"0")
    with PahoClient(port(broker), version="3.1.1") as sub:
        sub.subscribe("$at-offset/earliest/devices/d7/#")
        at, place, topic = sub.receive().topic.split("/", 2)
        assert (at, topic) == ("$at", "devices/d7/telemetry")
    name, _, offset = place.rpartition(":")
    with PahoClient(port(broker), version="3.1.1") as sub:
        sub.subscribe(f"$at/{name}:{int(offset) + 1}/devices/d7/#")
        assert sub.payloads(2) == [b"1", b"2"]
