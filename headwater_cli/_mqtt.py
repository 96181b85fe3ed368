"""A paho-mqtt connection for `pub` and `sub`: calls that wait with a deadline, bounded queues, the offsets of MQTT 5.

It does not reconnect: a command that loses its broker reports that and ends. Messages wait in a bounded queue; when the
queue is full, paho's thread stops reading, and TCP slows the broker down.
"""

from __future__ import annotations

import queue
import re
import ssl
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NoReturn

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from broker_edge.clear_text import warn_in_clear
from broker_edge.credentials import Credentials
from broker_edge.errors import ConnectError, DeadlineError, RefusedError
from broker_edge.tls import TlsReferences, ssl_context, tls_reason
from headwater_cli._options import parse_mqtt

QUEUE_MESSAGES = 1_000
# Publishes that may wait for their acknowledgement; the next one blocks.
WINDOW = 200
_DIGITS = re.compile(r"[0-9]{1,19}")
_PLACE = re.compile(r"[^:]{1,100}:[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Message:
    """A delivery; `place` is `<partition name>:<offset>`, `ts` the broker's time in µs; None unless requested."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    place: str | None = None
    ts: int | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """The acknowledgement of a publish; `place` and `durability` if they were requested."""

    number: int
    place: str | None = None
    durability: str | None = None
    reason: str | None = None
    code: int = 0


@dataclass(frozen=True, slots=True)
class Subscribed:
    """The start of the deliveries, the end of the log at that moment, and gaps in between: MQTT 5 with a position
    only."""

    start: str | None = None
    end: str | None = None
    gaps: tuple[str, ...] = ()


@dataclass(slots=True)
class _Waiting:
    """An answer that a callback passes to the waiting thread."""

    event: threading.Event = field(default_factory=threading.Event)
    code: Any = None
    properties: Any = None


class Mqtt:
    """`with Mqtt("127.0.0.1:1883", protocol="5") as mqtt:` connects, or raises ConnectError or RefusedError."""

    def __init__(
        self,
        address: str,
        *,
        protocol: str,
        client_id: str = "",
        keep_session: bool = False,
        ask_places: bool = False,
        timeout_s: float = 10.0,
    ) -> None:
        self.address = address
        self._at = parse_mqtt(address)
        self._tls = TlsReferences.from_environment() if self._at.is_tls else TlsReferences()
        # paho's thread reports why a connection broke in its log only; why the broker ended it is in its DISCONNECT.
        self._broke: str | None = None
        self._ended: str | None = None
        self.is_v5 = protocol == "5"
        self.messages: queue.Queue[Message] = queue.Queue(QUEUE_MESSAGES)
        self.outstanding = 0
        self._acks: queue.Queue[Ack] = queue.Queue(WINDOW)  # Never full: `publish` refuses more than WINDOW.
        self._timeout_s = timeout_s
        self._keep_session = keep_session
        self._ask_places = ask_places
        self._connected = _Waiting()
        self._subscribed: dict[int, _Waiting] = {}
        self._lost = threading.Event()
        self._closing = threading.Event()
        self._subscribe_lock = threading.Lock()
        options: dict[str, Any] = {} if self.is_v5 else {"clean_session": not keep_session}
        self._paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id,
            protocol=paho.MQTTv5 if self.is_v5 else paho.MQTTv311,
            reconnect_on_failure=False,
            transport="websockets" if self._at.is_websocket else "tcp",
            **options,
        )
        user, secret = Credentials.from_environment().mqtt()
        if secret is not None:
            self._paho.username_pw_set(user, secret)
            if not self._at.is_tls:
                warn_in_clear(str(self._at), self._at.host, self._at.secure_scheme)
        if self._at.is_tls:
            self._paho.tls_set_context(ssl_context(self._tls))
        if self._at.is_websocket:
            self._paho.ws_set_options(path=self._at.path)
        self._paho.on_log = self._on_log
        self._paho.connect_timeout = timeout_s
        self._paho.max_inflight_messages_set(WINDOW)
        self._paho.on_connect = self._on_connect
        self._paho.on_disconnect = self._on_disconnect
        self._paho.on_subscribe = self._on_subscribe
        self._paho.on_publish = self._on_publish
        self._paho.on_message = self._on_message

    def __enter__(self) -> Mqtt:
        options: dict[str, Any] = {}
        if self.is_v5:
            properties = Properties(PacketTypes.CONNECT)
            if self._keep_session:
                properties.SessionExpiryInterval = 24 * 3600
            if self._ask_places:
                properties.UserProperty = [("stream-ack", "1")]
            options = {"clean_start": not self._keep_session, "properties": properties}
        try:
            self._paho.connect(self._at.host, self._at.port, **options)
        except OSError as error:
            raise ConnectError(self._why(error), server=self.address) from error
        self._paho.loop_start()
        if not self._connected.event.wait(self._timeout_s):
            self.close()
            raise DeadlineError(
                f"{self.address} did not answer CONNECT within {self._timeout_s:g} s: is it an MQTT port?"
            )
        if self._connected.code is None or self._connected.code.is_failure:
            self.close()
            if self._connected.code is None:
                raise ConnectError(self._why_closed(), server=self.address)
            raise RefusedError(f"{self.address} refused the connection: {self._why_refused()}")
        return self

    def _why(self, error: OSError) -> str:
        """Why the connection could not be made, in one sentence."""
        reason = tls_reason(error, has_certificate=self._tls.cert is not None) if self._at.is_tls else None
        if reason is not None:
            return f"cannot connect to {self.address}: {reason}"
        if self._at.is_tls and isinstance(error, (ssl.SSLError, ConnectionResetError)):
            return f"{self.address} ended the TLS handshake: does this port speak TLS? ({error})"
        if isinstance(error, paho.WebsocketConnectionError):
            return f"{self.address} does not speak WebSocket: give the port of a WebSocket listener ({error})"
        return f"cannot connect to {self.address}: is the broker running, and is this its MQTT address? ({error})"

    def _why_refused(self) -> str:
        reason = _reason_string(self._connected.properties)
        if reason is None:
            return str(self._connected.code)
        advice = f" Write {self._at.secure_scheme}://." if "TLS" in reason and not self._at.is_tls else ""
        return f"{self._connected.code}: {reason}{advice}"

    def _why_closed(self) -> str:
        reason = tls_reason(self._broke or "", has_certificate=self._tls.cert is not None)
        if reason is not None and self._at.is_tls:
            return f"cannot connect to {self.address}: {reason}"
        if self._at.is_tls:
            return f"{self.address} closed the connection at once: is it an MQTT port?"
        return (
            f"{self.address} closed the connection at once: is it an MQTT port? If it speaks TLS, "
            f"write {self._at.secure_scheme}://"
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._closing.set()
        self._paho.disconnect()
        self._paho.loop_stop()

    def subscribe(
        self, topic_filter: str, *, qos: int, position: str | None = None, policy: str = "none"
    ) -> Subscribed:
        """Waits for the SUBACK. Over 3.1.1 the position becomes part of the filter, and offsets part of the topics."""
        waiting = _Waiting()
        if self.is_v5:
            properties = Properties(PacketTypes.SUBSCRIBE)
            if position is not None:
                properties.UserProperty = [("stream-offset", position), ("stream-offset-policy", policy)]
            result, number = self._subscribe(
                waiting, topic_filter, options=SubscribeOptions(qos=qos), properties=properties
            )
        else:
            wanted = topic_filter if position is None else f"$at-offset/{position}/{topic_filter}"
            result, number = self._subscribe(waiting, wanted, qos=qos)
        if result != paho.MQTT_ERR_SUCCESS or not self._wait(waiting.event):
            self._raise_lost(f"subscribing to `{topic_filter}`")
        del self._subscribed[number]
        code = waiting.code
        users = _user_properties(waiting.properties)
        if code.is_failure:
            why = _reason_string(waiting.properties) or str(code)
            message = f"{self.address} refused `{topic_filter}`: {why}"
            raise RefusedError(message, field="filter")
        gaps = tuple(value for name, value in users if name == "stream-gap")
        named = dict(users)
        return Subscribed(named.get("stream-start"), named.get("stream-end"), gaps)

    def publish(self, topic: str, payload: bytes, *, qos: int, retain: bool) -> int:
        """Sends one message and returns its number, which its Ack repeats. At most WINDOW may be unacknowledged."""
        if self.outstanding >= WINDOW:
            raise RuntimeError("take an acknowledgement before publishing more")
        try:
            info = self._paho.publish(topic, payload, qos=qos, retain=retain)
        except ValueError as error:
            raise RefusedError(f"cannot publish to `{topic}`: {error}", field="topic") from error
        if info.rc not in (paho.MQTT_ERR_SUCCESS, paho.MQTT_ERR_QUEUE_SIZE):
            self._raise_lost(f"publishing to `{topic}`")
        self.outstanding += 1
        return int(info.mid)

    def next_ack(self, timeout_s: float) -> Ack:
        """The next acknowledgement, in order of arrival; for QoS 0 it means that the message was sent."""
        ack: Ack = self._next(self._acks, timeout_s, "waiting for acknowledgements")
        self.outstanding -= 1
        return ack

    def next_message(self, timeout_s: float | None) -> Message:
        """The next delivery; raises DeadlineError if none arrives in time."""
        message: Message = self._next(self.messages, timeout_s, "waiting for messages")
        return message

    def _next(self, source: queue.Queue[Any], timeout_s: float | None, doing: str) -> Any:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = 0.5 if deadline is None else min(max(deadline - time.monotonic(), 0.0), 0.5)
            try:
                return source.get(timeout=left_s) if left_s else source.get_nowait()
            except queue.Empty:
                if self._lost.is_set() or (deadline is not None and time.monotonic() >= deadline):
                    self._raise_lost(doing)

    def _wait(self, event: threading.Event) -> bool:
        deadline = time.monotonic() + self._timeout_s
        while not event.wait(0.1):
            if self._lost.is_set() or time.monotonic() > deadline:
                return False
        return True

    def _raise_lost(self, doing: str) -> NoReturn:
        if self._lost.is_set():
            why = f": {self._ended}" if self._ended else ""
            raise ConnectError(f"lost the connection to {self.address} while {doing}{why}", server=self.address)
        raise DeadlineError(f"no answer from {self.address} in time while {doing}")

    def _subscribe(self, waiting: _Waiting, topic_filter: str, **options: Any) -> tuple[Any, int]:
        # The callback may run before subscribe() returns its number, so it waits for this lock before it looks.
        with self._subscribe_lock:
            try:
                result, number = self._paho.subscribe(topic_filter, **options)
            except ValueError as error:
                raise RefusedError(f"`{topic_filter}` is not a filter: {error}", field="filter") from error
            self._subscribed[number or 0] = waiting
        return result, number or 0

    # Called by paho's thread

    def _on_connect(self, client: object, data: object, flags: object, code: Any, properties: Any) -> None:
        self._connected.code = code
        self._connected.properties = properties
        self._connected.event.set()

    def _on_log(self, client: object, data: object, level: int, text: str) -> None:
        if level == paho.MQTT_LOG_ERR:
            self._broke = text

    def _on_disconnect(self, client: object, data: object, flags: Any, code: Any, properties: Any) -> None:
        if flags.is_disconnect_packet_from_server:
            self._ended = ": ".join(filter(None, (str(code).lower(), _reason_string(properties))))
        self._lost.set()
        self._connected.event.set()

    def _on_subscribe(self, client: object, data: object, number: int, codes: list[Any], properties: Any) -> None:
        with self._subscribe_lock:
            waiting = self._subscribed.get(number)
        if waiting is not None:
            waiting.code = codes[0]
            waiting.properties = properties
            waiting.event.set()

    def _on_publish(self, client: object, data: object, number: int, code: Any, properties: Any) -> None:
        users = dict(_user_properties(properties))
        reason = None
        if code.is_failure:
            reason = _reason_string(properties) or str(code)
        self._acks.put(Ack(number, users.get("stream-offset"), users.get("stream-durability"), reason, code.value))

    def _on_message(self, client: object, data: object, message: paho.MQTTMessage) -> None:
        users = dict(_user_properties(message.properties))
        topic, place = message.topic, users.get("stream-offset")
        if topic.startswith("$at/"):
            _, place, topic = topic.split("/", 2)
        # The publisher may also have set properties of these names.
        place = place if place is not None and _PLACE.fullmatch(place) else None
        ts = users.get("ts", "")
        at_us = int(ts) if _DIGITS.fullmatch(ts) else None
        found = Message(topic, bytes(message.payload), message.qos, message.retain, place, at_us)
        while not self._closing.is_set():
            try:
                self.messages.put(found, timeout=0.2)
                break
            except queue.Full:
                continue


def _user_properties(properties: Any) -> list[tuple[str, str]]:
    return list(getattr(properties, "UserProperty", None) or [])


def _reason_string(properties: Any) -> str | None:
    text = getattr(properties, "ReasonString", None)
    return None if text is None else str(text)
