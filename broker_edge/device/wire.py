"""gmqtt's client over TCP, TLS and WebSocket: how a `Link` opens each of its connections.

gmqtt connects with one TLS context for ever. Here each connection reads the certificates again, so that a renewed one
counts, and the reason for which a connection ended before the broker's first answer is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

from gmqtt import Client
from gmqtt.mqtt.connection import MQTTConnection
from gmqtt.mqtt.protocol import MQTTProtocol

from broker_edge.device.websocket import open_websocket
from broker_edge.errors import ConfigError
from broker_edge.mqtt_address import MqttAddress
from broker_edge.tls import TlsReferences, ssl_context, tls_reason


class WireClient(Client):  # type: ignore[misc]
    """`refused` becomes the reason of a TLS handshake that failed for good; nobody else sets it."""

    def __init__(self, client_id: str, *, at: MqttAddress, tls: TlsReferences, **options: Any) -> None:
        super().__init__(client_id, **options)
        self.at, self.tls = at, tls
        self.refused: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.answered = False
        """Whether the broker has sent anything in any connection."""
        self._is_ended = False

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

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.note(exc)
        super().connection_lost(exc)
