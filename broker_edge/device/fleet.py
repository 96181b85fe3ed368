"""Simulated devices in one process: each replays a measured series as telemetry and executes commands.

Every telemetry message that the broker acknowledged is recorded with a hash of its payload, so that the rows in the
tables can be compared with the acknowledged messages. One event loop serves up to about 500 devices.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from broker_edge.device.acked import Acked, payload_hash
from broker_edge.device.faults import Share, assign
from broker_edge.device.fleet_log import FleetLog
from broker_edge.device.link import ConnectRefused, LinkError
from broker_edge.device.simulated import DeviceSettings, Sample, SimulatedDevice, Updates
from broker_edge.errors import ConfigError, HeadwaterError
from broker_edge.mqtt_address import WS_PATH, MqttAddress
from broker_edge.tls import NO_TLS, TlsReferences

FLEET_MAX = 2_000
_SITES = ("roof", "cellar", "yard", "hall")
_MODELS = ("ht1", "ht2")

__all__ = [
    "Acked",
    "Fleet",
    "FleetCounts",
    "FleetSettings",
    "RunningFleet",
    "Sample",
    "SimulatedDevice",
    "device_ids",
    "labels_of",
    "payload_hash",
]


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """At most `inflight_max` publishes per device wait for their PUBACK, so a slow broker slows the devices down.

    This process runs `count` devices, starting with number `first`. `faults` are distributed over the numbers `whole`
    (default: those of this process), of which this process may be a part. `log_path` is the fleet's own log.
    """

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
    """Each acknowledgement is also appended to this file (`device,seq,hash,acked_us`), which survives the end of the
    process."""
    first: int = 1
    whole: range | None = None
    telemetry: bool = True
    updates: Updates | None = None
    faults: tuple[Share, ...] = ()
    seed: int = 0
    away_s: float = 15.0
    log_path: Path | None = None
    user: str | None = None
    password: str | None = None
    scheme: str = "mqtt"
    path: str = WS_PATH
    tls: TlsReferences = NO_TLS
    others: tuple[MqttAddress, ...] = ()
    """Further nodes of a cluster, of which one serves clients."""
    passwords_path: Path | None = None
    """Lines of `<device>:<password>`: each device connects as the user of its name. In place of `user`."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= FLEET_MAX:
            raise HeadwaterError(f"a fleet has 1 to {FLEET_MAX} devices, not {self.count}")
        if self.interval_s <= 0:
            raise HeadwaterError(f"interval_s must be above 0, not {self.interval_s:g}")


@dataclass(frozen=True, slots=True)
class FleetCounts:
    devices: int
    connected: int
    published: int
    acked: int
    refused: int
    unacked: int


class Fleet:
    """`settings.count` devices named `<prefix>-0001`…, each starting at another point of `series`. Use from one event
    loop."""

    def __init__(self, settings: FleetSettings, series: Iterable[Sample]) -> None:
        samples: Sequence[Sample] = tuple(series)
        if not samples:
            raise HeadwaterError("the series to replay is empty; give at least one sample")
        self.settings = settings
        self.acked = Acked(settings.acked_path)
        stride = max(1, len(samples) // settings.count)
        self.log = FleetLog(settings.log_path)
        whole = settings.whole or _numbers(settings)
        faults = assign([_name(settings, number) for number in whole], settings.faults, seed=settings.seed)
        of_device = DeviceSettings(
            host=settings.host,
            port=settings.port,
            interval_s=settings.interval_s,
            inflight_max=settings.inflight_max,
            connect_timeout_s=settings.connect_timeout_s,
            version=settings.version,
            telemetry=settings.telemetry,
            away_s=settings.away_s,
            updates=settings.updates,
            user=settings.user,
            password=settings.password,
            scheme=settings.scheme,
            path=settings.path,
            tls=settings.tls,
            others=settings.others,
        )
        passwords = None
        if settings.passwords_path is not None:
            passwords = _passwords(settings.passwords_path, device_ids(settings))
        self.devices = [
            SimulatedDevice(
                id_,
                of_device if passwords is None else replace(of_device, user=id_, password=passwords[id_]),
                _from(samples, index * stride),
                self.acked,
                log=self.log,
                fault=faults.get(id_),
            )
            for index, id_ in enumerate(device_ids(settings))
        ]
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect all devices, then start publishing. Raises LinkError if one cannot connect in time."""
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
            kind = ConnectRefused if isinstance(first, ConnectRefused) else LinkError
            raise kind(f"the fleet could not connect: {first}") from first
        self._tasks = [asyncio.create_task(device.run()) for device in self.devices]

    @property
    def trouble(self) -> str | None:
        """Why one of the devices is not connected, if that is known."""
        return next((why for device in self.devices if (why := device.link.trouble) is not None), None)

    async def pause(self) -> None:
        """Stop publishing telemetry. The devices stay connected and still execute commands."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def stop(self, *, drain_s: float = 10.0) -> int:
        """Stop publishing, wait for outstanding PUBACKs, disconnect. Returns the number of unacknowledged publishes."""
        await self.pause()
        left = await asyncio.gather(*(device.close(drain_s=drain_s) for device in self.devices))
        self.acked.close()
        self.log.close()
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
    """A fleet on its own thread, for callers without an event loop.

    >>> with RunningFleet(FleetSettings(count=200, port=port), series) as fleet:
    ...     fleet.counts().acked
    """

    def __init__(self, settings: FleetSettings, series: Iterable[Sample]) -> None:
        self._settings, self._series = settings, series
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fleet", daemon=True)
        self._fleet: Fleet | None = None
        self._beginning: asyncio.Task[Fleet] | None = None
        self.unacked_at_stop: int | None = None
        self.is_starting = False
        """Whether the devices are made and some are not connected yet."""

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
            self._beginning = asyncio.current_task()
            fleet = Fleet(self._settings, self._series)
            self._fleet, self.is_starting = fleet, True
            try:
                await fleet.start()
            finally:
                self.is_starting = False
            return fleet

        try:
            asyncio.run_coroutine_threadsafe(begin(), self._loop).result()
        except BaseException:
            # Ctrl-C reaches this thread alone.
            asyncio.run_coroutine_threadsafe(self._begin_no_more(), self._loop).result()
            self.stop(drain_s=0)
            raise

    async def _begin_no_more(self) -> None:
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.wait([self._beginning])

    def pause(self) -> None:
        asyncio.run_coroutine_threadsafe(self.fleet.pause(), self._loop).result()

    def stop(self, *, drain_s: float = 10.0) -> int:
        """Like `Fleet.stop`; a second call does nothing."""
        if self.unacked_at_stop is None:
            self.unacked_at_stop = 0
            # Without a fleet its settings were wrong, and that error is the one to report.
            if self._fleet is not None:
                future = asyncio.run_coroutine_threadsafe(self._fleet.stop(drain_s=drain_s), self._loop)
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


def _passwords(path: Path, names: Iterable[str]) -> dict[str, str]:
    """The password of each name. Raises ConfigError, which repeats no password."""
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read the passwords {path} ({error.strerror})") from error
    found = {name: password for name, _, password in (line.partition(":") for line in lines)}
    missing = next((name for name in names if not found.get(name)), None)
    if missing is not None:
        raise ConfigError(f"{path} has no password of {missing}: write a line {missing}:PASSWORD")
    return found


def device_ids(settings: FleetSettings) -> list[str]:
    return [_name(settings, number) for number in _numbers(settings)]


def _numbers(settings: FleetSettings) -> range:
    return range(settings.first, settings.first + settings.count)


def _name(settings: FleetSettings, number: int) -> str:
    return f"{settings.prefix}-{number:04}"


def labels_of(index: int) -> dict[str, str]:
    """The labels of the device at `index` (from 0) for the table `devices`: site and model."""
    return {"site": _SITES[index % len(_SITES)], "model": _MODELS[index // len(_SITES) % len(_MODELS)]}


def _from(samples: Sequence[Sample], start: int) -> Iterator[Sample]:
    """The series as an endless cycle that begins at `start`; all devices share the samples."""
    for index in itertools.count(start):
        yield samples[index % len(samples)]
