"""Requests that a foreign page makes an operator's browser send, with the password that the browser remembers."""

from __future__ import annotations

import socket
import time

from attacks.arena import OPERATOR, WAIT_S, Arena, connect, request

EVIL = "evil.example"


def pages(arena: Arena) -> None:
    """A page with DNS rebinding, a cross-origin page, and WebSockets of both."""
    basic = {"Authorization": arena.basic(OPERATOR)}
    host = "{}:{}".format(*arena.doors.admin)
    rebinding = {"Host": f"{EVIL}:{arena.doors.admin[1]}", **basic}
    foreign = {"Host": host, "Origin": f"http://{EVIL}", "Sec-Fetch-Site": "cross-site", **basic}
    for headers in (rebinding, {**rebinding, "Origin": f"http://{EVIL}:{arena.doors.admin[1]}"}, foreign):
        for method, path in (
            ("PUT", "/api/v1/drain"),
            ("POST", "/api/v1/reload"),
            ("DELETE", "/api/v1/clients/north-0001"),
        ):
            arena.tried()
            status, _ = request(arena, method, path, headers=headers, body=b"")
            if status >= 300 and status != 404:
                arena.refused(f"http {status}")
                continue
            arena.breach(f"{method} {path} by a page of another host")
            if path.endswith("drain"):
                request(arena, "DELETE", "/api/v1/drain", headers={"Host": host, **basic}, body=b"")
    arena.tried()
    status, _ = request(arena, "GET", "/api/v1/clients", headers=rebinding)
    if status < 300:
        arena.breach("GET /api/v1/clients by a page of another host")
    else:
        arena.refused(f"http {status}")
    for _ in range(10):
        _web_socket(arena)
    time.sleep(0.2)


def _web_socket(arena: Arena) -> None:
    """Opens a WebSocket from a foreign page, without a password."""
    arena.tried()
    head = (
        f"GET /mqtt HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://{EVIL}\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    with socket.create_connection(arena.doors.ws, timeout=WAIT_S) as link:
        link.sendall(head.encode())
        answer = link.recv(4096)
        if b" 101 " not in answer:
            arena.refused("websocket " + answer[9:12].decode(errors="replace"))
            return
        body = connect("page", None, "")
        link.sendall(b"\x82" + bytes([0x80 | len(body)]) + bytes(4) + body)
        answer = link.recv(4096)
        code = answer[5] if len(answer) > 5 else 0xFF
        if code == 0:
            arena.breach("MQTT from a page of another host without credentials")
        else:
            arena.refused(f"0x{code:02x}")
