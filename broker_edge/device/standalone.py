"""One device as its own process, with flash, journal and key list in a folder: what `headwater devices run` does.

When the device restarts, `run` returns True, and the caller begins again as a new process. The process may be killed at
any moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_edge.device.agent import Agent
from broker_edge.device.commands import handlers
from broker_edge.device.flash import FileFlash, Firmware
from broker_edge.device.guard import FileHeld, Guard, GuardSettings
from broker_edge.device.journal import Journal
from broker_edge.device.key_feed import KeyFeed
from broker_edge.device.link import Link
from broker_edge.device.ota import UpdatePolicy, Updater
from broker_edge.device.wording import Said, Words
from broker_edge.errors import ConfigError
from broker_edge.mqtt_address import WS_PATH, MqttAddress
from broker_edge.tls import NO_TLS, TlsReferences


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    """`firmware` is the initial firmware if `folder` is new. At most `window` chunks are in flight. With `guard`, the
    device checks commands and policies of artifacts, and `policy` counts for nothing."""

    device_id: str
    folder: Path
    host: str
    port: int
    policy: UpdatePolicy
    firmware: str = "1.0.0"
    words: Words | None = None
    window: int = 4
    user: str | None = None
    password: str | None = None
    scheme: str = "mqtt"
    path: str = WS_PATH
    tls: TlsReferences = NO_TLS
    others: tuple[MqttAddress, ...] = ()
    guard: GuardSettings | None = None
    connect_timeout_s: float = 30.0


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Raises ConfigError if another process runs this device: each would carry out the commands of the other, and
    write its journal over that of the other. The lock ends with the process, however that ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigError(f"cannot use the folder {folder} of the device: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise ConfigError(f"another process runs the device in {folder}: stop it, or give another folder") from error
    finally:
        os.close(descriptor)


async def run(settings: StandaloneSettings, *, on_told: Callable[[Said], None] | None = None) -> bool:
    """Runs until cancelled, or returns True when the device must restart. Raises LinkError if it cannot connect, and
    ConfigError if another process runs the device in this folder."""
    with _alone_in(settings.folder):
        return await _run(settings, on_told)


async def _run(settings: StandaloneSettings, on_told: Callable[[Said], None] | None) -> bool:
    again = asyncio.Event()
    device = _Controls(again)

    async def received(topic: str, payload: bytes) -> None:
        await agent.received(topic, payload)

    link = Link(
        settings.device_id,
        host=settings.host,
        port=settings.port,
        subscribe=f"devices/{settings.device_id}/actions",
        on_message=received,
        receive_maximum=settings.window,
        user=settings.user,
        password=settings.password,
        scheme=settings.scheme,
        path=settings.path,
        tls=settings.tls,
        others=settings.others,
    )
    flash = FileFlash(settings.folder, firmware=Firmware("firmware", settings.firmware))
    keys = None
    if settings.guard is not None:
        keys = KeyFeed(Guard(settings.guard, FileHeld(settings.folder / "policy.json")), link)
    updater = Updater(flash, link, policy=settings.policy, keys=keys)
    updater.start()
    agent = Agent(
        settings.device_id,
        handlers=handlers(device),
        journal=Journal(settings.folder / "journal.json"),
        updater=updater,
        words=settings.words,
        on_restart=again.set,
        on_told=on_told,
        keys=keys,
    )
    agent.attach(link)
    try:
        await link.open(timeout_s=settings.connect_timeout_s)
        await agent.announce()
        await agent.catch_up()
        await again.wait()
    finally:
        with contextlib.suppress(asyncio.CancelledError):
            await agent.close()
            await link.close(drain_s=1.0)
    return True


class _Controls:
    """What the commands of a simulated device can change on this device."""

    def __init__(self, again: asyncio.Event) -> None:
        self.interval_s = 1.0
        self._again = again

    async def reboot(self) -> Any:
        self._again.set()
