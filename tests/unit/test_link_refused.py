"""What a device says of a broker that does not take it: the broker's own words, or those of the operating system."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from broker_edge.device.link import ConnectRefused, Link, LinkError


def connack(code: int, reason: str) -> bytes:
    text = reason.encode()
    properties = b"\x1f" + struct.pack(">H", len(text)) + text if reason else b""
    return bytes([0x20, 3 + len(properties), 0, code, len(properties)]) + properties


async def opened(port: int, seconds: float) -> None:
    link = Link("d1", host="127.0.0.1", port=port, reconnect_delay_s=0.05)
    try:
        await link.open(timeout_s=seconds)
    finally:
        await link.close(drain_s=0)


async def answered(answer: bytes, seconds: float) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(answer)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        await opened(server.sockets[0].getsockname()[1], seconds)


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("only TLS here", r"not authorized \(code 135\): only TLS here$"),
        ("", r"not authorized \(code 135\): check user, password and client id$"),
    ],
)
def test_the_reason_string_of_a_connack_is_said(reason: str, says: str) -> None:
    with pytest.raises(ConnectRefused, match=says):
        asyncio.run(answered(connack(0x87, reason), 60))


def test_a_broker_that_is_busy_until_the_deadline_is_quoted() -> None:
    with pytest.raises(LinkError, match=r"could not connect to .* within 0\.5 s: come back on Monday$"):
        asyncio.run(answered(connack(0x89, "come back on Monday"), 0.5))


def test_a_port_where_nobody_listens_is_told_with_the_deadline() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(LinkError, match=r"within 0\.3 s: .*Connect call failed"):
            asyncio.run(opened(taken.getsockname()[1], 0.3))
