"""gmqtt's client over TCP, TLS and WebSocket: how a `Link` opens each of its connections.

gmqtt connects with one TLS context for ever, and buffers packets of any size. Here each connection reads the
certificates again, so that a renewed one counts, and ends at the header of a packet that is too large. The reason for
which a connection ended before the broker's first answer is kept.

Of the nodes of a cluster one serves clients: a node that refuses with its address is believed, and where there are
several addresses the next one is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gmqtt import Client
from gmqtt.mqtt.connection import MQTTConnection
from gmqtt.mqtt.constants import MQTTv50
from gmqtt.mqtt.protocol import MQTTProtocol

from broker_edge.device.websocket import PACKET_BYTES_MAX, open_websocket
from broker_edge.errors import ConfigError
from broker_edge.mqtt_address import MqttAddress
from broker_edge.tls import TlsReferences, ssl_context, tls_reason

log = logging.getLogger(__name__)

_PACKET_TOO_LARGE = 0x95
_USE_ANOTHER_SERVER = 0x9C
_UNAVAILABLE = {5: 0x88, 4: 3}
"""CONNACK of a node without a leader, and of any node to a client of MQTT 3.1.1, by protocol level."""
_FIXED_HEADER_BYTES_MAX = 5
_PORT_MAX = 65_535


class WireClient(Client):  # type: ignore[misc]
    """`refused` becomes the reason of a TLS handshake that failed for good; nobody else sets it. `at` is the address of
    the next connection, of `servers` or one that a node has named."""

    def __init__(self, client_id: str, *, servers: Sequence[MqttAddress], tls: TlsReferences, **options: Any) -> None:
        super().__init__(client_id, **options)
        self.servers, self.at, self.tls = tuple(servers), servers[0], tls
        handler = self._package_handler
        # The handler looks up both by name on itself.
        self._gmqtt_connack, self._gmqtt_retries = handler._handle_connack_packet, handler._is_retryable_connack
        handler._handle_connack_packet, handler._is_retryable_connack = self._connack, self._retries
        self.refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answered = False
        """Whether the broker has sent anything in any connection."""
        self.trouble: str | None = None
        """Why the last attempt has failed: the operating system's words, or those of the broker with its refusal."""
        self.said: str | None = None
        """The reason string of the last CONNACK (MQTT 5 §3.2.2.3.9)."""
        self._is_ended = False

    def _connack(self, cmd: int, packet: bytes) -> None:
        """Chooses the address of the next connection, if this one is refused because another node serves."""
        level = self._connection_state.protocol_version
        code = packet[1] if len(packet) > 1 else 0
        properties: dict[str, list[str]] = {}
        if level == MQTTv50:
            properties = self._package_handler._parse_properties(packet[2:])[0] or {}
        self.said = properties.get("reason_string", [None])[0]
        self.trouble = None if code == 0 else self.said or f"it refuses with code 0x{code:02x}"
        if code == _USE_ANOTHER_SERVER and level == MQTTv50:
            self.at = self._named(properties.get("server_reference", [""])[0]) or self._next()
        elif code == _UNAVAILABLE.get(level):
            self.at = self._next()
        self._gmqtt_connack(cmd, packet)

    def _retries(self, code: int) -> bool:
        return code == _USE_ANOTHER_SERVER or bool(self._gmqtt_retries(code))

    def _named(self, reference: str) -> MqttAddress | None:
        """An address `host:port` with the protocol of ours, so that TLS stays TLS."""
        host, _, port = reference.partition(" ")[0].rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) <= _PORT_MAX:
            return None
        return replace(self.at, host=host.strip("[]"), port=int(port))

    def _next(self) -> MqttAddress:
        known = self.servers.index(self.at) if self.at in self.servers else -1
        return self.servers[(known + 1) % len(self.servers)]

    def end(self) -> None:
        """Makes no further connection, and cuts the one that there is.

        An attempt of gmqtt to reconnect would go on after `disconnect`: the broker would then deliver to nobody.
        """
        self._is_ended = True
        self._is_active = False
        if self._connection is not None:
            # Until Python 3.11.4 a TLS transport that was closed twice cannot be aborted any more.
            with contextlib.suppress(AttributeError):
                self._connection._transport.abort()

    async def _create_connection(
        self, host: str, port: int, ssl: object, clean_session: bool, keepalive: int
    ) -> MQTTConnection:
        # What gmqtt does here, with other transports.
        self._refuse_if_ended()
        self._exit_reconnecting_state()
        self._package_handler.clear_topics_aliases()
        self._connack_received.clear()
        self._connection_lost.clear()
        protocol = _Protocol(
            self, connection_state=self._connection_state, id_generator=self._package_handler.id_generator
        )
        transport = await self._opened(protocol)
        connection = MQTTConnection(
            transport, protocol, clean_session, keepalive, package_handler=self._package_handler, logger=self._logger
        )
        if self._is_ended:
            transport.abort()
        self._refuse_if_ended()
        return connection

    def _refuse_if_ended(self) -> None:
        if self._is_ended:
            # An OSError is what gmqtt expects here; it does not try again, because the client is not active.
            raise ConnectionAbortedError("this end has closed the link")

    async def _opened(self, protocol: MQTTProtocol) -> asyncio.Transport:
        try:
            context = ssl_context(self.tls) if self.at.is_tls else None
        except ConfigError as error:
            # An OSError is what gmqtt tries again: the file may be back with the next attempt.
            raise OSError(str(error)) from error
        try:
            if self.at.is_websocket:
                return await open_websocket(protocol, self.at, context)
            loop = asyncio.get_running_loop()
            transport, _ = await loop.create_connection(lambda: protocol, self.at.host, self.at.port, ssl=context)
        except OSError as error:
            self.note(error)
            self.trouble = str(error)
            self.at = self._next()
            raise
        return transport

    def note(self, error: BaseException | None) -> None:
        """Keeps the reason if the TLS handshake cannot succeed before somebody changes something."""
        if self.answered or self.refused.done() or not isinstance(error, ssl.SSLError):
            return
        reason = tls_reason(error, has_certificate=self.tls.cert is not None)
        if reason is not None:
            self.refused.set_result(reason)


class _Protocol(MQTTProtocol):  # type: ignore[misc]
    def __init__(self, client: WireClient, **options: Any) -> None:
        super().__init__(**options)
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.answered = True
        super().data_received(data)

    def _read_packet(self, data: bytes) -> int:
        end: int = super()._read_packet(data)
        if end >= 0 and (size := announced_bytes(data[end : end + _FIXED_HEADER_BYTES_MAX])) > PACKET_BYTES_MAX:
            log.warning(
                "the broker at %s sends a packet of %d bytes or more, but this device takes at most %d: it disconnects",
                self._client.at,
                size,
                PACKET_BYTES_MAX,
            )
            self.send_disconnect(reason_code=_PACKET_TOO_LARGE)
            self._transport.abort()
            return -1
        return end

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.note(exc)
        super().connection_lost(exc)


def announced_bytes(header: bytes) -> int:
    """The size of a packet by its fixed header (MQTT 5 §2.1.4), of which the end may be missing."""
    remaining = 0
    for place, byte in enumerate(header[1:]):
        remaining += (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return 2 + place + remaining
    return len(header) + remaining
