"""For tests of updates: a device in a folder that gets orders and is cut off, and its statuses."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broker_edge import Client, Row
from broker_edge.artifacts import SigningKey
from broker_edge.device import (
    Agent,
    FileFlash,
    FileHeld,
    Firmware,
    Flash,
    Guard,
    GuardSettings,
    Journal,
    KeyFeed,
    Link,
    UpdatePolicy,
    Updater,
)
from broker_edge.device.wording import Words
from broker_edge.policy import sign_command
from broker_edge.torture.process import BrokerProcess

OLD = Firmware("pump", "1.0")
CHUNK = 16 * 1024
CHUNKS = 12
KEY = SigningKey.generate()


class Cut(BaseException):
    """The power is cut."""


@dataclass
class Device:
    """A device in `folder`, which restarts as often as necessary."""

    broker: BrokerProcess
    folder: Path
    device_id: str = "d1"
    words: Words | None = None
    hooks: list[Callable[[str], None]] = field(default_factory=list)
    works: Callable[[Firmware], None] = lambda firmware: None
    fit: asyncio.Event = field(default_factory=asyncio.Event)
    again: asyncio.Event = field(default_factory=asyncio.Event)
    steps: list[str] = field(default_factory=list)
    restarts: int = 0
    stall_s: float = 5.0
    version: int = 5
    wrap: Callable[[FileFlash], Flash] = lambda flash: flash
    guard: GuardSettings | None = None

    async def may_install(self) -> None:
        await self.fit.wait()

    async def check(self, firmware: Firmware) -> None:
        with self.powered():
            self.works(firmware)

    async def before(self, step: str) -> None:
        self.steps.append(step)
        with self.powered():
            for hook in self.hooks:
                hook(step)

    @contextmanager
    def powered(self) -> Iterator[None]:
        try:
            yield
        except Cut:
            self.again.set()
            raise

    async def run(self, done: Callable[[], Awaitable[bool]]) -> None:
        """Runs until `done`; each start has only the contents of the folder."""
        while not await done():
            self.again.clear()
            await self.live(done)
            self.restarts += self.again.is_set()

    async def live(self, done: Callable[[], Awaitable[bool]]) -> None:
        """Runs from a start to a restart."""
        host, port = self.broker.mqtt
        topic = f"devices/{self.device_id}/actions"
        link = Link(
            self.device_id,
            host=host,
            port=port,
            subscribe=topic,
            on_message=lambda topic, payload: agent.received(topic, payload),
            receive_maximum=4,
            reconnect_delay_s=0.05,
            version=self.version,
        )
        flash = self.wrap(FileFlash(self.folder / "flash", firmware=OLD))
        policy = UpdatePolicy(KEY.trust(), stall_s=self.stall_s)
        keys = None
        if self.guard is not None:
            keys = KeyFeed(Guard(self.guard, FileHeld(self.folder / "policy.json")), link, answer_s=0.5)
        updater = Updater(flash, link, policy=policy, platform=self, before=self.before, keys=keys)
        updater.start()
        agent = Agent(
            self.device_id,
            handlers={},
            journal=Journal(self.folder / "journal.json"),
            updater=updater,
            words=self.words,
            on_restart=self.again.set,
            keys=keys,
        )
        agent.attach(link)
        try:
            await link.open(timeout_s=20)
            await agent.announce()
            await agent.catch_up()
            while not self.again.is_set() and not await done():
                await asyncio.sleep(0.01)
        finally:
            link.abort()
            await agent.close()


class Statuses:
    """The statuses of the devices, read from the log."""

    def __init__(self, client: Client, topic: str = "devices/+/status") -> None:
        self._client, self._topic = client, topic

    def all(self) -> list[dict[str, Any]]:
        found = []
        for topic in self._client.topics(self._topic):
            table = self._client.fetch(topic.partition, topic.first, topic.next, filters=topic.topic).to_table()
            found += [json.loads(value) for value in table.column("value").to_pylist()]
        return found

    def last(self) -> dict[str, Any]:
        said = [one for one in self.all() if one["state"] != "ONLINE"]
        return said[-1] if said else {"state": ""}

    async def ended(self) -> bool:
        return self.last()["state"] in ("SUCCEEDED", "FAILED", "REJECTED", "CANCELLED")


def order(client: Client, device_id: str = "d1", *, key: SigningKey | None = None, **fields: Any) -> None:
    """Orders pump 2.0, or what `fields` say; with `key` the order is signed."""
    body = {
        "action_id": "a1",
        "device_id": device_id,
        "attempt": 1,
        "type": "ota",
        "name": "install",
        "artifact": {"name": "pump", "version": "2.0"},
        "target_version": "2.0",
        "mode": "forced",
        **fields,
    }
    payload = json.dumps(body).encode()
    if key is not None:
        payload = sign_command(payload, key, expires_us=time.time_ns() // 1_000 + 3_600_000_000)
    client.produce([Row(f"devices/{device_id}/actions", payload)])


def run(test: Callable[[], Awaitable[None]], seconds: float = 240) -> None:
    asyncio.run(asyncio.wait_for(test(), seconds))  # type: ignore[arg-type]


def update(device: Device, client: Client, *, seconds: float = 240, **fields: Any) -> dict[str, Any]:
    """Gives one order and runs the device until the order ends."""
    statuses = Statuses(client)

    async def scenario() -> None:
        waiting = asyncio.ensure_future(device.run(statuses.ended))
        await until_known(client, device.device_id)
        order(client, device.device_id, **fields)
        await waiting

    run(scenario, seconds)
    return statuses.last()


async def until_known(client: Client, device_id: str) -> None:
    """Waits until the device has reported ONLINE, so that its session exists."""
    deadline = time.monotonic() + 60
    while not client.topics(f"devices/{device_id}/status"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def end_of(client: Client, device_id: str, action_id: str, attempt: int = 1) -> dict[str, Any] | None:
    """The final status of an attempt."""
    for one in Statuses(client, f"devices/{device_id}/status").all():
        is_it = (one.get("action_id"), one.get("attempt")) == (action_id, attempt)
        if is_it and one["state"] in ("SUCCEEDED", "FAILED", "REJECTED", "CANCELLED"):
            return one
    return None


def after(device: Device, client: Client, *, attempt: int = 1, **fields: Any) -> dict[str, Any]:
    """Gives a further order to a device and runs it until the end of that attempt."""

    async def ended() -> bool:
        return end_of(client, device.device_id, fields["action_id"], attempt) is not None

    async def scenario() -> None:
        waiting = asyncio.ensure_future(device.run(ended))
        await until_known(client, device.device_id)
        order(client, device.device_id, **fields)
        await waiting

    run(scenario)
    found = end_of(client, device.device_id, fields["action_id"], attempt)
    assert found is not None
    return found


def not_written(folder: Path) -> bool:
    """Whether the device has neither an image nor an update in progress."""
    return not list((folder / "flash").glob("*.part")) and FileFlash(folder / "flash", firmware=OLD).job() is None
