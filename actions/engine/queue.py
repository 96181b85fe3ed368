"""The unsent targets of an action, by wave, in lines sorted by id. Decides nothing.

A target stands in the first line of its wave, or in the line of what it waited for when a tick last looked at it: a
window in some time zone, or a time. The lines together hold exactly the unsent targets; in which of them one stands is
only a memory that saves looks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable
from heapq import heapify, heappop, heappush

Why = tuple[str, str | int | None]
"""What the targets of a line wait for: ("window", time zone), or ("time", Unix second)."""
FIRST: Why = ("", None)
"""The line of those that a tick looks at."""


class Line:
    """Ids in order. Those that have left stay in the heap until their turn."""

    __slots__ = ("_heap", "ids")

    def __init__(self, ids: Iterable[str] = ()) -> None:
        self.ids = set(ids)
        self._heap = list(self.ids)
        heapify(self._heap)

    def add(self, device_id: str) -> None:
        if device_id not in self.ids:
            self.ids.add(device_id)
            heappush(self._heap, device_id)
            if len(self._heap) > 2 * len(self.ids) + 100:
                self._heap = sorted(self.ids)

    def pop(self) -> str | None:
        """Takes the first id out."""
        while self._heap:
            device_id = heappop(self._heap)
            if device_id in self.ids:
                self.ids.remove(device_id)
                return device_id
        return None


class Queue:
    __slots__ = ("_waves", "seen")

    def __init__(self, unsent: Iterable[tuple[int, str]]) -> None:
        """`unsent` are pairs of wave and id."""
        by_wave: dict[int, list[str]] = {}
        for wave, device_id in unsent:
            by_wave.setdefault(wave, []).append(device_id)
        self._waves = {wave: {FIRST: Line(ids)} for wave, ids in by_wave.items()}
        self.seen: tuple[object, ...] = ()
        """What the last look was based on, besides the targets: compared by identity."""

    def add(self, wave: int, device_id: str, why: Why = FIRST) -> None:
        self._waves.setdefault(wave, {}).setdefault(why, Line()).add(device_id)

    def discard(self, wave: int, device_id: str) -> None:
        for line in self._waves[wave].values():
            line.ids.discard(device_id)

    def waves(self) -> list[int]:
        return sorted(self._waves)

    def taken(self, wave: int, may_go: Callable[[Why], bool]) -> Generator[str, None, None]:
        """Takes the ids out of the lines of this wave that may go, in order. Close it to leave the others there."""
        lines = self._waves.get(wave, {})
        for why in [why for why, line in lines.items() if not line.ids and why is not FIRST]:
            del lines[why]
        heads = []
        for number, line in enumerate([line for why, line in lines.items() if may_go(why)]):
            first = line.pop()
            if first is not None:
                heads.append((first, number, line))
        heapify(heads)
        try:
            while heads:
                device_id, number, line = heads[0]
                following = line.pop()
                if following is None:
                    heappop(heads)
                else:
                    heappop(heads)
                    heappush(heads, (following, number, line))
                yield device_id
        finally:
            for device_id, _, line in heads:
                line.add(device_id)

    def wake(self, ids: Collection[str]) -> None:
        """Those of the ids that wait in other lines go to the first one."""
        found = ids if isinstance(ids, set | frozenset) else set(ids)
        for lines in self._waves.values():
            for why, line in list(lines.items()):
                if why is FIRST:
                    continue
                for device_id in line.ids & found:
                    line.ids.remove(device_id)
                    lines.setdefault(FIRST, Line()).add(device_id)

    def wake_all(self) -> None:
        for wave, lines in self._waves.items():
            if len(lines) > 1:
                self._waves[wave] = {FIRST: Line(id_ for line in lines.values() for id_ in line.ids)}

    def content(self) -> dict[int, list[str]]:
        found = {
            wave: sorted(id_ for line in lines.values() for id_ in line.ids) for wave, lines in self._waves.items()
        }
        return {wave: ids for wave, ids in found.items() if ids}
