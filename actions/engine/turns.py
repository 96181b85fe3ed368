"""Whose turn it is: the unsent targets of an action in sending order, without a look at those that wait for a window or
a time. Sends nothing.

A target that waited only for its window is not looked at again before the window opens, or before something changes
that may decide about it earlier: the target, its device, what the device reports, an artifact.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from heapq import merge

from .action import Action
from .model import SECOND_US, ActionState, Target
from .queue import FIRST, Why
from .windows import is_open
from .work import Work


class Turns:
    """The targets of one action whose turn it is. Make it by `turns`, iterate once."""

    def __init__(self, work: Work, action: Action, row: ActionState) -> None:
        self._work, self._action, self._row = work, action, row
        self._queue = work.index(action.action_id).unsent()
        self._changed = {
            target.device_id: target.wave for target in work.changed.get(action.action_id, {}).values() if target.unsent
        }
        self._streams: list[Generator[str, None, None]] = []
        self._taken: dict[str, tuple[int, Why]] = {}
        """By id: the wave, and the line to which it goes back."""

    def __iter__(self) -> Iterator[Target]:
        """Earlier waves first, then by device id."""
        for wave in sorted({*self._queue.waves(), *self._changed.values()}):
            if wave > self._row.wave:
                break
            new = sorted(id_ for id_, its in self._changed.items() if its == wave)
            for device_id in merge(new, self._queued(wave)):
                target = self._work.target(self._action.action_id, device_id)
                if target is None or not target.unsent:
                    continue
                if target.retry_us is not None and target.retry_us > self._work.now_us:
                    self._send_back(device_id, ("time", target.retry_us // SECOND_US))
                    continue
                yield target

    def wait_for_window(self, target: Target) -> None:
        """The target waits only for its window. What this tick alone knows may not decide where it stands."""
        device = self._work.devices.get(target.device_id)
        is_known = not self._action.rollout.depends_on and target.device_id not in self._work.facts
        if is_known and device is not None:
            self._send_back(target.device_id, ("window", device.time_zone))

    def _queued(self, wave: int) -> Iterator[str]:
        self._streams.append(self._queue.taken(wave, self._may_go))
        for device_id in self._streams[-1]:
            self._taken[device_id] = (wave, FIRST)
            if device_id not in self._changed:
                yield device_id

    def _send_back(self, device_id: str, why: Why) -> None:
        if device_id in self._taken and device_id not in self._work.changed.get(self._action.action_id, {}):
            self._taken[device_id] = (self._taken[device_id][0], why)

    def _may_go(self, why: Why) -> bool:
        if why[0] == "time":
            return isinstance(why[1], int) and why[1] * SECOND_US <= self._work.now_us
        if why[0] == "window":
            window, zone = self._action.rollout.maintenance_window, why[1]
            is_bound = window is not None and not self._row.forced
            return not is_bound or is_open(window or "", None if zone is None else str(zone), self._work.now_us)
        return True

    def wake(self) -> None:
        """Looks again at those that waited for a window, if something else may decide about them now."""
        work, queue = self._work, self._queue
        around = (work.state.facts, work.devices, work.artifacts)
        if len(queue.seen) == len(around) and all(one is other for one, other in zip(queue.seen, around, strict=True)):
            queue.wake(work.facts.keys())
            return
        changed = work.changed_devices()
        is_near = len(queue.seen) == len(around) and queue.seen[0] is around[0] and queue.seen[2] is around[2]
        if is_near and changed is not None and queue.seen[1] is work.state.devices:
            queue.wake({*work.facts, *changed})
        else:
            queue.wake_all()
        queue.seen = around

    def put_back(self) -> None:
        for stream in self._streams:
            stream.close()
        for device_id, (wave, why) in self._taken.items():
            self._queue.add(wave, device_id, why)


@contextmanager
def turns(work: Work, action: Action, row: ActionState) -> Iterator[Turns]:
    """The targets whose turn it is; at the end all are in the queue again, because the tick may be repeated."""
    found = Turns(work, action, row)
    found.wake()
    try:
        yield found
    finally:
        found.put_back()
