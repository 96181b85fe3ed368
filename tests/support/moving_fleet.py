"""A simulated fleet over several processes and brokers, whose devices leave, return and move when they are told to.

`MovingFleet` starts the processes: one event loop serves some hundred devices only. Each process reads lines of JSON:
first what to run, then `["leave", id]` and `["move", id, port]`; it answers with a line once its devices are connected.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker_edge.artifacts.keys import Trust
from broker_edge.device import Fleet, FleetSettings, GuardSettings
from broker_edge.device.faults import Share, assign, parse
from broker_edge.device.simulated import SimulatedDevice, Updates
from broker_edge.policy import Floor, Root, VersionOrder

HARDWARE = ("p2", "p2", "p2", "p2", "p3")
"""In turn by the number of the device."""
HOST = "127.0.0.1"


@dataclass
class MovingFleet:
    """Devices of the product `pump` with a guard of these roots and the floor 1.0.0. `ports` are those of the brokers.
    `faults` as in `broker_edge.device.faults`; a device with one stays where it is."""

    count: int
    ports: Sequence[int]
    root: Root
    log: Path
    faults: str
    seed: int
    processes: int = 3
    _started: list[tuple[range, subprocess.Popen[str]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.ids = [_id(number) for number in range(1, self.count + 1)]
        shares: tuple[Share, ...] = tuple(parse(self.faults))
        found = assign(self.ids, shares, seed=self.seed)
        self.kinds = {id_: str(found.get(id_, "ok")) for id_ in self.ids}
        self.hardware = {id_: HARDWARE[number % len(HARDWARE)] for number, id_ in enumerate(self.ids)}
        self.place: dict[str, int] = {}
        """Device id → index of its broker."""
        self.away: set[str] = set()

    def __enter__(self) -> MovingFleet:
        bounds = [self.count * part // self.processes for part in range(self.processes + 1)]
        for part, (start, end) in enumerate(itertools.pairwise(bounds)):
            at = part % len(self.ports)
            numbers = range(start + 1, end + 1)
            process = subprocess.Popen(
                [sys.executable, "-m", "support.moving_fleet"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(self.log.parent / "fleet.stderr.txt").open("ab"),
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            self._started.append((numbers, process))
            self.place.update((_id(number), at) for number in numbers)
            wanted = {"count": len(numbers), "first": numbers.start, "whole": self.count, "port": self.ports[at]}
            wanted |= {"log": str(self.log), "faults": self.faults, "seed": self.seed}
            self._say(process, {**wanted, "root": self.root.signed.to_json()})
        for _, process in self._started:
            assert process.stdout is not None
            assert process.stdout.readline() == "connected\n", (self.log.parent / "fleet.stderr.txt").read_text()[
                -3000:
            ]
        return self

    def __exit__(self, *_: object) -> None:
        for _, process in self._started:
            process.kill()
            process.wait()

    def leave(self, device_id: str) -> None:
        self.away.add(device_id)
        self._say(self._process(device_id), ["leave", device_id])

    def move(self, device_id: str, to: int) -> None:
        """The device returns at this broker."""
        self.place[device_id] = to
        self.away.discard(device_id)
        self._say(self._process(device_id), ["move", device_id, self.ports[to]])

    def check(self) -> None:
        assert all(process.poll() is None for _, process in self._started), "a process of the fleet has ended"

    def _process(self, device_id: str) -> subprocess.Popen[str]:
        number = int(device_id.rpartition("-")[2])
        return next(process for numbers, process in self._started if number in numbers)

    def _say(self, process: subprocess.Popen[str], what: Any) -> None:
        assert process.stdin is not None
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()


def _id(number: int) -> str:
    return f"device-{number:04}"


async def run(wanted: dict[str, Any]) -> None:
    root, floor = Root.of_json(wanted["root"]), Floor(VersionOrder.SEMVER, "1.0.0")
    guards = tuple(GuardSettings(root, "pump", one, floor) for one in HARDWARE)
    settings = FleetSettings(
        wanted["count"],
        host=HOST,
        port=wanted["port"],
        first=wanted["first"],
        whole=range(1, wanted["whole"] + 1),
        telemetry=False,
        faults=tuple(parse(wanted["faults"])),
        seed=wanted["seed"],
        log_path=Path(wanted["log"]),
        connect_timeout_s=120,
        updates=Updates(Trust(()), allow_unsigned=True, guards=guards),
    )
    fleet = Fleet(settings, [{"value": 0}])
    await fleet.start()
    devices = {device.device_id: device for device in fleet.devices}
    sys.stdout.write("connected\n")
    sys.stdout.flush()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def listen() -> None:
        for line in sys.stdin:
            loop.call_soon_threadsafe(_obey, devices, json.loads(line))
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=listen, daemon=True).start()
    await ended.wait()


def _obey(devices: dict[str, SimulatedDevice], line: list[Any]) -> None:
    device = devices[line[1]]
    if line[0] == "leave":
        device.leave()
    else:
        device.move(HOST, line[2])


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    logging.getLogger("gmqtt").setLevel(logging.CRITICAL)
    asyncio.run(run(json.loads(sys.stdin.readline())))
