"""gmqtt, unchanged, in both protocol versions: QoS, properties, retained values, wills, sessions, large payloads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import gmqtt
import pytest
from gmqtt.mqtt.constants import MQTTv50, MQTTv311

from broker_edge.torture.process import BrokerProcess

WAIT_S = 60.0
both = pytest.mark.parametrize("version", ["3.1.1", "5"])


@dataclass(frozen=True, slots=True)
class Received:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: dict[str, Any]


class Peer:
    """A gmqtt client that puts its messages into a queue."""

    def __init__(self, client_id: str, **connect: Any) -> None:
        self.gmqtt = gmqtt.Client(client_id, **connect)
        self.messages: asyncio.Queue[Received] = asyncio.Queue()
        self.subscribed: asyncio.Queue[tuple[int, ...]] = asyncio.Queue()
        self.unsubscribed: asyncio.Queue[None] = asyncio.Queue()
        self.gmqtt.on_message = self._on_message
        self.gmqtt.on_subscribe = lambda _client, _mid, codes, _properties: self.subscribed.put_nowait(tuple(codes))
        self.gmqtt.on_unsubscribe = lambda *_: self.unsubscribed.put_nowait(None)

    async def _on_message(self, _client: object, topic: str, payload: bytes, qos: int, properties: Any) -> int:
        users = {**properties}
        self.messages.put_nowait(Received(topic, payload, qos, bool(users.get("retain")), users))
        return 0

    async def subscribe(self, topic_filter: str, qos: int = 1) -> None:
        self.gmqtt.subscribe(topic_filter, qos=qos)
        assert await asyncio.wait_for(self.subscribed.get(), WAIT_S) == (qos,)

    async def unsubscribe(self, topic_filter: str) -> None:
        self.gmqtt.unsubscribe(topic_filter)
        await asyncio.wait_for(self.unsubscribed.get(), WAIT_S)

    async def receive(self) -> Received:
        return await asyncio.wait_for(self.messages.get(), WAIT_S)


@asynccontextmanager
async def peer(broker: BrokerProcess, version: str, client_id: str, **connect: Any) -> AsyncIterator[Peer]:
    one = Peer(client_id, **connect)
    protocol = MQTTv50 if version == "5" else MQTTv311
    await asyncio.wait_for(one.gmqtt.connect("127.0.0.1", broker.mqtt[1], version=protocol, keepalive=30), WAIT_S)
    try:
        yield one
    finally:
        await one.gmqtt.disconnect()


@both
def test_every_qos_retained_values_and_large_payloads_go_through(broker: BrokerProcess, version: str) -> None:
    large = bytes(range(256)) * 3_000

    async def talk() -> None:
        async with peer(broker, version, "pub") as pub, peer(broker, version, "sub") as sub:
            await sub.subscribe("gm/+", qos=2)
            for qos in range(3):
                pub.gmqtt.publish("gm/a", f"qos {qos}".encode(), qos=qos)
                got = await sub.receive()
                assert (got.topic, got.payload, got.qos) == ("gm/a", f"qos {qos}".encode(), qos)
            pub.gmqtt.publish("gm/large", large, qos=1)
            assert (await sub.receive()).payload == large
            pub.gmqtt.publish("gm/kept", b"kept", qos=1, retain=True)
            assert (await sub.receive()).payload == b"kept"
            await sub.unsubscribe("gm/+")
            async with peer(broker, version, "late") as late:
                await late.subscribe("gm/#")
                assert (await late.receive()).payload == b"kept"
                pub.gmqtt.publish("gm/end", b"end", qos=1)
                assert (await late.receive()).payload == b"end"
            assert sub.messages.empty()

    asyncio.run(talk())


def test_properties_arrive_as_they_were_sent(broker: BrokerProcess) -> None:
    async def talk() -> None:
        async with peer(broker, "5", "pub") as pub, peer(broker, "5", "sub") as sub:
            await sub.subscribe("gm/properties")
            pub.gmqtt.publish(
                "gm/properties",
                b"{}",
                qos=1,
                content_type="application/json",
                response_topic="reply/to",
                correlation_data=b"\x00\x01",
                message_expiry_interval=60,
                payload_format_id=1,
                user_property=[("k", "1"), ("k", "2")],
            )
            got = (await sub.receive()).properties
            assert got["content_type"] == ["application/json"]
            assert got["response_topic"] == ["reply/to"]
            assert got["correlation_data"] == [b"\x00\x01"]
            assert got["payload_format_id"] == [1]
            assert 50 <= got["message_expiry_interval"][0] <= 60
            assert got["user_property"] == [("k", "1"), ("k", "2")]

    asyncio.run(talk())


@both
def test_a_session_keeps_what_came_and_a_will_is_sent(broker: BrokerProcess, version: str) -> None:
    lasting = {"session_expiry_interval": 3_600} if version == "5" else {}

    async def talk() -> None:
        async with peer(broker, version, "stays", clean_session=False, **lasting) as stays:
            await stays.subscribe("gm/session", qos=2)
        will = gmqtt.Message("gm/will", b"gone", qos=1)
        async with peer(broker, version, "pub") as pub, peer(broker, version, "watch") as watch:
            await watch.subscribe("gm/will")
            for number in range(3):
                pub.gmqtt.publish("gm/session", str(number).encode(), qos=1 + number % 2)
            dies = Peer("dies", will_message=will)
            protocol = MQTTv50 if version == "5" else MQTTv311
            dies.gmqtt.set_config({"reconnect_retries": 0})
            await dies.gmqtt.connect("127.0.0.1", broker.mqtt[1], version=protocol)
            dies.gmqtt._connection._transport.abort()
            assert (await watch.receive()).payload == b"gone"
            async with peer(broker, version, "stays", clean_session=False, **lasting) as stays:
                # MQTT guarantees order only within one QoS.
                assert sorted([(await stays.receive()).payload for _ in range(3)]) == [b"0", b"1", b"2"]

    asyncio.run(talk())
