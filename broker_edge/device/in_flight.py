"""Publishes without a PUBACK, kept to be sent again as they were. Takes the place of gmqtt's own store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gmqtt.storage import PersistentStorage

DUP = 0x08


class InFlight(PersistentStorage):  # type: ignore[misc]
    """In the order in which they were sent.

    Packet ids stay taken until the PUBACK, so a packet is sent again as it was, whether the broker kept the session or
    not.
    """

    def __init__(self, send_again: Callable[[], None]) -> None:
        super().__init__()
        self._packets: OrderedDict[int, bytes] = OrderedDict()
        self._send_again = send_again
        self.last_mid = 0

    def push_message(self, mid: int, raw_package: bytes) -> None:
        self._packets[mid] = bytes(raw_package)
        self.last_mid = mid

    def remove_message_by_mid(self, mid: int) -> None:
        self._packets.pop(mid, None)

    def get_all(self) -> list[tuple[int, bytes]]:
        return [(mid, bytes([packet[0] | DUP]) + packet[1:]) for mid, packet in self._packets.items()]

    @property
    def is_empty(self) -> bool:
        return not self._packets

    async def wait_empty(self) -> None:
        """gmqtt waits here within `connect`; the futures of the link say the same more exactly."""

    def clear(self) -> None:
        """gmqtt: the broker has no session. Nothing is forgotten, all of it is sent again."""
        self._send_again()
