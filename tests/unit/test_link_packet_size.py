"""The largest packet that a device takes: it says so in CONNECT, and holds no byte of a larger one."""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Awaitable, Callable

import pytest

from broker_edge.device.link import Link
from broker_edge.device.websocket import PACKET_BYTES_MAX
from broker_edge.device.wire import announced_bytes

from .test_websocket import frame_of, upgrade

WAIT_S = 30.0
TOPIC = "devices/d1/actions"
MAXIMUM_PACKET_SIZE = b"\x27" + struct.pack(">I", PACKET_BYTES_MAX)
Reads = Callable[[], Awaitable[bytes]]
Talk = Callable[[Reads, asyncio.StreamWriter], Awaitable[bytes]]


def publish(size: int) -> tuple[bytes, bytes]:
    """Header and body of a PUBLISH of `size` bytes."""
    variable = struct.pack(">H", len(TOPIC)) + TOPIC.encode() + b"\x00\x05\x00"
    remaining, left = bytearray(), size - 5
    for place in range(4):
        remaining.append(left & 0x7F | (0x80 if place < 3 else 0))
        left >>= 7
    assert left == 0
    return b"\x32" + bytes(remaining), variable + bytes(size - 5 - len(variable))


def run(talk: Talk, *, scheme: str = "mqtt", version: int = 5) -> tuple[bytes, bytes, list[int]]:
    """What the first connection began with, what `talk` returned for it, and the sizes of the delivered payloads."""

    async def scenario() -> tuple[bytes, bytes, list[int]]:
        sizes: list[int] = []
        done: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()

        async def handler(topic: str, payload: bytes) -> None:
            sizes.append(len(payload))

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if done.done():
                writer.close()
                return
            if scheme == "ws":
                writer.write(upgrade(await reader.readuntil(b"\r\n\r\n")))

            async def read() -> bytes:
                return (await frame_of(reader))[1] if scheme == "ws" else await reader.read(1_000)

            def write(packet: bytes) -> None:
                writer.write((bytes([0x82, len(packet)]) if scheme == "ws" else b"") + packet)

            connect = await read()
            write(b"\x20\x03\x00\x00\x00" if version == 5 else b"\x20\x02\x00\x00")
            subscribe = await read()
            write(
                b"\x90"
                + (b"\x04" + subscribe[2:4] + b"\x00\x01" if version == 5 else b"\x03" + subscribe[2:4] + b"\x01")
            )
            said = await talk(read, writer)
            done.set_result((connect, said))
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        link = Link(
            "d1", host="127.0.0.1", port=port, scheme=scheme, version=version, subscribe=TOPIC, on_message=handler
        )
        async with asyncio.timeout(WAIT_S):
            await link.open()
            found = await done
        link.abort()
        server.close()
        async with asyncio.timeout(WAIT_S):
            # gmqtt is about to connect again.
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)
        return *found, sizes

    return asyncio.run(scenario())


async def until_the_end(read: Reads) -> bytes:
    said = bytearray()
    try:
        while part := await read():
            said += part
    except (ConnectionError, EOFError):
        pass
    return bytes(said)


@pytest.mark.parametrize("version", [4, 5])
def test_a_device_disconnects_at_the_header_of_a_packet_that_is_too_large(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def talk(read: Reads, writer: asyncio.StreamWriter) -> bytes:
        header, _ = publish(PACKET_BYTES_MAX + 1)
        for byte in header:
            writer.write(bytes([byte]))
            await writer.drain()
        return await until_the_end(read)

    with caplog.at_level(logging.WARNING, "broker_edge"):
        connect, said, sizes = run(talk, version=version)
    assert (MAXIMUM_PACKET_SIZE in connect) == (version == 5)
    assert said == (b"\xe0\x02\x95\x00" if version == 5 else b"\xe0\x00")
    assert sizes == []
    (record,) = [one for one in caplog.records if one.name == "broker_edge.device.wire"]
    assert f"a packet of {PACKET_BYTES_MAX + 1} bytes or more, but this device takes at most" in record.message


def test_a_packet_of_the_largest_size_is_delivered() -> None:
    """The control."""

    async def talk(read: Reads, writer: asyncio.StreamWriter) -> bytes:
        header, body = publish(PACKET_BYTES_MAX)
        writer.write(header + body)
        return await read()

    _, said, sizes = run(talk)
    assert (said[0], said[2:4]) == (0x40, b"\x00\x05")
    assert [PACKET_BYTES_MAX - 100 < size < PACKET_BYTES_MAX for size in sizes] == [True]


def test_a_websocket_frame_that_is_too_large_ends_the_connection_before_its_payload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def talk(read: Reads, writer: asyncio.StreamWriter) -> bytes:
        writer.write(b"\x82\x7f" + struct.pack(">Q", 4 * PACKET_BYTES_MAX + 1))
        return await until_the_end(read)

    with caplog.at_level(logging.WARNING, "broker_edge"):
        _, said, sizes = run(talk, scheme="ws")
    assert (said[:2], sizes) == (struct.pack(">H", 1009), [])
    assert [record.message for record in caplog.records if "a frame that is too large" in record.message]


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"", 0),
        (b"\x32", 1),
        (b"\x32\x00", 2),
        (b"\x32\x7f", 129),
        (b"\x32\x80\x01", 131),
        (b"\x32\xff\xff", 3 + 16_383),
        (b"\x32\xff\xff\xff\x7f", 5 + 268_435_455),
    ],
)
def test_a_header_in_pieces_announces_no_more_than_the_whole_one(header: bytes, size: int) -> None:
    assert announced_bytes(header) == size
