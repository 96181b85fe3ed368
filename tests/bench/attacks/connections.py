"""Silent connections, and many calls with wrong passwords on one connection."""

from __future__ import annotations

import base64
import contextlib
import select
import socket
import time
from collections import Counter

from attacks.arena import OPERATOR, WAIT_S, Address, Arena, Rogue, connect, request

SILENT = 1500
HOLD_S = 8.0
STREAMS = 4200
CONNECTIONS = 1500
STRANGER = ("127.0.0.2", 0)
"""A different address than the honest tenant's: limits per address should restrict these."""
HEADERS, RST_STREAM, SETTINGS, GOAWAY = 1, 3, 4, 7


def silent_flight(arena: Arena) -> None:
    _silent(arena, arena.doors.flight)


def silent_admin(arena: Arena) -> None:
    _silent(arena, arena.doors.admin)


def silent_mqtt(arena: Arena) -> None:
    _silent(arena, arena.doors.mqtt)


def _silent(arena: Arena, door: Address) -> None:
    """Opens 1,500 connections in a second or two and holds them for some time."""
    poll, links = select.epoll(), {}
    try:
        for number in range(SILENT):
            link = socket.socket()
            link.setblocking(False)
            link.bind(STRANGER)
            link.connect_ex(door)
            links[link.fileno()] = link
            poll.register(link.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
            arena.tried()
            if number % 50 == 0:
                time.sleep(0.03)
        deadline = time.monotonic() + HOLD_S
        while links and (left := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(left):
                poll.unregister(fd)
                links.pop(fd).close()
                arena.refused("closed")
        arena.given("held to the end", len(links))
    finally:
        for link in links.values():
            link.close()
        poll.close()


def fill(arena: Arena) -> None:
    """Opens as many accepted connections as one tenant may have."""
    held: list[Rogue] = []
    user = arena.rogue(5)
    try:
        for number in range(CONNECTIONS):
            arena.tried()
            try:
                rogue = Rogue(arena, f"{user}-{number}", user)
            except OSError as error:
                arena.refused("no answer in time" if isinstance(error, TimeoutError) else "closed")
                time.sleep(0.2)
                continue
            held.append(rogue)
            if rogue.code:
                arena.refused(f"0x{rogue.code:02x}")
                rogue.link.close()
                time.sleep(0.05)
            else:
                arena.given("connection")
        time.sleep(HOLD_S / 2)
    finally:
        for rogue in held:
            rogue.link.close()


def wrong_passwords(arena: Arena) -> None:
    """A hundred wrong passwords in some seconds, for a user of the other tenant, over MQTT and HTTP."""
    for number in range(50):
        arena.tried(2)
        with socket.create_connection(arena.doors.mqtt, WAIT_S, STRANGER) as link:
            link.sendall(connect("north-app-guess", "north-app", f"guess-{arena.number()}"))
            answer = link.recv(64)
            code = answer[3] if len(answer) > 3 else 0xFF
            if code:
                arena.refused(f"0x{code:02x}")
            else:
                arena.breach("let in with a wrong password")
        basic = base64.b64encode(f"{OPERATOR}:guess-{arena.number()}".encode()).decode()
        status, _ = request(arena, "GET", "/api/v1/status", headers={"Authorization": f"Basic {basic}"})
        if status < 300:
            arena.breach("answered with a wrong password")
        else:
            arena.refused(f"http {status}")
        time.sleep(0.02 if number % 10 else 0.2)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(name: bytes, value: bytes) -> bytes:
    """An HPACK header that is not added to a table; name and value are shorter than 127 bytes."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def _call(number: int) -> bytes:
    """A DoAction with a password that was not tried before, so that it must be checked."""
    basic = base64.b64encode(f"north-app:wrong-{number}-{time.time_ns()}".encode())
    path = b"/arrow.flight.protocol.FlightService/DoAction"
    block = b"".join(
        _literal(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", path),
            (b":authority", b"127.0.0.1"),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            (b"authorization", b"Basic " + basic),
        )
    )
    return _frame(HEADERS, 0x4, 2 * number + 1, block)


def bad_password_streams(arena: Arena) -> None:
    """Opens all streams at once, then reads the answers."""
    with socket.create_connection(arena.doors.flight, 1.0, STRANGER) as link:
        link.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(SETTINGS, 0, 0, b""))
        received, kinds = bytearray(), Counter[int]()
        link.setblocking(False)
        to_send = bytearray(b"".join(_call(number) for number in range(STREAMS)))
        arena.tried(STREAMS)
        deadline = time.monotonic() + HOLD_S
        is_open = True
        while is_open and time.monotonic() < deadline:
            ready, writable, _ = select.select([link], [link] if to_send else [], [], 0.5)
            if writable:
                try:
                    del to_send[: link.send(to_send[: 1 << 16])]
                except OSError:
                    is_open = False
            if ready:
                with contextlib.suppress(BlockingIOError):
                    try:
                        chunk = link.recv(1 << 16)
                    except ConnectionError:
                        chunk = b""
                    is_open = bool(chunk)
                    received += chunk
            while len(received) >= 9 and len(received) >= (size := 9 + int.from_bytes(received[:3], "big")):
                kinds[received[3]] += 1
                del received[:size]
        arena.refused("stream answered", kinds[HEADERS])
        arena.refused("stream reset", kinds[RST_STREAM])
        arena.refused("connection ended by GOAWAY", kinds[GOAWAY])
