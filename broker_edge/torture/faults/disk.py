"""A full disk, and a slow one."""

from __future__ import annotations

from pathlib import Path

from broker_edge.torture.faults.power import Power
from broker_edge.torture.life import Bench, Life
from broker_edge.torture.load import MqttLoad
from broker_edge.torture.waiting import wait_until

REFUSES_S = 60.0
RESUMES_S = 60.0
MOVES_S = 60.0


class Full(Power):
    """Publishes are refused, nothing acknowledged is lost, reads continue, and the broker recovers by itself once there
    is space.

    In half of the cycles the broker is killed while the disk is full, so that it must start on a full disk.
    """

    name = "full"
    about = "the disk is filled under load, and emptied again (needs root)"
    starts_interrupted = 0.1
    killed_first = 0.0
    stopped_first = 0.0
    image_bytes = 160 << 20

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._ballast: Path | None = None

    def publish(self, load: MqttLoad) -> None:
        self.wait_acked(load, self.moments.randint(1, self.bench.records_max // 2))
        self._ballast = self.image.fill()
        wait_until(lambda: self.broker.readyz()[0] == 503 or load.over, seconds=REFUSES_S, what="a refusal")
        self.observe()
        if self.moments.random() < 0.5:
            return
        self._empty()
        wait_until(lambda: self.broker.readyz()[0] == 200, seconds=RESUMES_S, what="the broker to resume by itself")
        before = load.acked
        load.wait(lambda one: one.acked > before or one.over, seconds=MOVES_S, what="publishes after the space is back")

    def crash(self, *, under_load: bool) -> None:
        self.broker.kill()

    def restore(self) -> None:
        """Keeps the disk as full as it is."""

    def after_start(self) -> None:
        super().after_start()
        self._empty()
        wait_until(lambda: self.broker.readyz()[0] == 200, seconds=RESUMES_S, what="the broker to resume by itself")

    def _empty(self) -> None:
        if self._ballast is not None:
            self._ballast.unlink(missing_ok=True)
            self._ballast = None


class Slow(Life):
    """Syncs of 20 to 500 ms, as on worn flash: everything takes longer, and nothing else changes."""

    name = "slow"
    about = "each sync of a segment takes 20 to 500 ms (needs a fault build)"
    needs_fault_build = True
    cycles = 10
    starts_interrupted = 0.1

    def arm(self) -> str:
        return f"delay:20-500@sync.seg,seed:{self.moments.randrange(1 << 32)}"

    def publish(self, load: MqttLoad) -> None:
        self.wait_acked(load, self.moments.randint(1, min(300, self.bench.records_max)))
