"""MQTT over WebSocket for gmqtt: an asyncio transport around `websockets`, whose protocol frames without doing I/O (RFC
6455, client side; MQTT 5 §6).

The bytes of binary frames are one stream, because MQTT packets may span frames. It offers no compression.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidMessage, InvalidStatus, NegotiationError, PayloadTooBig
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from broker_edge.mqtt_address import MqttAddress

log = logging.getLogger(__name__)

_MQTT = Subprotocol("mqtt")
PACKET_BYTES_MAX = 2 << 20
"""The largest packet that a device takes. Chunks and key lists have at most 960 KiB, and a record that a broker takes
without settings 1 MiB; user properties come on top."""
_FRAME_BYTES_MAX = 4 * PACKET_BYTES_MAX
"""A frame may have several packets."""


class WebSocketError(ConnectionError):
    """The other end does not speak MQTT over WebSocket."""


async def open_websocket(
    protocol: asyncio.Protocol, at: MqttAddress, context: ssl.SSLContext | None
) -> asyncio.Transport:
    """Connects `protocol` to a broker. Raises OSError, and WebSocketError if the upgrade is refused."""
    loop = asyncio.get_running_loop()
    framing = _Framing(protocol, at)
    await loop.create_connection(lambda: framing, at.host, at.port, ssl=context)
    try:
        await framing.upgraded
    except BaseException:
        framing.abort()
        raise
    # Between this call and the return nothing may wait: the protocol reads as soon as it knows its transport.
    protocol.connection_made(framing)
    return framing


class _Framing(asyncio.Transport, asyncio.Protocol):
    """The protocol of the socket, and the transport of the protocol inside."""

    def __init__(self, inside: asyncio.Protocol, at: MqttAddress) -> None:
        super().__init__()
        self.upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._inside, self._at = inside, at
        uri = WebSocketURI(at.is_tls, at.host, at.port, at.path, "")
        self._frames = ClientProtocol(uri, subprotocols=[_MQTT], max_size=(None, _FRAME_BYTES_MAX))
        self._socket: asyncio.Transport | None = None

    # Of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream socket"
        self._socket = transport
        self._frames.send_request(self._frames.connect())
        self._send()

    def data_received(self, data: bytes) -> None:
        self._frames.receive_data(data)
        self._look_at_upgrade()
        for event in self._frames.events_received():
            if not isinstance(event, Frame) or self._frames.subprotocol is None:
                continue
            if event.opcode in (Opcode.BINARY, Opcode.CONT):
                self._inside.data_received(bytes(event.data))
            elif event.opcode is Opcode.TEXT:  # MQTT 5 §6: the connection must be closed.
                self._frames.fail(CloseCode.UNSUPPORTED_DATA)
        self._send()
        if self._frames.close_expected() and self._socket is not None:
            self._socket.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if isinstance(self._frames.parser_exc, PayloadTooBig):
            log.warning("%s sent a frame that is too large (%s): disconnected", self._at, self._frames.parser_exc)
        self._frames.receive_eof()
        if not self.upgraded.done() and exc is not None:
            self.upgraded.set_exception(exc)
        self._look_at_upgrade()
        if not self.upgraded.cancelled() and self.upgraded.exception() is None:
            self._inside.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inside.pause_writing()

    def resume_writing(self) -> None:
        self._inside.resume_writing()

    def _look_at_upgrade(self) -> None:
        if self.upgraded.done():
            return
        refusal = self._frames.handshake_exc
        if refusal is None and self._frames.state is State.CONNECTING:
            return
        if refusal is None and self._frames.subprotocol is not None:
            self.upgraded.set_result(None)
            return
        match refusal:
            case None | NegotiationError():
                what = "does not offer MQTT over WebSocket"
            case InvalidMessage(__cause__=EOFError()):
                what = "closed the connection during the upgrade"
            case InvalidMessage():
                what = "does not speak WebSocket"
            case InvalidStatus():
                what = f"refused WebSocket: HTTP {refusal.response.status_code}"
            case _:
                what = f"refused WebSocket: {str(refusal)[:100]}"
        self.upgraded.set_exception(WebSocketError(f"{self._at} {what}"))

    # Of the protocol inside

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_binary(data)
            self._send()

    def close(self) -> None:
        if self._frames.state is State.OPEN:
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._send()
        if self._socket is not None:
            self._socket.close()

    def abort(self) -> None:
        if self._socket is not None:
            self._socket.abort()

    def is_closing(self) -> bool:
        return self._socket is None or self._socket.is_closing()

    def pause_reading(self) -> None:
        if self._socket is not None:
            self._socket.pause_reading()

    def resume_reading(self) -> None:
        if self._socket is not None:
            self._socket.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default if self._socket is None else self._socket.get_extra_info(name, default)

    def _send(self) -> None:
        """Writes what the frames made. An empty text stands for the end, which `close` brings."""
        for data in self._frames.data_to_send():
            if data and self._socket is not None and not self._socket.is_closing():
                self._socket.write(data)
