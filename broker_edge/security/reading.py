"""Files of a broker are read whole, up to a limit, as the broker itself does."""

from __future__ import annotations

from pathlib import Path

from broker_edge.regular_file import open_regular

BYTES_MAX = 64 << 20


class Unreadable(Exception):
    """`str()` says why."""


def read(path: Path) -> str:
    return read_bytes(path).decode(errors="replace")


def read_bytes(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            found = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise Unreadable(f"it cannot be read ({error.strerror})") from error
    if len(found) > BYTES_MAX:
        raise Unreadable(f"it is larger than {BYTES_MAX >> 20} MiB")
    return found
