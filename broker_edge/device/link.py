"""One device's MQTT connection: publishes at QoS 1 that end with their PUBACK, and a subscription that outlives
restarts.

gmqtt connects, parses and reconnects. It does not tell which publish a PUBACK belongs to, takes a refusing PUBACK for a
good one, forgets what is in flight when the broker has no session, and raises when the broker's Receive Maximum is used
up; this file adds what is missing. What it never does: look into payloads, or drop a message that was taken.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any

from gmqtt import Client, Subscription
from gmqtt.mqtt.constants import MQTTv50
from gmqtt.mqtt.handler import MQTTConnectError
from gmqtt.storage import PersistentStorage

from broker_edge.errors import HeadwaterError

OnMessage = Callable[[str, bytes], Awaitable[None]]

_DUP = 0x08
_PACKET_IDS = 65_535
_REFUSED_FROM = 0x80
_SESSION_EXPIRY_S = 7 * 24 * 3600


class LinkError(HeadwaterError):
    """The connection could not be made, or was closed with messages unacknowledged."""


class PublishRefused(LinkError):
    """The broker answered a publish with a reason code of 0x80 or above (MQTT 5 §3.4.2.1); the message is not
    stored."""

    def __init__(self, reason_code: int) -> None:
        super().__init__(f"the broker refused a publish with reason code 0x{reason_code:02x}")
        self.reason_code = reason_code


class _InFlight(PersistentStorage):  # type: ignore[misc]
    """Publishes without a PUBACK, in the order in which they were sent. Takes the place of gmqtt's own store.

    Packet ids stay taken until the PUBACK, so a packet is sent again as it was, whether the broker kept the session or
    not.
    """

    def __init__(self, send_again: Callable[[], None]) -> None:
        super().__init__()
        self._packets: OrderedDict[int, bytes] = OrderedDict()
        self._send_again = send_again
        self.last_mid = 0

    def push_message(self, mid: int, raw_package: bytes) -> None:
        self._packets[mid] = bytes(raw_package)
        self.last_mid = mid

    def remove_message_by_mid(self, mid: int) -> None:
        self._packets.pop(mid, None)

    def get_all(self) -> list[tuple[int, bytes]]:
        return [(mid, bytes([packet[0] | _DUP]) + packet[1:]) for mid, packet in self._packets.items()]

    @property
    def is_empty(self) -> bool:
        return not self._packets

    async def wait_empty(self) -> None:
        """gmqtt waits here within `connect`; the futures of the link say the same more exactly."""

    def clear(self) -> None:
        """gmqtt: the broker has no session. Nothing is forgotten, all of it is sent again."""
        self._send_again()


class Link:
    """A connection of `client_id` that comes back by itself. Use from one event loop.

    `inflight_max` bounds publishes without a PUBACK: `send` waits for a free place. `on_message` gets (topic, payload),
    and its PUBACK goes out when it has returned. With `version=4` the link speaks MQTT 3.1.1.
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
    ) -> None:
        self._client_id = client_id
        self._host, self._port = host, port
        self._filter, self._on_message = subscribe, on_message
        self._reconnect_delay_s, self._keepalive_s, self._version = reconnect_delay_s, keepalive_s, version
        self._inflight_max = self._window = inflight_max
        self._room = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._up = asyncio.Event()
        self._subscribed = asyncio.Event()
        self._refused_code: int | None = None
        self._closing = False
        self._inflight = _InFlight(self._send_again)
        self._client = self._new_client()

    @property
    def connected(self) -> bool:
        return self._up.is_set()

    @property
    def unacked(self) -> int:
        return len(self._waiting)

    async def open(self, *, timeout_s: float = 30.0) -> None:
        """Connect and subscribe; tries again while the broker is not there. Raises LinkError at the deadline."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._connect()
                if self._filter is not None:
                    await self._subscribed.wait()
                    if self._refused_code is not None:
                        code = f"0x{self._refused_code:02x}"
                        raise LinkError(f"the broker refuses {self._filter} to device {self._client_id}: code {code}")
        except TimeoutError as error:
            where = f"{self._host}:{self._port}"
            raise LinkError(f"device {self._client_id} could not connect to {where} within {timeout_s:g} s") from error

    async def send(self, topic: str, payload: bytes) -> asyncio.Future[None]:
        """Write a publish and return the future of its PUBACK (PublishRefused if refused). Waits for a free place."""
        while not self._closing and not (self._up.is_set() and len(self._waiting) < self._window):
            self._room.clear()
            await self._room.wait()
        if self._closing:
            raise LinkError(f"device {self._client_id} is closing its connection")
        self._client.publish(topic, payload, qos=1)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[self._inflight.last_mid] = future
        return future

    async def publish(self, topic: str, payload: bytes) -> None:
        """Publish and wait for the PUBACK, across reconnects."""
        await (await self.send(topic, payload))

    async def close(self, *, drain_s: float = 5.0) -> int:
        """Wait for outstanding PUBACKs up to `drain_s`, then disconnect. Returns how many did not come."""
        if self._waiting and drain_s > 0:
            await asyncio.wait(list(self._waiting.values()), timeout=drain_s)
        self._closing = True
        with contextlib.suppress(OSError):
            await self._client.disconnect()
        left = len(self._waiting)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(LinkError("the connection was closed before the PUBACK"))
                future.exception()  # Seen here: a future that nobody awaits must not warn.
        self._waiting.clear()
        self._room.set()  # Whoever waits to send gets the LinkError.
        return left

    async def drop(self) -> None:
        """End the connection and come back, as a reboot does: what is in flight is sent again."""
        self._up.clear()
        await self._client.reconnect(delay=True)

    # -- gmqtt -------------------------------------------------------------------------------------------------------

    def _new_client(self) -> Any:
        options = {"session_expiry_interval": _SESSION_EXPIRY_S} if self._version == MQTTv50 else {}
        client = Client(
            self._client_id,
            clean_session=False,
            # The PUBACK of a command goes out when `on_message` has returned, not before.
            optimistic_acknowledgement=False,
            persistent_storage=self._inflight,
            **options,
        )
        client.set_config({"reconnect_retries": -1, "reconnect_delay": self._reconnect_delay_s})
        client.on_connect = self._connected
        client.on_disconnect = self._disconnected
        client.on_message = self._received
        client.on_subscribe = self._suback
        # The handler looks this method up by name on itself; its own frees the id whatever the reason code says.
        client._package_handler._handle_puback_packet = self._puback
        return client

    async def _connect(self) -> None:
        while True:
            try:
                await self._client.connect(self._host, self._port, keepalive=self._keepalive_s, version=self._version)
                return
            except OSError:
                await asyncio.sleep(self._reconnect_delay_s)
            except MQTTConnectError as error:
                if self._client._package_handler._permanent_failure:
                    raise LinkError(f"the broker refuses device {self._client_id}: {error}") from error
                await self._up.wait()  # Busy for now: gmqtt goes on trying.
                return

    def _connected(self, client: Any, flags: int, rc: int, properties: Any) -> None:
        # gmqtt takes the broker's Receive Maximum for the number of packet ids there are, SUBSCRIBE's included.
        self._client._package_handler.id_generator._max = _PACKET_IDS
        receive_maximum = properties.get("receive_maximum", [_PACKET_IDS])
        allowed = receive_maximum[0] if isinstance(receive_maximum, list) else receive_maximum
        self._window = min(self._inflight_max, allowed)
        if self._filter is not None:
            client.subscribe(Subscription(self._filter, qos=1))
        self._up.set()
        self._room.set()

    def _disconnected(self, client: Any, packet: Any, exc: Any = None) -> None:
        if not self._closing:
            self._up.clear()

    def _suback(self, client: Any, mid: int, qos: Any, properties: Any) -> None:
        self._refused_code = next((code for code in qos if code >= _REFUSED_FROM), None)
        self._subscribed.set()

    async def _received(self, client: Any, topic: str, payload: bytes, qos: int, properties: Any) -> int:
        if self._on_message is not None:
            await self._on_message(topic, payload)
        return 0

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
            # A broker without the session has never seen these ids: they are first deliveries there.
            self._client._connection.send_package(bytes([packet[0] & ~_DUP]) + packet[1:])
