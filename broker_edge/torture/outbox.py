"""The unfinished publishes of one publisher: their packet ids, and what it sends again after a reconnect (MQTT 4.4).

A publisher that never resends has one outbox per connection; one with a session keeps it across connections. No
sockets, no bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from broker_edge.torture.records import RecordName

_PACKET_IDS = 65_535


@dataclass(slots=True)
class Unfinished:
    """A publish without its last acknowledgement. `released`: the broker has it (PUBREC), and PUBREL was sent."""

    packet_id: int
    name: RecordName
    released: bool = False


@dataclass(slots=True)
class Outbox:
    """The unfinished publishes of one client id, oldest first."""

    unfinished: dict[int, Unfinished] = field(default_factory=dict)
    resent: Counter[RecordName] = field(default_factory=Counter)
    has_session: bool = False  # The broker has confirmed a session, which it must keep.
    _last_id: int = 0

    def add(self, name: RecordName) -> Unfinished:
        self._last_id = self._last_id % _PACKET_IDS + 1
        assert self._last_id not in self.unfinished, "a window is smaller than the number of packet ids"
        one = self.unfinished[self._last_id] = Unfinished(self._last_id, name)
        return one

    def oldest_unanswered(self) -> Unfinished | None:
        """The publish whose PUBACK or PUBREC must come next (MQTT 4.6)."""
        return next((one for one in self.unfinished.values() if not one.released), None)

    def again(self) -> Iterator[Unfinished]:
        """The publishes that a resumed session sends again, in their original order."""
        for one in list(self.unfinished.values()):
            if not one.released:
                self.resent[one.name] += 1
            yield one
