"""paho-mqtt, unchanged, in every protocol version: retained messages, wills, sessions that survive a restart."""

from __future__ import annotations

import pytest
from support.paho_client import PahoClient

from broker_edge import Client
from broker_edge.torture.process import BrokerProcess

both = pytest.mark.parametrize("version", ["3.1.1", "5"])
every = pytest.mark.parametrize("version", ["3.1", "3.1.1", "5"])


def port(broker: BrokerProcess) -> int:
    return broker.mqtt[1]


@every
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_goes_through(broker: BrokerProcess, version: str, qos: int) -> None:
    with PahoClient(port(broker), version=version) as sub, PahoClient(port(broker), version=version) as pub:
        assert sub.subscribe("a/+/c", qos=qos).code == qos
        pub.publish("a/b/c", b"\x00payload\xff", qos=qos)
        got = sub.receive()
        assert (got.topic, got.payload, got.qos, got.retain) == ("a/b/c", b"\x00payload\xff", qos, False)


@every
def test_a_retained_value_is_replaced_and_removed(broker: BrokerProcess, version: str) -> None:
    with PahoClient(port(broker), version=version) as pub:
        for payload in (b"old", b"new"):
            pub.publish("site/name", payload, retain=True)
        pub.publish("site/gone", b"soon", retain=True)
        pub.publish("site/gone", b"", retain=True)
        with PahoClient(port(broker), version=version) as sub:
            sub.subscribe("site/#")
            got = sub.receive()
            assert (got.topic, got.payload, got.retain) == ("site/name", b"new", True)
            pub.publish("site/end", b"end")
            assert sub.receive().payload == b"end"


@both
def test_retained_values_outlive_a_kill(broker: BrokerProcess, version: str) -> None:
    with PahoClient(port(broker), version=version) as pub:
        pub.publish("site/name", b"north", retain=True)
        broker.kill()
        pub.lost.get(timeout=60)
    broker.start()
    with PahoClient(port(broker), version=version) as sub:
        sub.subscribe("site/#")
        assert sub.receive().payload == b"north"


@every
def test_a_will_is_published_when_a_device_vanishes(broker: BrokerProcess, version: str) -> None:
    with PahoClient(port(broker), version=version) as sub:
        sub.subscribe("wills/#")
        device = PahoClient(port(broker), version=version, client_id="d1", will=("wills/d1", b"gone"))
        device.connect()
        device.vanish()
        assert sub.receive().payload == b"gone"


@both
def test_a_clean_disconnect_leaves_no_will(broker: BrokerProcess, version: str) -> None:
    with PahoClient(port(broker), version=version) as sub:
        sub.subscribe("wills/#")
        with PahoClient(port(broker), version=version, client_id="d1", will=("wills/d1", b"gone")):
            pass
        sub.publish("wills/end", b"end")
        assert sub.receive().payload == b"end"


def test_a_session_of_3_1_keeps_what_came_while_its_client_was_away(broker: BrokerProcess) -> None:
    with PahoClient(port(broker), version="3.1", client_id="old", keep_session=True) as device:
        device.subscribe("site/old", qos=2)
    with PahoClient(port(broker), version="3.1") as pub:
        pub.publish("site/old", b"\x00" * 500_000, qos=2)
    with PahoClient(port(broker), version="3.1", client_id="old", keep_session=True) as device:
        assert device.receive().payload == b"\x00" * 500_000
        device.paho.unsubscribe("site/old")


@both
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_session_goes_on_after_a_restart_of_the_broker(broker: BrokerProcess, version: str, end: str) -> None:
    with PahoClient(port(broker), version=version, client_id="d1", keep_session=True) as device:
        assert not device.session_present
        device.subscribe("devices/d1/actions")
        with PahoClient(port(broker), version=version) as pub:
            pub.publish("devices/d1/actions", b"while here")
        assert device.receive().payload == b"while here"
        # Its own acknowledgement was sent before this one, so the broker has it when the device disconnects.
        device.publish("devices/d1/status", b"done")
    with PahoClient(port(broker), version=version) as pub:
        pub.publish("devices/d1/actions", b"while away")
    if end == "stop":
        assert broker.stop() == 0
    else:
        broker.kill()
    broker.start()
    with PahoClient(port(broker), version=version) as pub:
        pub.publish("devices/d1/actions", b"after the restart")
    with PahoClient(port(broker), version=version, client_id="d1", keep_session=True) as device:
        assert device.session_present
        got = device.payloads(2)
        # QoS 1 may repeat messages after a kill, because cursors are stored once a second; it never skips any.
        while got[0] == b"while here" and end == "kill":
            got = [*got[1:], device.receive().payload]
        assert got == [b"while away", b"after the restart"]


@both
def test_qos_2_arrives_once_through_kills(broker: BrokerProcess, version: str) -> None:
    texts = [f"m{number}".encode() for number in range(60)]
    with PahoClient(port(broker), version=version, client_id="d1", keep_session=True) as device:
        assert device.subscribe("devices/d1/actions", qos=2).code == 2
        sender = PahoClient(port(broker), version=version, client_id="sender", keep_session=True)
        sender.connect()
        got: list[bytes] = []
        for start in range(0, 60, 20):
            for text in texts[start : start + 20]:
                sender.paho.publish("devices/d1/actions", text, qos=2)
            got.append(device.receive().payload)
            broker.kill()
            for peer in (sender, device):
                peer.lost.get(timeout=60)
                peer.paho.loop_stop()
            broker.start()
            for peer in (sender, device):
                peer.port = port(broker)
                peer.connect()
        while len(got) < 60:
            got.append(device.receive().payload)
        sender.paho.publish("devices/d1/actions", b"end", qos=2).wait_for_publish(15)
        assert device.receive().payload == b"end"
        assert got == texts
        sender.paho.disconnect()
        sender.paho.loop_stop()
    with Client("grpc://{}:{}".format(*broker.flight), timeout_s=20) as client:
        (topic,) = client.topics("devices/d1/actions")
        table = client.fetch(topic.partition, topic.first, topic.next, filters=topic.topic).to_table()
    assert table.column("value").to_pylist() == [*texts, b"end"]


@both
def test_nobody_publishes_to_the_topics_of_the_broker(broker: BrokerProcess, client: Client, version: str) -> None:
    with PahoClient(port(broker), version=version) as pub:
        answer = pub.publish("$receipts", b"forged")
        # MQTT 3.1.1 has no code for it (3.3.5.2): the message is acknowledged and dropped, as in Mosquitto.
        assert (answer.code >= 0x80) == (version == "5")
    assert client.topics("$receipts") == []
