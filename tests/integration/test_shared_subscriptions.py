"""Shared subscriptions with paho-mqtt: each message to one member, and none lost with a killed broker."""

from __future__ import annotations

import queue

import pytest
from support.paho_client import PahoClient

from broker_edge.torture.process import BrokerProcess

COUNT = 20


def drain(client: PahoClient, count: int) -> list[int]:
    return [int(client.receive().payload) for _ in range(count)]


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_each_message_goes_to_one_member(broker: BrokerProcess, version: str) -> None:
    port = broker.mqtt[1]
    with (
        PahoClient(port, version=version) as one,
        PahoClient(port, version=version) as two,
        PahoClient(port, version=version) as pub,
    ):
        for member in (one, two):
            assert member.subscribe("$share/g/jobs/#", qos=1).code == 1
        for number in range(COUNT):
            pub.publish("jobs/a", str(number).encode(), qos=1)
        got = drain(one, COUNT // 2) + drain(two, COUNT // 2)
        assert sorted(got) == list(range(COUNT))
        for member in (one, two):
            with pytest.raises(queue.Empty):
                member.messages.get_nowait()


@pytest.mark.parametrize("version", ["3.1.1", "5"])
def test_a_killed_broker_keeps_the_messages_of_a_group_that_is_away(broker: BrokerProcess, version: str) -> None:
    port = broker.mqtt[1]
    names = ("worker-1", "worker-2")
    for name in names:
        with PahoClient(port, version=version, client_id=name, keep_session=True) as member:
            member.subscribe("$share/g/jobs", qos=1)
    with PahoClient(port, version=version) as pub:
        for number in range(COUNT):
            pub.publish("jobs", str(number).encode(), qos=1)
    broker.kill()
    broker.start()
    port = broker.mqtt[1]
    with PahoClient(port, version=version, client_id=names[1], keep_session=True) as member:
        assert sorted(drain(member, COUNT)) == list(range(COUNT))
