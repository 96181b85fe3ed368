"""The demo's side of the device process: starts it, sends commands, holds the newest counts.

What the devices do is in `broker_edge.device`; this module only talks to their process.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from broker_edge.errors import PipelineError
from broker_edge.own_python import own_environment, own_python
from pipelines.demo.broker import DemoBroker

EVENT_S = 60.0
"""Time limit for starting the process, for connecting all devices, and for its end."""


class DevicesError(PipelineError):
    """The simulated devices could not start, or ended too early."""


@dataclass(frozen=True, slots=True)
class DeviceCounts:
    connected: int = 0
    published: int = 0
    acked: int = 0
    refused: int = 0
    unacked: int = 0


class DeviceProcess:
    """Use from one thread; `counts` may be called from any."""

    def __init__(self, *, count: int, broker: DemoBroker, interval_s: float, acked_path: Path, first: int = 1) -> None:
        self._acked_path = acked_path
        settings = {"count": count, "first": first, "interval_s": interval_s, "acked_path": str(acked_path)}
        settings |= {"host": broker.mqtt.host, "port": broker.mqtt.port, "scheme": broker.mqtt.scheme}
        if broker.others:
            settings["others"] = [str(one) for one in broker.others]
        if broker.secured is not None:
            # Every process of this machine can read the arguments, so they hold paths only.
            settings |= {"passwords_path": str(broker.secured.device_passwords), "ca": str(broker.secured.ca)}
        self._process = subprocess.Popen(
            own_python("-m", "pipelines.demo.device_process", json.dumps(settings)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=own_environment(),
        )
        self._news = threading.Condition()
        self._counts = DeviceCounts()
        self._events: dict[str, Mapping[str, Any]] = {}
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="devices", daemon=True)
        self._reader.start()

    @property
    def counts(self) -> DeviceCounts:
        return self._counts

    @property
    def alive(self) -> bool:
        return not self._ended

    def wait_ready(self) -> None:
        """Returns when the process is running; no device is connected yet."""
        self._wait("ready")

    def start(self) -> None:
        """Connects the devices and lets them publish; returns when all are connected."""
        self._order("start")
        self._wait("counts")

    def pause(self) -> DeviceCounts:
        """Stops telemetry. The devices stay connected and still execute commands."""
        self._order("pause")
        return _counts(self._wait("paused"))

    def stop(self) -> DeviceCounts:
        """Waits for outstanding acknowledgements, disconnects, and ends the process. A second call does nothing."""
        if not self._ended:
            self._order("stop")
            self._wait("stopped")
        self._close()
        return self._counts

    def kill(self) -> None:
        """Ends the process at once; used for cleaning up after an error."""
        if self._process.poll() is None:
            self._process.kill()
        self._close()

    def _order(self, command: str) -> None:
        stdin = self._pipe(self._process.stdin)
        try:
            stdin.write(command + "\n")
            stdin.flush()
        except OSError as error:
            raise self._gone() from error

    def _wait(self, event: str) -> Mapping[str, Any]:
        deadline = time.monotonic() + EVENT_S
        with self._news:
            while event not in self._events:
                if "failed" in self._events:
                    raise DevicesError(str(self._events["failed"]["message"]))
                if self._ended:
                    raise self._gone()
                if not self._news.wait(deadline - time.monotonic()) and time.monotonic() >= deadline:
                    raise DevicesError(f"the device process did not report {event!r} within {EVENT_S:g} s")
            return self._events[event]

    def _read(self) -> None:
        for line in self._pipe(self._process.stdout):
            news = json.loads(line)
            with self._news:
                self._events[news["event"]] = news
                if "acked" in news:
                    self._counts = _counts(news)
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()

    def _close(self) -> None:
        stdin = self._pipe(self._process.stdin)
        if not stdin.closed:
            stdin.close()
        self._process.wait(EVENT_S)
        self._reader.join(EVENT_S)

    def _gone(self) -> DevicesError:
        code = self._process.wait(EVENT_S)
        return DevicesError(
            f"the process of the simulated devices ended with code {code}; see its error above on stderr"
        )

    @staticmethod
    def _pipe(stream: IO[str] | None) -> IO[str]:
        assert stream is not None, "the process is created with pipes"
        return stream


class DeviceGroup:
    """The device processes of all brokers, used like one."""

    def __init__(self, processes: Sequence[DeviceProcess]) -> None:
        self._processes = tuple(processes)

    @property
    def counts(self) -> DeviceCounts:
        return _sum(process.counts for process in self._processes)

    @property
    def alive(self) -> bool:
        return all(process.alive for process in self._processes)

    def wait_ready(self) -> None:
        for process in self._processes:
            process.wait_ready()

    def start(self) -> None:
        for process in self._processes:
            process.start()

    def pause(self) -> DeviceCounts:
        return _sum([process.pause() for process in self._processes])

    def stop(self) -> DeviceCounts:
        return _sum([process.stop() for process in self._processes])

    def kill(self) -> None:
        for process in self._processes:
            process.kill()


def _sum(parts: Iterable[DeviceCounts]) -> DeviceCounts:
    rows = list(parts)
    return DeviceCounts(**{name: sum(getattr(row, name) for row in rows) for name in DeviceCounts.__slots__})


def _counts(news: Mapping[str, Any]) -> DeviceCounts:
    return DeviceCounts(**{name: news[name] for name in DeviceCounts.__slots__})
