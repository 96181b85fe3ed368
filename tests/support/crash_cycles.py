"""Load, crash, restart, check: one cycle of the kill and the power-cut tests.

What a crash is (kill -9 alone, or the power as well) is the caller's; the broker must be gone when it returns. Some
starts crash before the broker serves. Some crashes come as two: a kill -9, a start that serves what the page cache
still holds, and only then the crash proper, because a record that was served once must be on the disk. Some come
after a clean stop, whose mark later starts believe.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from support.broker_process import BrokerProcess
from support.load_records import Publisher, Recipe
from support.log_check import LogCheck
from support.log_reader import LogReader
from support.mqtt_load import MqttLoad
from support.mqtt_witness import MqttWitness

QUIET_S = 5.0  # without any delivery, after which what is missing counts as skipped
ACKED_S = 20.0  # for the acknowledgements that a cycle wants; the broker hangs if it takes longer


@dataclass(frozen=True, slots=True)
class CrashCycles:
    """One log through many crashes. `moments` decides when each crash comes."""

    broker: BrokerProcess
    check: LogCheck
    recipe: Recipe
    publishers: tuple[Publisher, ...]
    crash: Callable[[bool], None]  # told whether the broker serves a load
    moments: random.Random
    witnesses: tuple[MqttWitness, ...] = ()
    acked_max: int = 3_000
    starts_interrupted: float = 0.25  # the share of starts that crash before the broker serves
    killed_first: float = 0.25  # the share of crashes that come as two
    stopped_first: float = 0.15  # the share of crashes that come after a clean stop

    def run(self, number: int) -> None:
        """Expects the broker to serve, and leaves it serving after a crash."""
        for witness in self.witnesses:
            witness.connect(self.broker.mqtt)
        window = self.moments.choice((1, 8, 32, 128))
        with MqttLoad(
            address=self.broker.mqtt, run=number, recipe=self.recipe, publishers=self.publishers, window=window
        ) as load:
            self._publish(load)
            draw = self.moments.random()
            killed, stopped = draw < self.killed_first, draw > 1 - self.stopped_first
            if stopped:
                assert self.broker.stop() == 0, f"a clean stop fails: {self.broker.last_words()}"
            if killed:
                self.broker.kill()
            else:
                self.crash(not stopped)
            # What the broker said before it died is still in the sockets.
            load.wait(lambda one: one.over, seconds=ACKED_S, what="the connections to end with the broker")
        self.check.add(load.stop())
        for witness in self.witnesses:
            witness.join()
        if killed:
            self._start()
            self.crash(False)
        while self.moments.random() < self.starts_interrupted:
            self.broker.spawn()
            time.sleep(self.moments.uniform(0.0, 0.05))
            self.crash(False)
        self._start()

    def finish(self) -> None:
        """Reads the whole log once more, and lets the witnesses catch up: their sessions may repeat, never skip."""
        with LogReader(self.broker.flight) as reader:
            self.check.everything(reader)
        for witness in self.witnesses:
            witness.connect(self.broker.mqtt)
            missing = witness.wait(self.check.acked, seconds=QUIET_S)
            witness.close()
            self.check.report.violations += witness.violations
            if missing:
                text = f"{len(missing)} acknowledged records never came, the first is {min(missing)}"
                self.check.report.violations.append(f"{witness.client_id}: {text}")

    def _start(self) -> None:
        self.broker.start()
        with LogReader(self.broker.flight) as reader:
            self.check.after_restart(reader)
        for witness in self.witnesses:
            self.check.delivered(witness.seen, witness.client_id)

    def _publish(self, load: MqttLoad) -> None:
        wanted = self.moments.randint(1, self.acked_max)
        if self.moments.random() < 0.5:
            half = wanted // 2
            load.wait(lambda one: one.acked >= half, seconds=ACKED_S, what=f"{half} acknowledgements")
            with LogReader(self.broker.flight) as reader:
                self.check.observe(reader)
        load.wait(lambda one: one.acked >= wanted, seconds=ACKED_S, what=f"{wanted} acknowledgements")
