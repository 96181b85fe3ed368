"""The N-th write or sync of a process fails once: no acknowledgement after it, and the next start has all acknowledged
records."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from broker_edge.torture.life import Life
from broker_edge.torture.load import MqttLoad
from broker_edge.torture.report import Finding
from broker_edge.torture.waiting import wait_until

_KINDS = (
    ("eio", "sync"),
    ("eio", "write"),
    ("enospc", "write"),
    ("short", "write"),
    ("eio", "syncdir"),
    ("eio", "rename"),
)
OPERATIONS_MAX = 80
FIRES_S = 1.5
SETTLES_S = 30.0
MORE = 20  # Acknowledgements that show that the broker continues.


class Errors(Life):
    """Goes through N = 1, 2, … for each kind of failure, one per cycle.

    Afterwards the broker either continues to acknowledge, or reports that the partition has stopped; never something in
    between. After a full disk has space again, it must not keep refusing.
    """

    name = "errors"
    about = "the N-th write, sync or rename fails with EIO or ENOSPC or is half done (needs a fault build)"
    needs_fault_build = True
    cycles = 40
    pause_s = 0.05
    windows = (1, 4, 16)
    starts_interrupted = 0.0
    killed_first = 0.0
    stopped_first = 0.2
    _turn: ClassVar[int] = 0
    _said = 0  # Size of the broker's log file before the start.

    def arm(self) -> str:
        self._said = self.broker.log_file.stat().st_size
        turn, Errors._turn = self.bench.seed % 1_000 + Errors._turn, Errors._turn + 1
        error, operation = _KINDS[turn % len(_KINDS)]
        return f"{error}@{operation}#{turn // len(_KINDS) % OPERATIONS_MAX + 1}"

    def publish(self, load: MqttLoad) -> None:
        # The failure may never happen: this run may be too short.
        with contextlib.suppress(TimeoutError):
            wait_until(lambda: self._has_fired() or load.over, seconds=FIRES_S, what="the failure")
        before = load.acked
        try:
            wait_until(
                lambda: load.acked >= before + MORE or load.over or self._says_stopped(),
                seconds=SETTLES_S,
                what="the broker to continue or to stop",
            )
        except TimeoutError:
            self.report.add(
                Finding.STUCK, f"after {self.broker.faults}: /readyz is {self.broker.readyz()}; {load.summary()}"
            )
        self.observe()

    def _has_fired(self) -> bool:
        with self.broker.log_file.open("rb") as log:
            log.seek(self._said)
            return b"faults: " in log.read()

    def _says_stopped(self) -> bool:
        status, body = self.broker.readyz()
        return status == 503 and "no space left" not in body
