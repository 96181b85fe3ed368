"""Faults that need only signals: kill -9, a clean stop, a pause."""

from __future__ import annotations

import signal
import time

from broker_edge.torture.life import Life
from broker_edge.torture.load import MqttLoad


class Kill(Life):
    """Everything acknowledged or delivered still exists after the process dies at any moment, including during a
    start."""

    name = "kill"
    about = "kill -9 at random moments, also during a start"


class Stop(Life):
    """A clean stop writes queued records, and its mark tells the next start that nothing is missing."""

    name = "stop"
    about = "SIGTERM under load"
    stopped_first = 1.0
    killed_first = 0.0
    starts_interrupted = 0.1


class Pause(Life):
    """A process that stands still for a while, as in a paused container, continues as if nothing had happened."""

    name = "pause"
    about = "SIGSTOP for up to half a second under load, then SIGCONT, then kill -9"
    pause_s = 0.01

    def publish(self, load: MqttLoad) -> None:
        self.wait_acked(load, self.moments.randint(1, 500))
        self.broker.send_signal(signal.SIGSTOP)
        try:
            time.sleep(self.moments.uniform(0.05, 0.5))  # A random length of the pause.
        finally:
            self.broker.send_signal(signal.SIGCONT)
        super().publish(load)
