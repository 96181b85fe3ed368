"""The links of a tortured cluster: who connects is read from real bytes, and what is held arrives later."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from broker_edge.free_ports import free_ports
from broker_edge.torture.cluster.links import Front, Links, caller_of

WAIT_S = 10.0


def hello(node: str) -> bytes:
    """docs/cluster-protocol.md: length, checksum, kind 1, version, shard; versions, log id, names, disk, starts."""
    names = b"".join(bytes([len(name)]) + name.encode() for name in ("local", node))
    body = b"\x01\x01\x00\x00" + b"\x01\x01" + bytes(16) + names + bytes(16)
    return struct.pack("<II", 4 + len(body), 0) + body


@pytest.fixture
def links() -> Iterator[Links]:
    with Links() as made:
        yield made


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)
        yield listener


@pytest.fixture
def front(links: Links, server: socket.socket) -> Front:
    (port,) = free_ports(1, begin=12_000)
    made = links.front("n2", port)
    made.target = server.getsockname()
    return made


def _connected(front: Front, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """A connection of n1 to n2, behind its Hello."""
    caller = socket.create_connection(front.address, timeout=WAIT_S)
    caller.sendall(hello("n1"))
    behind, _ = server.accept()
    behind.settimeout(WAIT_S)
    assert behind.recv(512) == hello("n1")
    return caller, behind


def test_hello_names_the_caller() -> None:
    assert caller_of(hello("n1")) == "n1"


@pytest.mark.parametrize("wrong", [b"", hello("n1")[:38], b"\x00" * 60, hello("n1")[:8] + b"\x02" + hello("n1")[9:]])
def test_other_bytes_are_no_hello(wrong: bytes) -> None:
    with pytest.raises(ValueError, match="Hello"):
        caller_of(wrong)


def test_bytes_pass_both_ways(links: Links, front: Front, server: socket.socket) -> None:
    caller, behind = _connected(front, server)
    with caller, behind:
        caller.sendall(b"there")
        assert behind.recv(16) == b"there"
        behind.sendall(b"back")
        assert caller.recv(16) == b"back"


def test_what_is_held_in_one_direction_arrives_when_it_is_opened(
    links: Links, front: Front, server: socket.socket
) -> None:
    caller, behind = _connected(front, server)
    with caller, behind:
        links.cut_one_way(["n1"], ["n2"])
        caller.sendall(b"late")
        behind.sendall(b"back")
        assert caller.recv(16) == b"back"
        behind.settimeout(0.3)
        with pytest.raises(TimeoutError):
            behind.recv(16)
        links.heal()
        behind.settimeout(WAIT_S)
        assert behind.recv(16) == b"late"


def test_a_process_that_is_down_refuses_and_one_that_is_cut_off_says_nothing(
    links: Links, front: Front, server: socket.socket
) -> None:
    links.cut("n1", ["n2"])
    with socket.create_connection(front.address, timeout=WAIT_S) as caller:
        caller.sendall(hello("n1"))
        server.settimeout(0.3)
        with pytest.raises(TimeoutError):
            server.accept()
        links.heal()
        server.settimeout(WAIT_S)
        late, _ = server.accept()
        late.close()
    front.down()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(front.address, timeout=WAIT_S)
    front.up()
    caller, behind = _connected(front, server)
    with caller, behind:
        behind.sendall(b"again")
        assert caller.recv(16) == b"again"


def test_the_end_of_one_side_ends_the_other(links: Links, front: Front, server: socket.socket) -> None:
    before = threading.active_count()
    caller, behind = _connected(front, server)
    with caller:
        behind.close()
        assert caller.recv(16) == b""
    assert threading.active_count() <= before + 3
