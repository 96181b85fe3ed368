"""One simulated device: agent, link and flash, telemetry from a series, and optionally a fault.

It restarts like a real device: everything except its flash and its journal is created again. Nothing is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from broker_edge.artifacts.keys import Trust
from broker_edge.artifacts.manifest import Artifact
from broker_edge.device.acked import Acked, payload_hash
from broker_edge.device.agent import Agent
from broker_edge.device.calls import Call, Handler
from broker_edge.device.commands import handlers
from broker_edge.device.faults import Fault
from broker_edge.device.flash import Firmware, MemoryFlash
from broker_edge.device.fleet_log import FleetLog
from broker_edge.device.guard import Guard, GuardSettings, MemoryHeld
from broker_edge.device.journal import Journal
from broker_edge.device.key_feed import KeyFeed
from broker_edge.device.link import Link, LinkError, PublishRefused
from broker_edge.device.ota import UpdatePolicy, Updater
from broker_edge.device.wording import Said
from broker_edge.mqtt_address import WS_PATH, MqttAddress
from broker_edge.tls import NO_TLS, TlsReferences

Sample = Mapping[str, float | int | str]
"""One line of the series: named values that go into the payload unchanged."""

# How long a device is offline when its power is cut.
_AWAY_S = 0.5


@dataclass(frozen=True, slots=True)
class Updates:
    """Settings for simulated devices that accept updates. `pace_s` is the time that a slow device takes for a chunk.
    With `guards`, each device has one of them, in turn by its number."""

    trust: Trust = field(default_factory=lambda: Trust(()))
    allow_unsigned: bool = False
    firmware: str = "1.0.0"
    pace_s: float = 0.5
    window: int = 4
    guards: tuple[GuardSettings, ...] = ()


@dataclass(frozen=True, slots=True)
class DeviceSettings:
    """With `telemetry` off a device only executes commands. Without `updates` it accepts no firmware."""

    host: str
    port: int
    interval_s: float
    inflight_max: int
    connect_timeout_s: float
    version: int
    telemetry: bool = True
    away_s: float = 15.0
    updates: Updates | None = None
    user: str | None = None
    password: str | None = None
    scheme: str = "mqtt"
    path: str = WS_PATH
    tls: TlsReferences = NO_TLS
    others: tuple[MqttAddress, ...] = ()


class SimulatedDevice:
    """Use from one event loop: `open`, `run` as a task, `close`."""

    def __init__(
        self,
        device_id: str,
        settings: DeviceSettings,
        samples: Iterator[Sample],
        acked: Acked,
        *,
        log: FleetLog | None = None,
        fault: Fault | None = None,
    ) -> None:
        self.device_id = device_id
        self.interval_s = settings.interval_s
        self.published = 0
        self.refused = 0
        self.fault = fault
        self._settings, self._samples, self._acked = settings, samples, acked
        self._log = log or FleetLog()
        self._seq = 0
        self._journal = Journal()
        self._flash = _Flash(self)
        self._held = MemoryHeld()
        self._spent = False
        self._opened = asyncio.Event()
        self._starting: asyncio.Task[None] | None = None
        self._updater: Updater | None = None
        self._assemble()

    def _assemble(self) -> None:
        settings = self._settings
        updates = settings.updates
        self.link = Link(
            self.device_id,
            host=settings.host,
            port=settings.port,
            subscribe=f"devices/{self.device_id}/actions",
            on_message=self._received,
            inflight_max=settings.inflight_max,
            version=settings.version,
            receive_maximum=updates.window if updates is not None else None,
            user=settings.user,
            password=settings.password,
            scheme=settings.scheme,
            path=settings.path,
            tls=settings.tls,
            others=settings.others,
        )
        keys = None
        if updates is not None and updates.guards:
            keys = KeyFeed(Guard(_in_turn(updates.guards, self.device_id), self._held), self.link)
        if updates is not None and not self._is("refuses"):
            pace_s = updates.pace_s if self._is("slow") else 0.0
            policy = UpdatePolicy(updates.trust, allow_unsigned=updates.allow_unsigned, pace_s=pace_s)
            self._updater = Updater(
                self._flash, self.link, policy=policy, platform=self, before=self._before, keys=keys
            )
            self._updater.start()
        self.agent = Agent(
            self.device_id,
            handlers=self._handlers(),
            journal=self._journal,
            updater=self._updater,
            on_restart=lambda: self.restart("to start other firmware", away_s=0.0),
            on_told=self._told,
            keys=keys,
        )
        self.agent.attach(self.link)

    async def open(self) -> None:
        """Connect and send pending reports. An offline device does nothing; one with the fault `away` disconnects and
        returns."""
        if self._is("offline"):
            self._log.add(self.device_id, "fault", fault=str(self.fault))
        else:
            await self._open()
            if self._is("away"):
                self._log.add(self.device_id, "fault", fault=str(self.fault))
                self.restart("it disconnected", away_s=self._settings.away_s)

    async def _open(self) -> None:
        await self.link.open(timeout_s=self._settings.connect_timeout_s)
        version = None if self._updater is None else self._updater.version
        self._log.add(self.device_id, "online", boot=self.agent.boot, version=version)
        if self._settings.updates is not None and not self._is("silent"):
            await self.agent.announce()
        await self.agent.catch_up()
        self._opened.set()

    async def _open_at_last(self) -> None:
        """Like `open`, but retries for as long as the broker is unreachable."""
        while True:
            try:
                await self._open()
                return
            except LinkError:
                if self.link.closing:
                    return

    async def reboot(self) -> None:
        """Reconnects, and gives the agent a new boot id."""
        self.agent.begin_boot()
        await self.link.drop()

    def restart(self, why: str, *, away_s: float = _AWAY_S) -> None:
        """Cut the device off now, and restart it after `away_s` with the contents of its flash."""
        if self._starting is None or self._starting.done():
            self._begin_anew(why, away_s)

    def leave(self) -> None:
        """Disconnects until `move`: the device is away, or its power is off. It keeps its flash and its journal."""
        self._begin_anew("it left", math.inf)

    def move(self, host: str, port: int) -> None:
        """Restarts at this broker, which may be the one where the device was."""
        self._settings = replace(self._settings, host=host, port=port)
        self._begin_anew("it moved", _AWAY_S)

    def _begin_anew(self, why: str, away_s: float) -> None:
        if self._starting is not None:
            self._starting.cancel()
        self._opened.clear()
        self._starting = asyncio.ensure_future(self._start_anew(why, away_s))

    async def _start_anew(self, why: str, away_s: float) -> None:
        self._log.add(self.device_id, "restart", why=why)
        self.link.abort()
        await self.agent.close()
        await asyncio.sleep(away_s)
        self._assemble()
        await self._open_at_last()

    async def close(self, *, drain_s: float) -> int:
        """Disconnect. Returns the number of unacknowledged publishes."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        await self.agent.close()
        return await self.link.close(drain_s=drain_s)

    # -- telemetry ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Publish a sample every `interval_s` until cancelled. Samples delayed by a slow broker are not caught up."""
        if not self._settings.telemetry or self._is("offline"):
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + self.interval_s * (zlib.crc32(self.device_id.encode()) % 1000) / 1000
        topic = f"devices/{self.device_id}/telemetry"
        for sample in self._samples:
            await asyncio.sleep(max(0.0, due - loop.time()))
            await self._opened.wait()
            with contextlib.suppress(LinkError):  # The device was just cut off.
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

    # -- faults, and entries in the fleet's log ----------------------------------------------------------------------

    def _is(self, fault: str) -> bool:
        return self.fault is not None and self.fault.name == fault

    async def _received(self, topic: str, payload: bytes) -> None:
        with contextlib.suppress(ValueError, RecursionError, AttributeError):
            body = json.loads(payload)
            named = {name: body.get(name) for name in ("type", "action_id", "attempt")}
            self._log.add(self.device_id, "ignored" if self._is("silent") else "command", **named)
        if not self._is("silent"):
            await self.agent.received(topic, payload)

    def _handlers(self) -> Mapping[str, Handler]:
        if self._is("refuses"):
            return {}
        return {name: self._begins(handler) for name, handler in handlers(self).items()}

    def _begins(self, handler: Handler) -> Handler:
        async def begin(call: Call) -> Any:
            self._log.add(self.device_id, "begun", action_id=call.action_id, attempt=call.attempt)
            if self._is("fails"):
                raise RuntimeError("this device was told to fail")
            if self._is("stuck"):
                await asyncio.Event().wait()
            return await handler(call)

        return begin

    def _told(self, said: Said) -> None:
        named = {name: getattr(said, name) for name in ("action_id", "attempt", "state", "step", "version")}
        self._log.add(self.device_id, "told", **named)

    async def _before(self, step: str) -> None:
        self._log.add(self.device_id, "step", step=step)
        if self.fault is None or self._spent:
            return
        if self.fault.name == "crash" and self.fault.step == step:
            await self._cut()
        elif self.fault.name == "reflashed" and step == "verify":
            self._flash, self._journal, self._held = _Flash(self), Journal(), MemoryHeld()
            await self._cut()

    async def _cut(self) -> None:
        self._spent = True
        self._log.add(self.device_id, "fault", fault=str(self.fault))
        self.restart("its power was cut")
        await asyncio.Event().wait()  # Nothing of this run continues.

    def cut_at_chunk(self, done: int, of: int) -> None:
        """An interrupted device is cut off after a third and after two thirds of an image."""
        if self._is("interrupted") and done in (max(1, of // 3), max(2, 2 * of // 3)):
            self._log.add(self.device_id, "fault", fault=str(self.fault), chunk=done)
            self.restart("its power was cut")

    def note_resume(self, chunk: int) -> None:
        self._log.add(self.device_id, "resume", chunk=chunk)

    @property
    def firmware(self) -> Firmware:
        """The factory firmware."""
        updates = self._settings.updates
        return Firmware("firmware", "1.0.0" if updates is None else updates.firmware)

    async def may_install(self) -> None:
        return

    async def check(self, firmware: Firmware) -> None:
        if self._is("fails"):
            raise RuntimeError("this device was told to fail")


def _in_turn(guards: Sequence[GuardSettings], device_id: str) -> GuardSettings:
    number = device_id.rpartition("-")[2]
    return guards[(int(number) - 1 if number.isdecimal() else 0) % len(guards)]


class _Flash(MemoryFlash):
    """The flash of a simulated device: reports each chunk to the device, and may damage the image."""

    def __init__(self, device: SimulatedDevice) -> None:
        super().__init__(firmware=device.firmware)
        self._device = device

    def resume(self, artifact: Artifact) -> int:
        chunk = super().resume(artifact)
        self._device.note_resume(chunk)
        return chunk

    def append(self, artifact: Artifact, chunk: bytes) -> None:
        super().append(artifact, chunk)
        self._device.cut_at_chunk(super().resume(artifact), len(artifact.chunks))

    def sha256(self, artifact: Artifact) -> str:
        found = super().sha256(artifact)
        is_damaged = self._device.fault is not None and self._device.fault.name == "wrong-checksum"
        return found[::-1] if is_damaged else found
