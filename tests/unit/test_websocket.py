"""The WebSocket transport of devices: bytes of data frames are one stream, and whatever is not MQTT over WebSocket ends
the connection."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import Awaitable, Callable

import pytest

from broker_edge.device.websocket import WebSocketError, open_websocket
from broker_edge.mqtt_address import MqttAddress

WAIT_S = 30.0
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Received(asyncio.Protocol):
    """The protocol inside: keeps what it gets."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


def upgrade(head: bytes, *, key: str | None = None, protocol: str = "mqtt") -> bytes:
    given = next(line.split(b": ")[1] for line in head.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Key"))
    text = (key or given.decode()) + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(text.encode()).digest()).decode()
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {protocol}\r\n\r\n"
    ).encode()


async def frame_of(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """The code and the payload of the next frame, which a client must mask."""
    head = await reader.readexactly(2)
    assert head[1] & 0x80
    length = head[1] & 0x7F
    if length == 126:
        length = int.from_bytes(await reader.readexactly(2), "big")
    elif length == 127:
        length = int.from_bytes(await reader.readexactly(8), "big")
    mask = await reader.readexactly(4)
    masked = await reader.readexactly(length)
    return head[0], bytes(byte ^ mask[at % 4] for at, byte in enumerate(masked))


def exchange(serve: Serve, work: Callable[[asyncio.Transport, Received], Awaitable[None]]) -> None:
    """Runs a server that answers one connection, and a client of it."""

    async def both() -> None:
        failed: list[BaseException] = []

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await serve(reader, writer)
            except BaseException as error:
                failed.append(error)
            finally:
                writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server, asyncio.timeout(WAIT_S):
            inside = Received()
            at = MqttAddress("127.0.0.1", server.sockets[0].getsockname()[1], "ws", "/mqtt")
            transport = await open_websocket(inside, at, None)
            try:
                await work(transport, inside)
            finally:
                transport.abort()
        assert not failed, failed

    asyncio.run(both())


def test_frames_of_every_length_are_one_stream_and_pings_are_answered() -> None:
    sizes = (0, 1, 125, 126, 65_535, 65_536)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /mqtt HTTP/1.1\r\n")
        assert b"Sec-WebSocket-Protocol: mqtt\r\n" in head
        # A ping, and a packet of MQTT in two frames, all in pieces.
        for byte in upgrade(head) + b"\x89\x02hi" + b"\x02\x03abc" + b"\x80\x7e\x00\x02de":
            writer.write(bytes([byte]))
            await writer.drain()
        assert await frame_of(reader) == (0x8A, b"hi")
        for size in sizes:
            assert await frame_of(reader) == (0x82, b"x" * size)
        writer.write(b"\x82\x02fg" + b"\x88\x02\x03\xe8")
        assert await frame_of(reader) == (0x88, b"\x03\xe8")

    async def work(transport: asyncio.Transport, inside: Received) -> None:
        for size in sizes:
            transport.write(b"x" * size)
        assert await inside.lost is None
        assert bytes(inside.data) == b"abcdefg"
        assert transport.is_closing()

    exchange(serve, work)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        pytest.param(b"\x89\x7e\x00\x7e" + bytes(126), 1002, id="a control frame that is too long"),
        pytest.param(b"\x81\x02hi", 1003, id="text"),
        pytest.param(b"\x80\x02hi", 1002, id="a continuation of nothing"),
        pytest.param(b"\x02\x01a\x82\x01b", 1002, id="a packet within a packet"),
        pytest.param(b"\xc2\x01a", 1002, id="compression, which was not agreed"),
        pytest.param(b"\x82\x81\x00\x00\x00\x00a", 1002, id="a masked frame of a server"),
        pytest.param(b"\x82\x7f\x00\x00\x00\x00\x20\x00\x00\x00", 1009, id="more than an MQTT packet"),
    ],
)
def test_a_frame_that_must_not_be_ends_the_connection(frame: bytes, code: int) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(upgrade(await reader.readuntil(b"\r\n\r\n")) + frame)
        kind, payload = await frame_of(reader)
        assert (kind, int.from_bytes(payload[:2], "big")) == (0x88, code)
        assert await reader.read(1) == b""

    async def work(transport: asyncio.Transport, inside: Received) -> None:
        await inside.lost
        transport.write(b"too late")
        assert bytes(inside.data) in (b"", b"a")

    exchange(serve, work)


def test_a_ping_between_two_fragments_is_answered_and_the_packet_is_whole() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(upgrade(head) + b"\x02\x02ab" + b"\x89\x04ping" + b"\x00\x00" + b"\x80\x01c" + b"\x89\x00")
        assert await frame_of(reader) == (0x8A, b"ping")
        assert await frame_of(reader) == (0x8A, b"")
        assert await frame_of(reader) == (0x82, b"answer")

    async def work(transport: asyncio.Transport, inside: Received) -> None:
        while bytes(inside.data) != b"abc":
            await asyncio.sleep(0)
        transport.write(b"answer")
        assert await inside.lost is None

    exchange(serve, work)


def test_a_connection_that_is_given_up_during_the_upgrade_is_cut() -> None:
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        gone.set()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read(1) == b""

    async def both() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, asyncio.timeout(WAIT_S):
            at = MqttAddress("127.0.0.1", server.sockets[0].getsockname()[1], "ws", "/mqtt")
            opening = asyncio.ensure_future(open_websocket(Received(), at, None))
            await gone.wait()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening

    asyncio.run(both())


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda head: b"HTTP/1.1 404 Not Found\r\n\r\n", "refused WebSocket: HTTP 404"),
        (lambda head: upgrade(head, key="of another request"), "refused WebSocket"),
        (lambda head: upgrade(head, protocol="chat"), "does not offer MQTT over WebSocket"),
        (lambda head: upgrade(head).replace(b"Sec-WebSocket-Protocol", b"Other"), "does not offer MQTT over WebSocket"),
        (lambda head: b"\x20\x02\x00\x00" * 5_000, "does not speak WebSocket"),
        (lambda head: b"", "closed the connection during the upgrade"),
    ],
)
def test_an_answer_that_is_no_upgrade_is_an_error(answer: Callable[[bytes], bytes], says: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(await reader.readuntil(b"\r\n\r\n")))
        await writer.drain()

    async def work(transport: asyncio.Transport, inside: Received) -> None:
        raise AssertionError("it was let in")

    with pytest.raises(WebSocketError, match=says):
        exchange(serve, work)
