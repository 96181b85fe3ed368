"""Measures how long a broker takes to start with many stored sessions, each with one subscription, none connected.

`python tests/bench/sessions.py HEADWATERD DATA_DIR SESSIONS ROUNDS [KEY=VALUE ...]` fills a new folder through the
broker, kills the broker with SIGKILL, and then measures ROUNDS starts like `restart.py`. Prints one JSON object per
round. The broker's limits on sessions and connections may have to be raised.
"""

from __future__ import annotations

import json
import re
import selectors
import socket
import struct
import subprocess
import sys
from pathlib import Path

from restart import measure

AT_ONCE = 400
KEPT_S = 86_400
# Packet types of CONNACK and SUBACK, in the high bits of the first byte.
CONNACK, SUBACK = 2, 9


def text(value: str) -> bytes:
    return struct.pack(">H", len(value)) + value.encode()


def packet(first: int, body: bytes) -> bytes:
    if len(body) > 127:
        raise ValueError("this helper supports a one-byte length only")
    return bytes([first, len(body)]) + body


def opening(number: int) -> bytes:
    properties = b"\x11" + struct.pack(">I", KEPT_S)
    header = text("MQTT") + b"\x05\x00\x00\x3c" + bytes([len(properties)]) + properties
    subscription = b"\x00\x01\x00" + text(f"devices/d{number}/actions") + b"\x01"
    return packet(0x10, header + text(f"d{number}")) + packet(0x82, subscription)


def has_subscribed(answers: bytes) -> bool:
    at = 0
    while at + 2 <= len(answers) and at + 2 + answers[at + 1] <= len(answers):
        if answers[at] >> 4 == SUBACK:
            return True
        if answers[at] >> 4 != CONNACK or answers[at + 3] != 0:
            raise SystemExit(f"the broker refused a session: {answers!r}")
        at += 2 + answers[at + 1]
    return False


def open_sessions(address: tuple[str, int], numbers: range) -> None:
    """Opens these sessions at the same time and drops them without a DISCONNECT."""
    with selectors.DefaultSelector() as waiting:
        for number in numbers:
            client = socket.create_connection(address)
            client.sendall(opening(number))
            waiting.register(client, selectors.EVENT_READ, bytearray())
        while waiting.get_map():
            for key, _ in waiting.select(timeout=60):
                client = key.fileobj
                assert isinstance(client, socket.socket)
                received = client.recv(512)
                if not received:
                    raise SystemExit(f"the broker closed a connection after {bytes(key.data)!r}")
                key.data.extend(received)
                if has_subscribed(bytes(key.data)):
                    waiting.unregister(client)
                    client.close()


def fill(headwaterd: str, data_dir: str, sessions: int, more: list[str]) -> None:
    settings = [
        f"data_dir={data_dir}",
        *more,
        *(f"listeners.{name}.bind=127.0.0.1:0" for name in ("mqtt", "flight", "admin")),
    ]
    command = [headwaterd, *(part for setting in settings for part in ("--set", setting))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as broker:
        try:
            assert broker.stdout is not None
            found = re.search(r"mqtt=([\d.]+):(\d+)", broker.stdout.readline())
            if found is None:
                raise SystemExit("the broker did not start")
            for first in range(0, sessions, AT_ONCE):
                numbers = range(first, min(first + AT_ONCE, sessions))
                open_sessions((found.group(1), int(found.group(2))), numbers)
        finally:
            broker.kill()


def main() -> None:
    headwaterd, data_dir, sessions, rounds, *more = sys.argv[1:]
    if not Path(data_dir).exists():
        fill(headwaterd, data_dir, int(sessions), more)
    for _ in range(int(rounds)):
        sys.stdout.write(json.dumps(measure(headwaterd, data_dir, more)) + "\n")


if __name__ == "__main__":
    main()
