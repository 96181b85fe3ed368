"""A broker without free file descriptors: what it cannot open it opens later, and nothing is lost in between."""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

from broker_edge.torture import wire
from broker_edge.torture.life import Bench, Life
from broker_edge.torture.load import MqttLoad
from broker_edge.torture.waiting import wait_until

FILES_MAX = 96
RESERVE = 16
"""Descriptors that the broker does not use for connections at that limit."""
RESUMES_S = 60.0
MOVES_S = 60.0


class Fds(Life):
    """Idle connections take all descriptors except the reserve; then nothing more can be opened; then they disconnect.

    The load continues throughout.
    """

    name = "fds"
    about = f"{FILES_MAX} file descriptors and more idle connections than that, under load"
    files_max = FILES_MAX
    pause_s = 0.05
    windows = (1, 4, 16)

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self._idle_number = 0

    def publish(self, load: MqttLoad) -> None:
        self.wait_acked(load, self.moments.randint(1, 200))
        before = load.acked
        with self._idle_connections(FILES_MAX + 32):
            wait_until(
                lambda: self._open_files() >= FILES_MAX - RESERVE,
                seconds=MOVES_S,
                what="the descriptors to run out: otherwise this fault tests nothing",
            )
            with self._nothing_can_be_opened(), contextlib.suppress(TimeoutError):
                # Some may be refused while a segment cannot be opened; do not wait for those.
                load.wait(lambda one: one.acked >= before + 500 or one.over, seconds=2.0, what="some more")
        wait_until(lambda: self._readyz() == 200, seconds=RESUMES_S, what="the broker to resume by itself")
        before = load.acked
        load.wait(lambda one: one.acked > before or one.over, seconds=MOVES_S, what="publishes afterwards")

    def _open_files(self) -> int:
        return len(list(Path(f"/proc/{self.broker.pid}/fd").iterdir()))

    @contextlib.contextmanager
    def _nothing_can_be_opened(self) -> Iterator[None]:
        """Sets the limit to the number of open files. The system gives a new file the lowest free number."""
        resource.prlimit(self.broker.pid, resource.RLIMIT_NOFILE, (self._open_files(), FILES_MAX))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(self.broker.pid, resource.RLIMIT_NOFILE, (FILES_MAX, FILES_MAX))

    def _readyz(self) -> int:
        try:
            return self.broker.readyz()[0]
        except OSError:
            return 0

    @contextlib.contextmanager
    def _idle_connections(self, count: int) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                self._idle_number += 1
                with contextlib.suppress(OSError):
                    one = stack.enter_context(socket.create_connection(self.broker.mqtt, timeout=1))
                    one.sendall(wire.connect(protocol=5, client_id=f"idle-{self._idle_number}"))
            yield
