"""A wall clock that jumps: set by hand, by GPS, or after an empty battery."""

from __future__ import annotations

import dataclasses

from broker_edge.torture.life import Bench, Life

JUMP_S = 400 * 86_400


class Clock(Life):
    """The clock of the log jumps by up to 400 days in both directions, repeatedly.

    Times follow the clock; offsets, order and retention by size do not depend on it. Retention by age may remove what
    appears to be old, but only whole segments from the front.
    """

    name = "clock"
    about = "the clock jumps by up to 400 days, also while the broker runs (needs a fault build)"
    needs_fault_build = True

    def __init__(self, bench: Bench) -> None:
        super().__init__(dataclasses.replace(bench, has_retention=True))

    def arm(self) -> str:
        return f"clock:{JUMP_S},seed:{self.moments.randrange(1 << 32)}"
