"""The process ends, or the power fails, at every named point and around every file operation of a run."""

from __future__ import annotations

import re
import subprocess
from typing import ClassVar

from broker_edge.torture.life import Bench, Life
from broker_edge.torture.load import MqttLoad

# The number of operations of one process before and after which it is ended, one per cycle; then it starts over.
OPERATIONS_MAX = 120
REACHED_S = 1.0  # A point that load and maintenance do not reach in this time is left for the next cycle.


def failpoints(bench: Bench) -> list[str]:
    """The names of the points in a fault build."""
    shown = subprocess.run(
        [str(bench.faults_program), "--failpoints"], capture_output=True, text=True, check=True, timeout=20
    )
    return shown.stdout.split()


class Failpoints(Life):
    """Every second cycle ends at a named point, the others before or after the N-th operation that changes the disk."""

    name = "failpoints"
    about = "the process ends at each named point, and before and after each file operation (needs a fault build)"
    needs_fault_build = True
    starts_interrupted = 0.0
    killed_first = 0.0
    stopped_first = 0.2
    windows = (1, 8, 32)
    pause_s = 0.01
    # Shared by all lives, so that a run goes through all points; short runs begin at different ones.
    _turn: ClassVar[int] = 0

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._points = failpoints(bench)

    def arm(self) -> str:
        turn, Failpoints._turn = self.bench.seed % 1_000 + Failpoints._turn, Failpoints._turn + 1
        if turn % 2 == 0:
            point = self._points[turn // 2 % len(self._points)]
            # Every record passes its points; starts, rolls and removals are rare.
            often = point.startswith(("batch", "before", "qos2", "state"))
            return f"abort@{point}#{self.moments.randint(2, 60) if often else self.moments.choice((1, 1, 2, 3))}"
        number = turn // 4 % OPERATIONS_MAX + 1
        return f"abort@{'op' if turn % 4 == 1 else 'after-op'}#{number}"

    def publish(self, load: MqttLoad) -> None:
        """Publishes until the process has ended by itself, or for a while."""
        if self.broker.faults == self.words(""):
            super().publish(load)
        else:
            self.broker.wait_end(seconds=REACHED_S)

    def finish(self) -> None:
        super().finish()
        said = self.broker.log_file.read_text(errors="replace")
        self.report.points |= set(re.findall(r"^faults: Abort at (\S+) ", said, re.MULTILINE))


class Tears(Life):
    """A write to a segment is incomplete: its part of a batch is never shown, and everything before it is."""

    name = "tears"
    about = "the process ends in the middle of a write to a segment (needs a fault build)"
    needs_fault_build = True
    starts_interrupted = 0.0
    killed_first = 0.0
    stopped_first = 0.0
    windows = (1, 8, 32)
    pause_s = 0.01

    def arm(self) -> str:
        return f"tear@write.seg#{self.moments.randint(5, 80)}"

    def publish(self, load: MqttLoad) -> None:
        self.broker.wait_end(seconds=REACHED_S)
