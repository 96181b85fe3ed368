"""A link that closes while gmqtt reconnects: a broker must get no PUBACK for a message that no handler saw."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field

import pytest

from broker_edge.device.link import Link, LinkClosed

from .test_websocket import frame_of, upgrade

WAIT_S = 30.0
TOPIC = "devices/d1/actions"
_CONNECT, _PUBLISH, _PUBACK, _SUBSCRIBE, _DISCONNECT = 1, 3, 4, 8, 14


@dataclass(slots=True)
class Wire:
    """One accepted connection, over TCP or WebSocket."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    is_websocket: bool
    buffer: bytearray = field(default_factory=bytearray)

    def send(self, packet: bytes) -> None:
        self.writer.write((bytes([0x82, len(packet)]) if self.is_websocket else b"") + packet)

    async def packet(self) -> tuple[int, bytes]:
        """Kind and body of the next packet, all of which are short."""
        while len(self.buffer) < 2 or len(self.buffer) < 2 + self.buffer[1]:
            if self.is_websocket:
                code, payload = await frame_of(self.reader)
                if code == 0x8:
                    raise EOFError
                self.buffer += payload
            else:
                self.buffer += await self.reader.readexactly(1)
        end = 2 + self.buffer[1]
        kind, body = self.buffer[0] >> 4, bytes(self.buffer[2:end])
        del self.buffer[:end]
        return kind, body


@dataclass(slots=True)
class Broker:
    """Delivers one record in each connection after the first, as a broker that kept the session."""

    is_websocket: bool
    holds: asyncio.Event = field(default_factory=asyncio.Event)
    """Until it is set, no connection after the first is upgraded."""
    cuts: asyncio.Event = field(default_factory=asyncio.Event)
    came: asyncio.Event = field(default_factory=asyncio.Event)
    connections: int = 0
    delivered: int = 0
    acknowledged: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        cut = asyncio.ensure_future(self.cuts.wait())
        talk = asyncio.ensure_future(self._talk(Wire(reader, writer, self.is_websocket), number))
        try:
            await asyncio.wait({talk, cut} if number == 1 else {talk}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            talk.cancel()
            cut.cancel()
            await asyncio.gather(talk, cut, return_exceptions=True)
            writer.close()

    async def _talk(self, wire: Wire, number: int) -> None:
        if number > 1:
            self.came.set()
            await self.holds.wait()
        if self.is_websocket:
            wire.writer.write(upgrade(await wire.reader.readuntil(b"\r\n\r\n")))
        while True:
            kind, body = await wire.packet()
            if kind == _CONNECT:
                wire.send(bytes([0x20, 3, int(number > 1), 0, 0]))
                if number > 1:
                    self.delivered += 1
                    record = struct.pack(">H", len(TOPIC)) + TOPIC.encode() + b"\x00\x07\x00{}"
                    wire.send(bytes([0x32, len(record)]) + record)
            elif kind == _SUBSCRIBE:
                wire.send(bytes([0x90, 4]) + body[:2] + bytes([0, 1]))
            elif kind == _PUBACK:
                self.acknowledged += 1
                return


Work = Callable[[Broker, Link, asyncio.Event], Coroutine[object, object, None]]


def run(scheme: str, work: Work) -> Broker:
    """Runs `work` with an open link whose handler sets the event. Returns when nothing is under way any more."""

    async def scenario() -> Broker:
        broker, seen = Broker(scheme == "ws"), asyncio.Event()

        async def handler(topic: str, payload: bytes) -> None:
            seen.set()

        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        async with asyncio.timeout(WAIT_S):
            port = server.sockets[0].getsockname()[1]
            link = Link(
                "d1",
                host="127.0.0.1",
                port=port,
                scheme=scheme,
                subscribe=TOPIC,
                on_message=handler,
                reconnect_delay_s=0.05,
            )
            await link.open()
            broker.cuts.set()
            # Otherwise gmqtt has not begun to connect again, and would not.
            await _until(lambda: bool(link._client._connection_state.reconnecting_now))
            await work(broker, link, seen)
            while others := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(others)
            server.close()
        return broker

    return asyncio.run(scenario())


async def _until(is_so: Callable[[], bool]) -> None:
    while not is_so():
        await asyncio.sleep(0)


Ends = Callable[[Link], Awaitable[None]]


async def closed(link: Link) -> None:
    await link.close()


async def aborted(link: Link) -> None:
    link.abort()


@pytest.mark.parametrize("ends", [closed, aborted])
@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_a_link_that_ends_before_gmqtt_connects_again_makes_no_connection(scheme: str, ends: Ends) -> None:
    async def work(broker: Broker, link: Link, seen: asyncio.Event) -> None:
        broker.holds.set()
        await ends(link)
        assert not seen.is_set()

    broker = run(scheme, work)
    assert (broker.acknowledged, broker.delivered, broker.connections) == (0, 0, 1)


@pytest.mark.parametrize("ends", [closed, aborted])
def test_a_link_that_ends_during_the_upgrade_says_nothing_over_the_new_connection(ends: Ends) -> None:
    async def work(broker: Broker, link: Link, seen: asyncio.Event) -> None:
        await broker.came.wait()
        await ends(link)
        broker.holds.set()
        assert not seen.is_set()

    broker = run("ws", work)
    assert (broker.acknowledged, broker.delivered, broker.connections) == (0, 0, 2)


@pytest.mark.parametrize("scheme", ["mqtt", "ws"])
def test_a_link_that_stays_connects_again_and_acknowledges_what_its_handler_saw(scheme: str) -> None:
    """The control: this broker does count PUBACKs."""

    async def work(broker: Broker, link: Link, seen: asyncio.Event) -> None:
        broker.holds.set()
        await seen.wait()
        await _until(lambda: broker.acknowledged == 1)
        await link.close()

    assert run(scheme, work).acknowledged == 1


def test_a_closed_link_cannot_be_opened() -> None:
    async def scenario() -> None:
        link = Link("d1", host="127.0.0.1", port=1)
        await link.close()
        with pytest.raises(LinkClosed, match="device d1 is closing its connection"):
            await link.open()

    asyncio.run(scenario())


def test_a_broker_that_reads_nothing_cannot_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker_edge.device.link._GOODBYE_S", 0.1)

    async def scenario() -> None:
        ends = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(bytes([0x20, 3, 0, 0, 0]))
            writer.transport.pause_reading()
            await ends.wait()
            writer.transport.abort()

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1)
        link = Link("d1", host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        async with asyncio.timeout(WAIT_S):
            await link.open()
            # More than the buffers of both sockets hold, so that a normal end would wait for the reader.
            for _ in range(8):
                await link.send("t", bytes(4_000_000))
            assert await link.close(drain_s=0) == 8
        ends.set()
        server.close()

    asyncio.run(scenario())
