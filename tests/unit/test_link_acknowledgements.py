"""A PUBACK belongs to the connection that brought the record: a broker may use its packet id again in the next one."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass, field

import pytest

from broker_edge.device.link import Link

from .test_link_closing import TOPIC, WAIT_S, Wire

_CONNECT, _PUBLISH, _PUBACK, _SUBSCRIBE = 1, 3, 4, 8
_RECORD_ID = 7


@dataclass(slots=True)
class Broker:
    """Delivers one record with the same packet id in each connection, and acknowledges what the device publishes."""

    version: int
    cut: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the first connection."""
    acknowledged: list[tuple[int, int]] = field(default_factory=list)
    """Connection and packet id of each PUBACK of the device."""
    connections: int = 0
    delivers: asyncio.Event = field(default_factory=asyncio.Event)
    """Connections after the first deliver once it is set."""
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        talk = asyncio.ensure_future(self._talk(Wire(reader, writer, False), number))
        cut = asyncio.ensure_future(self.cut.wait() if number == 1 else asyncio.Event().wait())
        await asyncio.wait({talk, cut}, return_when=asyncio.FIRST_COMPLETED)
        talk.cancel()
        cut.cancel()
        await asyncio.gather(talk, cut, return_exceptions=True)
        writer.close()

    async def _talk(self, wire: Wire, number: int) -> None:
        properties = b"\x00" if self.version == 5 else b""
        while True:
            kind, body = await wire.packet()
            if kind == _CONNECT:
                wire.send(bytes([0x20, 2 + len(properties), int(number > 1), 0]) + properties)
            elif kind == _SUBSCRIBE:
                wire.send(bytes([0x90, 3 + len(properties)]) + body[:2] + properties + b"\x01")
                self.tasks.append(asyncio.ensure_future(self._deliver(wire, number, properties)))
            elif kind == _PUBLISH:
                (length,) = struct.unpack(">H", body[:2])
                wire.send(bytes([0x40, 2]) + body[2 + length : 4 + length])
            elif kind == _PUBACK:
                self.acknowledged.append((number, struct.unpack(">H", body[:2])[0]))

    async def _deliver(self, wire: Wire, number: int, properties: bytes) -> None:
        if number > 1:
            await self.delivers.wait()
        record = struct.pack(">H", len(TOPIC)) + TOPIC.encode() + struct.pack(">H", _RECORD_ID) + properties
        wire.send(bytes([0x32, len(record)]) + record)


@pytest.mark.parametrize("version", [4, 5])
def test_a_handler_that_outlives_its_connection_acknowledges_nothing_in_the_next_one(version: int) -> None:
    async def scenario() -> None:
        broker = Broker(version)
        begun: asyncio.Queue[asyncio.Event] = asyncio.Queue()

        async def handler(topic: str, payload: bytes) -> None:
            ends = asyncio.Event()
            begun.put_nowait(ends)
            await ends.wait()

        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        async with asyncio.timeout(WAIT_S):
            port = server.sockets[0].getsockname()[1]
            link = Link(
                "d1",
                host="127.0.0.1",
                port=port,
                subscribe=TOPIC,
                on_message=handler,
                reconnect_delay_s=0.01,
                version=version,
            )
            await link.open()
            first = await begun.get()
            broker.cut.set()
            while broker.connections < 2:
                await asyncio.sleep(0)
            await link.publish("before", b"")
            first.set()
            # A late PUBACK would be sent before this message, in the same connection.
            await asyncio.sleep(0)
            await link.publish("after", b"")
            assert (broker.connections, broker.acknowledged) == (2, [])
            # The control: the record comes again, and its own PUBACK is sent.
            broker.delivers.set()
            (await begun.get()).set()
            await link.publish("at last", b"")
            assert broker.acknowledged == [(2, _RECORD_ID)]
            await link.close()
        server.close()

    asyncio.run(scenario())


def test_a_handler_that_fails_acknowledges_nothing() -> None:
    async def scenario() -> None:
        broker = Broker(5)
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(str(context["exception"])))

        async def handler(topic: str, payload: bytes) -> None:
            raise RuntimeError("no room")

        server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
        async with asyncio.timeout(WAIT_S):
            port = server.sockets[0].getsockname()[1]
            link = Link("d1", host="127.0.0.1", port=port, subscribe=TOPIC, on_message=handler)
            await link.open()
            while not told:
                await asyncio.sleep(0)
            await link.publish("after", b"")
            assert (told, broker.acknowledged) == (["no room"], [])
            await link.close()
        server.close()

    asyncio.run(scenario())
