"""A plain paho-mqtt client whose callbacks put events into queues, so that a test waits for an event with a deadline.

It uses paho as any user would; of headwater it only knows the names of user properties.
"""

from __future__ import annotations

import queue
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

WAIT_S = 60.0
Pairs = dict[str, str]


@dataclass(frozen=True, slots=True)
class Received:
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Pairs = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """CONNACK, SUBACK or PUBACK: reason or return code, and the user properties."""

    number: int
    code: int
    properties: Pairs
    reason: str | None = None
    session_present: bool = False


class PahoClient:
    """`with PahoClient(port, version="5") as client:` is connected; QoS, retain and wills are paho's own."""

    def __init__(
        self,
        port: int,
        *,
        version: str,
        client_id: str = "",
        keep_session: bool = False,
        will: tuple[str, bytes] | None = None,
        ask_places: bool = False,
    ) -> None:
        self.port = port
        self.is_v5 = version == "5"
        self.keep_session = keep_session
        self.ask_places = ask_places
        self.messages: queue.Queue[Received] = queue.Queue()
        self.connected: queue.Queue[Answer] = queue.Queue()
        self.subscribed: queue.Queue[Answer] = queue.Queue()
        self.published: queue.Queue[Answer] = queue.Queue()
        self.lost: queue.Queue[None] = queue.Queue()
        more: dict[str, Any] = {} if self.is_v5 else {"clean_session": not keep_session}
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol={"3.1": paho.MQTTv31, "3.1.1": paho.MQTTv311, "5": paho.MQTTv5}[version],
            reconnect_on_failure=False,
            **more,
        )
        if will is not None:
            self.paho.will_set(will[0], will[1], qos=1)
        self.paho.on_connect = self._on_connect
        self.paho.on_disconnect = lambda *_: self.lost.put(None)
        self.paho.on_subscribe = self._on_subscribe
        self.paho.on_publish = self._on_publish
        self.paho.on_message = self._on_message

    def __enter__(self) -> PahoClient:
        self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()

    def connect(self) -> Answer:
        more: dict[str, Any] = {}
        if self.is_v5:
            properties = Properties(PacketTypes.CONNECT)
            if self.keep_session:
                properties.SessionExpiryInterval = 3_600
            if self.ask_places:
                properties.UserProperty = [("stream-ack", "1")]
            more = {"clean_start": not self.keep_session, "properties": properties}
        self.paho.connect("127.0.0.1", self.port, **more)
        self.paho.loop_start()
        answer = self.connected.get(timeout=WAIT_S)
        assert answer.code == 0, answer
        self.session_present = answer.session_present
        return answer

    def vanish(self) -> None:
        """Closes the socket without DISCONNECT, as a device without power does."""
        self.paho.loop_stop()
        socket = self.paho.socket()
        assert socket is not None
        socket.close()

    def subscribe(self, topic_filter: str, *, qos: int = 1, **users: str) -> Answer:
        """Underscores in names of user properties become dashes."""
        if self.is_v5:
            properties = Properties(PacketTypes.SUBSCRIBE)
            if users:
                properties.UserProperty = [(name.replace("_", "-"), value) for name, value in users.items()]
            _, number = self.paho.subscribe(topic_filter, options=SubscribeOptions(qos=qos), properties=properties)
        else:
            _, number = self.paho.subscribe(topic_filter, qos=qos)
        answer = self.subscribed.get(timeout=WAIT_S)
        assert answer.number == number
        return answer

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> Answer:
        """Waits for the acknowledgement, or with QoS 0 for the send."""
        info = self.paho.publish(topic, payload, qos=qos, retain=retain)
        answer = self.published.get(timeout=WAIT_S)
        assert answer.number == info.mid
        return answer

    def receive(self) -> Received:
        return self.messages.get(timeout=WAIT_S)

    def payloads(self, count: int) -> list[bytes]:
        return [self.receive().payload for _ in range(count)]

    def _on_connect(self, _client: object, _data: object, flags: Any, code: Any, properties: Any) -> None:
        answer = Answer(0, code.value, _pairs(properties), _reason(properties), flags.session_present)
        self.connected.put(answer)

    def _on_subscribe(self, _client: object, _data: object, number: int, codes: list[Any], properties: Any) -> None:
        self.subscribed.put(Answer(number, codes[0].value, _pairs(properties), _reason(properties)))

    def _on_publish(self, _client: object, _data: object, number: int, code: Any, properties: Any) -> None:
        self.published.put(Answer(number, code.value, _pairs(properties), _reason(properties)))

    def _on_message(self, _client: object, _data: object, message: paho.MQTTMessage) -> None:
        pairs = _pairs(message.properties)
        self.messages.put(Received(message.topic, bytes(message.payload), message.qos, message.retain, pairs))


def _pairs(properties: Any) -> Pairs:
    return dict(getattr(properties, "UserProperty", None) or [])


def _reason(properties: Any) -> str | None:
    text = getattr(properties, "ReasonString", None)
    return None if text is None else str(text)
