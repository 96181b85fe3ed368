"""MQTT over WebSocket for gmqtt: an asyncio transport that frames what it sends and unframes what it receives (RFC
6455, client side; MQTT 5 §6).

The bytes of data frames are one stream, because MQTT packets may span frames. It offers no compression.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import ssl
from typing import Any

from broker_edge.mqtt_address import MqttAddress

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_HEAD_BYTES_MAX = 16 * 1024
_CONTROL_BYTES_MAX = 125
"""RFC 6455 §5.5: the payload of a control frame."""
_BINARY, _CLOSE, _PING, _PONG = 0x2, 0x8, 0x9, 0xA
_NORMAL_CLOSURE = (1000).to_bytes(2, "big")


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
        self._key = base64.b64encode(os.urandom(16)).decode()
        self._socket: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._left = 0
        """Bytes of the current data frame that have not arrived."""

    # Of the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a stream socket"
        self._socket = transport
        host = f"[{self._at.host}]" if ":" in self._at.host else self._at.host
        head = (
            f"GET {self._at.path} HTTP/1.1\r\nHost: {host}:{self._at.port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {self._key}\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        )
        transport.write(head.encode())

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self.upgraded.done():
            self._read_head()
        if self.upgraded.done() and not self.upgraded.cancelled() and self.upgraded.exception() is None:
            self._read_frames()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.upgraded.done():
            self.upgraded.set_exception(exc or WebSocketError(f"{self._at} closed the connection during the upgrade"))
        elif self.upgraded.exception() is None:
            self._inside.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inside.pause_writing()

    def resume_writing(self) -> None:
        self._inside.resume_writing()

    def _read_head(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > _HEAD_BYTES_MAX:
                self.upgraded.set_exception(WebSocketError(f"{self._at} does not speak WebSocket"))
            return
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        pairs = (line.partition(":") for line in lines[1:])
        fields = {name.strip().lower(): value.strip() for name, _, value in pairs}
        accept = base64.b64encode(hashlib.sha1((self._key + _GUID).encode()).digest()).decode()
        if " 101 " not in f"{lines[0]} " or fields.get("sec-websocket-accept") != accept:
            self.upgraded.set_exception(WebSocketError(f"{self._at} refused WebSocket: {lines[0][:100]}"))
        elif fields.get("sec-websocket-protocol") != "mqtt":
            self.upgraded.set_exception(WebSocketError(f"{self._at} does not offer MQTT over WebSocket"))
        else:
            self.upgraded.set_result(None)

    def _read_frames(self) -> None:
        while self._buffer:
            if self._left:
                part = bytes(self._buffer[: self._left])
                del self._buffer[: len(part)]
                self._left -= len(part)
                self._inside.data_received(part)
                continue
            if not self._read_frame():
                return

    def _read_frame(self) -> bool:
        """Reads the head of a data frame or a whole control frame; False if more bytes are needed."""
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        code, length, size = buffer[0] & 0x0F, buffer[1] & 0x7F, 2
        if length > _CONTROL_BYTES_MAX:
            size = 4 if length == 126 else 10
            if len(buffer) < size:
                return False
            length = int.from_bytes(buffer[2:size], "big")
        if code < _CLOSE:
            del buffer[:size]
            self._left = length
            return True
        if length > _CONTROL_BYTES_MAX:
            self.abort()
            return False
        if len(buffer) < size + length:
            return False
        payload = bytes(buffer[size : size + length])
        del buffer[: size + length]
        if code == _PING:
            self._send(_PONG, payload)
        elif code == _CLOSE:
            self.close()
        return True

    # Of the protocol inside

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._send(_BINARY, bytes(data))

    def close(self) -> None:
        if self._socket is not None and not self._socket.is_closing():
            self._send(_CLOSE, _NORMAL_CLOSURE)
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

    def _send(self, code: int, payload: bytes) -> None:
        if self._socket is None or self._socket.is_closing():
            return
        length, mask = len(payload), os.urandom(4)
        if length <= _CONTROL_BYTES_MAX:
            head = bytes((0x80 | code, 0x80 | length))
        elif length < 1 << 16:
            head = bytes((0x80 | code, 0x80 | 126)) + length.to_bytes(2, "big")
        else:
            head = bytes((0x80 | code, 0x80 | 127)) + length.to_bytes(8, "big")
        self._socket.write(head + mask + _masked(payload, mask))


def _masked(payload: bytes, mask: bytes) -> bytes:
    """RFC 6455 §5.3, as one operation on large integers."""
    length = len(payload)
    key = (mask * (length // 4 + 1))[:length]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(key, "big")).to_bytes(length, "big")
