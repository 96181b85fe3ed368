"""A device whose broker is a node of a cluster: it goes to the node that serves clients."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable

import pytest

from broker_edge.device.link import Link
from broker_edge.mqtt_address import MqttAddress

WAIT_S = 30.0
ACCEPTED = {5: b"\x20\x03\x00\x00\x00", 4: b"\x20\x02\x00\x00"}
UNAVAILABLE = {5: b"\x20\x03\x00\x88\x00", 4: b"\x20\x02\x00\x03"}


def elsewhere(reference: str) -> bytes:
    """CONNACK 0x9C with a Server Reference, if it is not empty."""
    text = reference.encode()
    named = b"\x1c" + struct.pack(">H", len(text)) + text if reference else b""
    return bytes([0x20, 3 + len(named), 0, 0x9C, len(named)]) + named


class Node:
    """Answers each CONNECT with `answer`; a node that accepts keeps the connection."""

    def __init__(self) -> None:
        self.answer = b""
        self.asked = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def up(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def down(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()

    @property
    def address(self) -> MqttAddress:
        return MqttAddress("127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        if not await reader.read(1_000):
            return
        self.asked += 1
        writer.write(self.answer)
        if self.answer not in ACCEPTED.values():
            writer.close()


def run(
    prepare: Callable[[list[Node]], None],
    *,
    known: int = 3,
    version: int = 5,
    then: Callable[[list[Node]], None] | None = None,
) -> list[Node]:
    """Opens a link that knows the first nodes of three; with `then`, waits until it is up once more."""

    async def scenario() -> list[Node]:
        nodes = [Node() for _ in range(3)]
        for node in nodes:
            await node.up()
        prepare(nodes)
        others = [node.address for node in nodes[1:known]]
        link = Link("d1", host="127.0.0.1", port=nodes[0].port, version=version, reconnect_delay_s=0.01, others=others)
        async with asyncio.timeout(WAIT_S):
            await link.open()
            if then is not None:
                before = [node.asked for node in nodes]
                then(nodes)
                while [node.asked for node in nodes] == before or not link.connected:
                    await asyncio.sleep(0.01)
        link.abort()
        for node in nodes:
            node.down()
        async with asyncio.timeout(WAIT_S):
            while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(tasks)
        return nodes

    return asyncio.run(scenario())


def test_a_device_goes_to_the_node_that_the_server_reference_names() -> None:
    def prepare(nodes: list[Node]) -> None:
        nodes[0].answer = elsewhere(f"127.0.0.1:{nodes[2].port}")
        nodes[2].answer = ACCEPTED[5]

    nodes = run(prepare, known=1)
    assert [node.asked for node in nodes] == [1, 0, 1]


@pytest.mark.parametrize("version", [4, 5])
def test_a_device_tries_the_next_node_where_none_is_named(version: int) -> None:
    def prepare(nodes: list[Node]) -> None:
        nodes[0].answer = UNAVAILABLE[version]
        nodes[1].answer = elsewhere("") if version == 5 else UNAVAILABLE[4]
        nodes[2].answer = ACCEPTED[version]

    nodes = run(prepare, version=version)
    assert [node.asked for node in nodes] == [1, 1, 1]


def test_a_reference_that_is_no_address_is_not_followed() -> None:
    def prepare(nodes: list[Node]) -> None:
        nodes[0].answer = elsewhere("box1:0")
        nodes[1].answer = ACCEPTED[5]

    assert [node.asked for node in run(prepare)] == [1, 1, 0]


def test_a_device_finds_the_new_leader_when_the_old_one_is_gone() -> None:
    def prepare(nodes: list[Node]) -> None:
        nodes[0].answer = elsewhere(f"127.0.0.1:{nodes[2].port}")
        nodes[1].answer = elsewhere(f"127.0.0.1:{nodes[2].port}")
        nodes[2].answer = ACCEPTED[5]

    def then(nodes: list[Node]) -> None:
        nodes[1].answer = ACCEPTED[5]
        nodes[0].answer = elsewhere(f"127.0.0.1:{nodes[1].port}")
        nodes[2].down()

    nodes = run(prepare, then=then)
    assert nodes[1].asked == 1
