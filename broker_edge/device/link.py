"""One device's MQTT connection: publishes at QoS 1 that complete with their PUBACK, and subscriptions that survive
restarts.

gmqtt connects, parses and reconnects. But it does not report which publish a PUBACK belongs to, treats a PUBACK with an
error code as success, forgets in-flight publishes when the broker has no session, and raises when the broker's Receive
Maximum is used up. This module adds what is missing. It never looks into payloads, and never drops a message that it
accepted.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gmqtt import Subscription
from gmqtt.mqtt.constants import MQTTCommands, MQTTv50
from gmqtt.mqtt.handler import MQTTConnectError

from broker_edge.clear_text import warn_in_clear
from broker_edge.device.in_flight import DUP, InFlight
from broker_edge.device.websocket import PACKET_BYTES_MAX
from broker_edge.device.wire import WireClient
from broker_edge.errors import HeadwaterError
from broker_edge.mqtt_address import WS_PATH, MqttAddress
from broker_edge.tls import TlsReferences, ssl_context

OnMessage = Callable[[str, bytes], Awaitable[None]]

_PACKET_IDS = 65_535
_REFUSED_FROM = 0x80
_SESSION_EXPIRY_S = 7 * 24 * 3600
_GOODBYE_S = 2.0
_NOT_ADMITTED = frozenset({2, 4, 5, 0x85, 0x86, 0x87})
"""Return codes of MQTT 3.1.1 §3.2.2.3 and reason codes of MQTT 5 §3.2.2.2 about user, password or client id."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A record on a subscribed topic, with its log position if the subscription asked for one."""

    topic: str
    payload: bytes
    partition: str = ""
    offset: int = -1


OnDelivery = Callable[[Delivery], None]


@dataclass(slots=True)
class _Listening:
    topic: str
    on_delivery: OnDelivery
    position: Callable[[], str | None] | None
    pace_s: float
    qos: int
    filter: str = ""
    """The position of the last subscription."""


class LinkError(HeadwaterError):
    """The connection could not be made, or was closed with messages unacknowledged."""


class ConnectRefused(LinkError):
    """The broker refused the connection for good, as with wrong credentials (MQTT 5 §3.2.2.2)."""


class LinkClosed(LinkError):
    """This end has closed or aborted the link; the message itself is not at fault."""


class SubscribeRefused(LinkError):
    """The broker refused a subscription: no permission, or the offset is gone (0x8F)."""

    def __init__(self, topic: str, reason_code: int) -> None:
        super().__init__(f"the broker refused the subscription to {topic} with reason code 0x{reason_code:02x}")
        self.reason_code = reason_code


class PublishRefused(LinkError):
    """The broker answered a publish with a reason code of 0x80 or above (MQTT 5 §3.4.2.1); it did not store the
    message."""

    def __init__(self, reason_code: int) -> None:
        super().__init__(f"the broker refused a publish with reason code 0x{reason_code:02x}")
        self.reason_code = reason_code


class Link:
    """A connection of `client_id` that reconnects by itself. Use from one event loop.

    `inflight_max` limits publishes without a PUBACK: `send` waits for a free slot. `on_message` gets (topic, payload),
    and the PUBACK is sent when it has returned. `receive_maximum` limits the messages that the broker sends before a
    PUBACK. With `version=4` the link speaks MQTT 3.1.1, where the broker's own window is that limit. `scheme` is
    that of an address (`mqtts`, `ws`, `wss`); with TLS, the certificates are read for each connection. `others` are
    further nodes of a cluster: the link goes to the one that serves clients.
    """

    def __init__(
        self,
        client_id: str,
        *,
        host: str,
        port: int,
        subscribe: str | None = None,
        on_message: OnMessage | None = None,
        inflight_max: int = 16,
        reconnect_delay_s: float = 0.5,
        keepalive_s: int = 30,
        version: int = MQTTv50,
        receive_maximum: int | None = None,
        user: str | None = None,
        password: str | None = None,
        scheme: str = "mqtt",
        path: str = WS_PATH,
        tls: TlsReferences | None = None,
        others: Sequence[MqttAddress] = (),
    ) -> None:
        self._client_id = client_id
        self.servers = (MqttAddress(host, port, scheme, path), *others)
        self._tls = tls or TlsReferences()
        self._receive_maximum = receive_maximum
        self._filter, self._on_message = subscribe, on_message
        self._reconnect_delay_s, self._keepalive_s, self._version = reconnect_delay_s, keepalive_s, version
        self._inflight_max = self._window = inflight_max
        self._room = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._up = asyncio.Event()
        self._was_up = False
        self._subscribed = asyncio.Event()
        self._command_mid: int | None = None
        self._refused_code: int | None = None
        self._closing = False
        self._inflight = InFlight(self._send_again)
        self._listening: dict[str, _Listening] = {}
        # Subscriptions that the broker may still hold; each is removed by one packet once the connection is back.
        self._unwanted: set[str] = set()
        # Packet id of a SUBSCRIBE or UNSUBSCRIBE with a waiting caller: the reason codes of its answer.
        self._answers: dict[int, asyncio.Future[tuple[int, ...]]] = {}
        self._client = self._new_client()
        if user is not None:
            self._client.set_auth_credentials(user, password)
            if password is not None and not self._at.is_tls:
                warn_in_clear(str(self._at), self._at.host, self._at.secure_scheme)

    @property
    def _at(self) -> MqttAddress:
        """Where the connection is, or the next one will be."""
        return self._client.at  # type: ignore[no-any-return]

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    @property
    def trouble(self) -> str | None:
        """Why it is not connected, if that is known."""
        return None if self.connected else self._client.trouble

    @property
    def closing(self) -> bool:
        """Whether the link was closed or aborted and will not reconnect."""
        return self._closing

    @property
    def unacked(self) -> int:
        return len(self._waiting)

    async def open(self, *, timeout_s: float = 30.0) -> None:
        """Connect and subscribe. Retries while the broker is not reachable; raises LinkError at the deadline."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect()
                if self._filter is not None:
                    await self._subscribed.wait()
                    if self._refused_code is not None:
                        code = f"0x{self._refused_code:02x}"
                        raise LinkError(
                            f"the broker refused device {self._client_id} the subscription to {self._filter}: "
                            f"code {code}"
                        )
        except TimeoutError as error:
            trouble = self.trouble or ""
            why = f": {trouble}" if trouble else ""
            if not self._was_up and not self._at.is_tls and (not trouble or "TLS" in trouble):
                why += "; if this port speaks TLS, write mqtts:// or wss://"
            raise LinkError(
                f"device {self._client_id} could not connect to {self._at} within {timeout_s:g} s{why}"
            ) from error

    async def send(self, topic: str, payload: bytes) -> asyncio.Future[None]:
        """Write a publish and return the future of its PUBACK (PublishRefused if refused). Waits for a free slot."""
        while not self._closing and not (self._up.is_set() and len(self._waiting) < self._window):
            self._room.clear()
            await self._room.wait()
        if self._closing:
            raise LinkClosed(f"device {self._client_id} is closing its connection")
        self._client.publish(topic, payload, qos=1)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[self._inflight.last_mid] = future
        return future

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish and wait for the PUBACK, across reconnects."""
        await (await self.send(topic, payload))

    async def listen(
        self,
        topic: str,
        on_delivery: OnDelivery,
        *,
        position: Callable[[], str | None] | None = None,
        pace_s: float = 0.0,
        qos: int = 1,
    ) -> None:
        """Deliver records of `topic` to `on_delivery`, in order, until `unlisten`. Returns after the SUBACK.

        `position` is the start (`<partition>:<offset>`), used now and whenever the broker has lost the session; an
        earlier subscription to the topic is removed at the broker first. Each delivery is acknowledged after
        `on_delivery` has returned and `pace_s` have passed. Waits for the connection; raises SubscribeRefused.
        """
        listening = _Listening(topic, on_delivery, position, pace_s, qos)
        self._listening[topic] = listening
        while True:
            await self._wait_up()
            try:
                if position is not None:
                    await self._answer(self._client.unsubscribe(topic))
                codes = await self._answer(self._subscribe(listening))
            except _Lost:
                continue
            refused = next((code for code in codes if code >= _REFUSED_FROM), None)
            if refused is not None:
                self._listening.pop(topic, None)
                raise SubscribeRefused(topic, refused)
            return

    def unlisten(self, topic: str) -> None:
        """Stop deliveries of `topic`. Those in flight are acknowledged and discarded."""
        if self._listening.pop(topic, None) is None:
            return
        if self._up.is_set():
            self._client.unsubscribe(topic)
        else:
            self._unwanted.add(topic)

    async def close(self, *, drain_s: float = 5.0) -> int:
        """Wait up to `drain_s` for outstanding PUBACKs, then disconnect. Returns the number of missing PUBACKs.

        A broker that does not take the DISCONNECT within 2 s is cut off.
        """
        if self._waiting and drain_s > 0:
            await asyncio.wait(list(self._waiting.values()), timeout=drain_s)
        self._closing = True
        try:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(self._client.disconnect(), _GOODBYE_S)
        finally:
            self._client.end()
        left = len(self._waiting)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkClosed("the connection was closed before the PUBACK"))
                future.exception()  # Marks it as retrieved: a future that nobody awaits must not cause a warning.
        self._waiting.clear()
        self._room.set()  # Wakes waiting senders, which then raise LinkError.
        return left

    async def drop(self) -> None:
        """Disconnect and reconnect, as in a reboot; in-flight publishes are sent again."""
        self._up.clear()
        self._lose_answers()
        await self._client.reconnect(delay=True)

    def abort(self) -> None:
        """End as in a power cut: no DISCONNECT, nothing more is sent, and waiting callers get a LinkError."""
        self._closing = True
        self._up.clear()
        self._client.end()
        self._lose_answers()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkClosed("the device was cut off before the PUBACK"))
                future.exception()
        self._waiting.clear()
        self._room.set()

    async def _wait_up(self) -> None:
        while not self._closing and not self._up.is_set():
            self._room.clear()
            await self._room.wait()
        if self._closing:
            raise LinkClosed(f"device {self._client_id} is closing its connection")

    def _subscribe(self, listening: _Listening) -> int:
        position = listening.position() if listening.position is not None else None
        filter_, asked = listening.topic, {}
        if position is not None and self._version == MQTTv50:
            asked = {"user_property": [("stream-offset", position)]}
        elif position is not None:
            filter_ = f"$at-offset/{position}/{filter_}"  # The broker stores it as the filter after the position.
        # gmqtt keeps every Subscription that it was ever given, so remove the old one.
        self._client._remove_subscriptions(listening.filter)
        listening.filter = filter_
        mid: int = self._client.subscribe(Subscription(filter_, qos=listening.qos), **asked)
        return mid

    async def _answer(self, mid: int) -> tuple[int, ...]:
        future: asyncio.Future[tuple[int, ...]] = asyncio.get_running_loop().create_future()
        self._answers[mid] = future
        try:
            return await future
        finally:
            self._answers.pop(mid, None)

    def _lose_answers(self) -> None:
        for future in self._answers.values():
            if not future.done():
                future.set_exception(_Lost())
        self._answers.clear()

    # -- gmqtt -------------------------------------------------------------------------------------------------------

    def _new_client(self) -> Any:
        options: dict[str, int] = {}
        if self._version == MQTTv50:
            options = {"session_expiry_interval": _SESSION_EXPIRY_S, "maximum_packet_size": PACKET_BYTES_MAX}
            if self._receive_maximum is not None:
                options["receive_maximum"] = self._receive_maximum
        client = WireClient(
            self._client_id,
            servers=self.servers,
            tls=self._tls,
            clean_session=False,
            persistent_storage=self._inflight,
            **options,
        )
        client.set_config({"reconnect_retries": -1, "reconnect_delay": self._reconnect_delay_s})
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_message = self._received
        client.on_subscribe = self._suback
        client.on_unsubscribe = self._unsuback
        # The handler looks these methods up by name on itself; the original of the first frees the id whatever the
        # reason code is.
        client._package_handler._handle_puback_packet = self._puback
        client._package_handler._handle_qos_1_publish_packet = self._delivered
        return client

    async def _connect(self) -> None:
        if self._at.is_tls:
            # Files that cannot be read are reported at once; later connections try again.
            ssl_context(self._tls)
        connecting = asyncio.ensure_future(self._connect_until_up())
        try:
            await asyncio.wait({connecting, self._client.refused}, return_when=asyncio.FIRST_COMPLETED)
            if self._client.refused.done():
                raise LinkError(
                    f"device {self._client_id} cannot connect to {self._at}: {self._client.refused.result()}"
                )
            await connecting
        finally:
            connecting.cancel()

    async def _connect_until_up(self) -> None:
        while not self._closing:
            try:
                await self._client.connect(
                    self._at.host, self._at.port, keepalive=self._keepalive_s, version=self._version
                )
                return
            except OSError:
                await asyncio.sleep(self._reconnect_delay_s)
            except MQTTConnectError as error:
                if self._client._package_handler._permanent_failure:
                    why = _refusal(error, self._client.said)
                    raise ConnectRefused(f"the broker at {self._at} refuses device {self._client_id}: {why}") from error
                await self._up.wait()  # The broker is busy: gmqtt keeps trying.
                return
        raise LinkClosed(f"device {self._client_id} is closing its connection")

    def _connected(self, client: Any, flags: int, rc: int, properties: Any) -> None:
        # gmqtt uses the broker's Receive Maximum as the number of packet ids, including those of SUBSCRIBE.
        self._client._package_handler.id_generator._max = _PACKET_IDS
        # `properties` merges those of our CONNECT over the broker's; only the broker's say what it accepts.
        receive_maximum = self._client._package_handler._connack_properties.get("receive_maximum", [_PACKET_IDS])
        self._window = min(self._inflight_max, receive_maximum[0])
        if self._filter is not None:
            self._client._remove_subscriptions(self._filter)
            self._command_mid = client.subscribe(Subscription(self._filter, qos=1))
        for topic in self._unwanted - self._listening.keys():
            client.unsubscribe(topic)
        self._unwanted.clear()
        # With a session, the broker resumes by itself and accepts no position; without one, it needs a position.
        for listening in self._listening.values():
            self._subscribe(listening)
        self._was_up = True
        self._up.set()
        self._room.set()

    def _disconnected(self, client: Any, packet: Any, exc: Any = None) -> None:
        if not self._closing:
            self._up.clear()
            self._lose_answers()

    def _suback(self, client: Any, mid: int, qos: Any, properties: Any) -> None:
        if mid == self._command_mid:
            self._refused_code = next((code for code in qos if code >= _REFUSED_FROM), None)
            self._subscribed.set()
        self._unsuback(client, mid, qos)

    def _unsuback(self, client: Any, mid: int, codes: Any) -> None:
        future = self._answers.get(mid)
        if future is not None and not future.done():
            future.set_result(tuple(codes))

    def _delivered(self, mid: int, payload: bytes, topic: str, properties: Any) -> None:
        """Handles a record of QoS 1, and acknowledges it over the connection that brought it or not at all.

        gmqtt would use the newest connection. There the packet id may belong to another record, which the broker would
        then take for handled.
        """
        connection = self._client._package_handler.current_connection

        def acknowledge(handled: asyncio.Future[None]) -> None:
            if handled.cancelled():
                return
            handled.result()  # The event loop reports an error; the broker delivers the record again.
            if not connection.is_closing():
                connection.send_command_with_mid(MQTTCommands.PUBACK, mid, False)

        handling = asyncio.ensure_future(self._received(self._client, topic, payload, 1, properties))
        handling.add_done_callback(acknowledge)

    async def _received(self, client: Any, topic: str, payload: bytes, qos: int, properties: Any) -> None:
        if self._closing:
            # Cut off: a handler that took this would run in a device that has already restarted.
            return
        delivery = _delivery(topic, payload, properties)
        listening = self._listening.get(delivery.topic)
        if listening is not None:
            # No await here, so deliveries are handled in the order of arrival.
            listening.on_delivery(delivery)
            if listening.pace_s > 0:
                await asyncio.sleep(listening.pace_s)
        elif self._on_message is not None and topic == self._filter:
            await self._on_message(topic, payload)

    def _puback(self, cmd: int, packet: bytes) -> None:
        (mid,) = struct.unpack("!H", packet[:2])
        reason_code = packet[2] if len(packet) > 2 else 0
        self._client._package_handler.id_generator.free_id(mid)
        self._inflight.remove_message_by_mid(mid)
        future = self._waiting.pop(mid, None)
        self._room.set()
        if future is None or future.done():
            return
        if reason_code >= _REFUSED_FROM:
            future.set_exception(PublishRefused(reason_code))
        else:
            future.set_result(None)

    def _send_again(self) -> None:
        for _, packet in self._inflight.get_all():
            # A broker without the session has never seen these ids, so they are first deliveries for it.
            self._client._connection.send_package(bytes([packet[0] & ~DUP]) + packet[1:])


def _refusal(error: MQTTConnectError, said: str | None) -> str:
    """The meaning of a reason code, and what the broker says; otherwise what to do where it is about credentials."""
    meaning = str(error.message).removeprefix("Connection Refused: ").lower()
    advice = ": check user, password and client id" if error._code in _NOT_ADMITTED else ""
    return f"{meaning} (code {error._code}){advice if said is None else f': {said}'}"


class _Lost(Exception):
    """The connection ended before an answer arrived."""


def _delivery(topic: str, payload: bytes, properties: Mapping[str, Any]) -> Delivery:
    if topic.startswith("$at/"):  # MQTT 3.1.1: $at/<partition>:<offset>/<topic>
        _, place, plain = topic.split("/", 2)
        partition, _, offset = place.rpartition(":")
        return Delivery(plain, payload, partition, int(offset) if offset.isdecimal() else -1)
    for name, value in properties.get("user_property", ()):
        if name == "stream-offset":
            partition, _, offset = value.rpartition(":")
            return Delivery(topic, payload, partition, int(offset) if offset.isdecimal() else -1)
    return Delivery(topic, payload)
