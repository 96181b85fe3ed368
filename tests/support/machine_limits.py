"""What a command waits for, checked when it becomes owed: approval of the action, rate, devices in flight, window."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from actions.engine import Action, Target
from support.engine import SECOND

if TYPE_CHECKING:
    from support.machine_world import World

APPROVED = "nothing of an action that needs approval is sent before it"
RATE = "no more commands in a minute than the rate says"
IN_FLIGHT = "no more devices at a time than max_in_flight says"
WINDOW = "a command is sent only in the window of its device"

WINDOWS = {"Mon-Sun 00:00-08:02, Mon-Sun 08:10-23:00": ((0, 482), (490, 1380))}
"""The text of a window → the minutes of each day, in UTC, at which it is open. The histories begin at 08:00."""
_MINUTE_US = 60 * SECOND


def is_open(window: str, now_us: int) -> bool:
    minute = now_us // _MINUTE_US % 1440
    return any(start <= minute < end for start, end in WINDOWS[window])


class SendingLimits:
    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: dict[str, list[int]] = defaultdict(list)
        """action_id → when its commands became owed, by a clock that nobody sets."""

    def forget(self) -> None:
        """After a kill between two commits the engine may have forgotten commands, for the rate only; a clock that is
        corrected by less than 30 s shortens the minute."""
        self._sent.clear()

    def sent(self, action: Action, target: Target) -> None:
        """The command of this target has just become owed."""
        world, rollout = self._world, action.rollout
        if rollout.needs_approval and not world.is_approved(action.action_id, 0):
            world.promises.breaks(APPROVED, target)
        row = world.state.actions[action.action_id]
        is_free = target.forced or row.forced
        if (
            rollout.maintenance_window is not None
            and not is_free
            and not is_open(rollout.maintenance_window, world.now_us)
        ):
            world.promises.breaks(WINDOW, f"{target} at {world.now_us}")
        moments = self._sent[action.action_id]
        moments.append(world.steady_us)
        recent = [at for at in moments if world.steady_us - at < _MINUTE_US]
        if rollout.rate_per_minute is not None and len(recent) > rollout.rate_per_minute:
            world.promises.breaks(RATE, f"{recent}: {target}")
        rows = world.state.targets[action.action_id].values()
        under_way = [one for one in rows if not one.final and not one.unsent]
        if rollout.max_in_flight is not None and len(under_way) > rollout.max_in_flight:
            world.promises.breaks(IN_FLIGHT, under_way)
