"""Simulated devices in one process: each replays a measured series as telemetry and carries out commands.

Every telemetry message that the broker acknowledged is written down with a hash of its payload, so that what arrives at
the other end can be compared with what the devices were promised. One event loop serves up to some 500 devices.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import threading
import time
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO

import pyarrow as pa

from broker_edge.device.agent import Agent
from broker_edge.device.commands import handlers
from broker_edge.device.link import Link, LinkError, PublishRefused
from broker_edge.errors import HeadwaterError

FLEET_MAX = 2_000
_SITES = ("roof", "cellar", "yard", "hall")
_MODELS = ("ht1", "ht2")

Sample = Mapping[str, float | int | str]
"""One line of the series: named values that go into the payload as they are."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """`inflight_max` publishes per device wait for their PUBACK at most; a slow broker slows the devices."""

    count: int
    host: str = "127.0.0.1"
    port: int = 1883
    interval_s: float = 1.0
    prefix: str = "device"
    inflight_max: int = 16
    connect_parallel: int = 32
    connect_timeout_s: float = 30.0
    version: int = 5
    acked_path: Path | None = None
    """Each acknowledgement is also appended to this file (`device,seq,hash,acked_us`), which survives a kill."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= FLEET_MAX:
            raise HeadwaterError(f"a fleet has 1 to {FLEET_MAX} devices, not {self.count}")
        if self.interval_s <= 0:
            raise HeadwaterError(f"interval_s must be above 0, not {self.interval_s:g}")


def payload_hash(payload: bytes) -> int:
    """The first 8 bytes of the sha256 of a payload as a signed integer, big-endian: what `Acked` keeps."""
    return int.from_bytes(hashlib.sha256(payload).digest()[:8], "big", signed=True)


class Acked:
    """What the broker has acknowledged: one line per telemetry message. Thread-safe for readers."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._devices: list[str] = []
        self._index: dict[str, int] = {}
        self._device = array("i")
        self._seq, self._hash, self._acked_us = array("q"), array("q"), array("q")
        self._file: IO[str] | None = path.open("a", buffering=1) if path is not None else None

    def __len__(self) -> int:
        return len(self._seq)

    def add(self, device_id: str, seq: int, hash_: int) -> None:
        acked_us = time.time_ns() // 1_000
        with self._lock:
            if device_id not in self._index:
                self._index[device_id] = len(self._devices)
                self._devices.append(device_id)
            self._device.append(self._index[device_id])
            self._seq.append(seq)
            self._hash.append(hash_)
            self._acked_us.append(acked_us)
            if self._file is not None:
                self._file.write(f"{device_id},{seq},{hash_},{acked_us}\n")

    def to_table(self) -> pa.Table:
        """Columns device_id string, seq int64, payload_hash int64, acked_us int64, in the order of acknowledgement."""
        with self._lock:
            codes = pa.array(list(self._device), pa.int32())
            columns = [pa.array(list(column), pa.int64()) for column in (self._seq, self._hash, self._acked_us)]
            devices = pa.DictionaryArray.from_arrays(codes, pa.array(self._devices, pa.string()))
        names = ["device_id", "seq", "payload_hash", "acked_us"]
        return pa.table([devices.cast(pa.string()), *columns], names=names)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class SimulatedDevice:
    """One device: an agent, a link, and a loop that publishes the series from its own place on."""

    def __init__(self, device_id: str, settings: FleetSettings, samples: Iterator[Sample], acked: Acked) -> None:
        self.device_id = device_id
        self.interval_s = settings.interval_s
        self.published = 0
        self.refused = 0
        self._settings = settings
        self._samples = samples
        self._acked = acked
        self._seq = 0
        self.agent = Agent(device_id, handlers=handlers(self))
        self.link = Link(
            device_id,
            host=settings.host,
            port=settings.port,
            subscribe=self.agent.topic,
            on_message=self.agent.received,
            inflight_max=settings.inflight_max,
            version=settings.version,
        )
        self.agent.attach(self.link)

    async def open(self) -> None:
        await self.link.open(timeout_s=self._settings.connect_timeout_s)
        await self.agent.catch_up()

    async def reboot(self) -> None:
        """The connection ends and comes back, and the agent has a new boot id."""
        self.agent.begin_boot()
        await self.link.drop()

    async def run(self) -> None:
        """Publish until cancelled, a sample each `interval_s`; what a slow broker delays is not made up for."""
        loop = asyncio.get_running_loop()
        due = loop.time() + self.interval_s * (zlib.crc32(self.device_id.encode()) % 1000) / 1000
        topic = f"devices/{self.device_id}/telemetry"
        for sample in self._samples:
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self._send(topic, sample)
            due = max(due + self.interval_s, loop.time())

    async def _send(self, topic: str, sample: Sample) -> None:
        seq = self._seq + 1
        body = {"ts": time.time_ns() // 1_000, "seq": seq, **sample}
        payload = json.dumps(body, separators=(",", ":")).encode()
        future = await self.link.send(topic, payload)
        self._seq = seq
        self.published += 1
        hash_ = payload_hash(payload)

        def acknowledged(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                self._acked.add(self.device_id, seq, hash_)
            elif isinstance(error, PublishRefused):
                self.refused += 1

        future.add_done_callback(acknowledged)


@dataclass(frozen=True, slots=True)
class FleetCounts:
    devices: int
    connected: int
    published: int
    acked: int
    refused: int
    unacked: int


class Fleet:
    """`settings.count` devices named `<prefix>-0001`…, each starting elsewhere in `series`. Use from one event loop."""

    def __init__(self, settings: FleetSettings, series: Iterable[Sample]) -> None:
        samples: Sequence[Sample] = tuple(series)
        if not samples:
            raise HeadwaterError("the series to replay is empty; give at least one sample")
        self.settings = settings
        self.acked = Acked(settings.acked_path)
        stride = max(1, len(samples) // settings.count)
        self.devices = [
            SimulatedDevice(id_, settings, _from(samples, index * stride), self.acked)
            for index, id_ in enumerate(device_ids(settings))
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect all devices, then let them publish. Raises LinkError when one cannot connect in time."""
        gate = asyncio.Semaphore(self.settings.connect_parallel)

        async def open_one(device: SimulatedDevice) -> None:
            async with gate:
                await device.open()

        try:
            async with asyncio.TaskGroup() as group:
                for device in self.devices:
                    group.create_task(open_one(device))
        except ExceptionGroup as errors:
            first = errors.exceptions[0]
            raise LinkError(f"{len(errors.exceptions)} devices could not connect; the first: {first}") from first
        self._tasks = [asyncio.create_task(device.run()) for device in self.devices]

    async def pause(self) -> None:
        """Stop publishing telemetry; the devices stay connected and go on carrying out commands."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def stop(self, *, drain_s: float = 10.0) -> int:
        """Stop publishing, wait for outstanding PUBACKs, disconnect. Returns how many publishes stayed
        unacknowledged."""
        await self.pause()
        for device in self.devices:
            await device.agent.close()
        left = await asyncio.gather(*(device.link.close(drain_s=drain_s) for device in self.devices))
        self.acked.close()
        return sum(left)

    def counts(self) -> FleetCounts:
        return FleetCounts(
            devices=len(self.devices),
            connected=sum(device.link.connected for device in self.devices),
            published=sum(device.published for device in self.devices),
            acked=len(self.acked),
            refused=sum(device.refused for device in self.devices),
            unacked=sum(device.link.unacked for device in self.devices),
        )


class RunningFleet:
    """A fleet on a thread of its own, for callers without an event loop.

    >>> with RunningFleet(FleetSettings(count=200, port=port), series) as fleet:
    ...     fleet.counts().acked
    """

    def __init__(self, settings: FleetSettings, series: Iterable[Sample]) -> None:
        self._settings, self._series = settings, series
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._fleet: Fleet | None = None
        self.unacked_at_stop: int | None = None

    @property
    def fleet(self) -> Fleet:
        if self._fleet is None:
            raise HeadwaterError("the fleet has not been started")
        return self._fleet

    @property
    def acked(self) -> Acked:
        return self.fleet.acked

    def counts(self) -> FleetCounts:
        return self.fleet.counts()

    def start(self) -> None:
        self._thread.start()

        async def begin() -> Fleet:
            fleet = Fleet(self._settings, self._series)
            self._fleet = fleet
            await fleet.start()
            return fleet

        try:
            asyncio.run_coroutine_threadsafe(begin(), self._loop).result()
        except BaseException:
            self.stop(drain_s=0)
            raise

    def pause(self) -> None:
        asyncio.run_coroutine_threadsafe(self.fleet.pause(), self._loop).result()

    def stop(self, *, drain_s: float = 10.0) -> int:
        """As `Fleet.stop`; a second call does nothing."""
        if self.unacked_at_stop is None:
            future = asyncio.run_coroutine_threadsafe(self.fleet.stop(drain_s=drain_s), self._loop)
            self.unacked_at_stop = future.result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
        return self.unacked_at_stop

    def __enter__(self) -> RunningFleet:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def device_ids(settings: FleetSettings) -> list[str]:
    return [f"{settings.prefix}-{number:04}" for number in range(1, settings.count + 1)]


def labels_of(index: int) -> dict[str, str]:
    """The labels of the device at `index` from 0, as they belong into the table `devices`: site and model."""
    return {"site": _SITES[index % len(_SITES)], "model": _MODELS[index // len(_SITES) % len(_MODELS)]}


def _from(samples: Sequence[Sample], start: int) -> Iterator[Sample]:
    """The series without end, from `start` on; the samples themselves are shared by all devices."""
    for index in itertools.count(start):
        yield samples[index % len(samples)]
