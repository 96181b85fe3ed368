"""Publishes without a PUBACK, kept so that they can be sent again unchanged. Replaces gmqtt's own store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gmqtt.storage import PersistentStorage

DUP = 0x08


class InFlight(PersistentStorage):  # type: ignore[misc]
    """Publishes in the order in which they were sent.

    Packet ids stay in use until the PUBACK, so a packet is sent again unchanged, whether the broker kept the session or
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
        """gmqtt waits here during `connect`. Returns at once: the futures of the link give the same information more
        exactly."""

    def clear(self) -> None:
        """Called by gmqtt if the broker has no session. Keeps all publishes and sends them again."""
        self._send_again()
