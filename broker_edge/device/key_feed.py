"""Brings new key lists from the broker to the guard of a device: `artifacts/root`, retained.

What a key list must be is decided by the guard. Deliveries have QoS 0: they need no place in the window of the link, so
a key list arrives although commands that wait for it fill that window, and the broker sends it before commands that do
not fit the window.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from broker_edge.artifacts.manifest import Manifest
from broker_edge.device.guard import CommandRefused, Guard
from broker_edge.device.link import Delivery, Link, LinkClosed, LinkError
from broker_edge.policy import DIRECTOR, KEYS_TOPIC, PolicyError

log = logging.getLogger(__name__)

ANSWER_S = 10.0
"""How long to wait for the retained record after the subscription was granted."""
ASK_EVERY_S = 60.0
"""Minimum interval between two questions: whoever can write the topic of commands could cause one with each record."""


class KeyFeed:
    """The key lists of one connection. Use from one event loop; `start` once the link is open, `close` at the end."""

    def __init__(
        self, guard: Guard, link: Link, *, answer_s: float = ANSWER_S, ask_every_s: float = ASK_EVERY_S
    ) -> None:
        self.guard, self._link = guard, link
        self._answer_s, self._ask_every_s = answer_s, ask_every_s
        self._came = asyncio.Event()
        self._asking: asyncio.Task[None] | None = None
        self._ask_from = 0.0

    async def check(self, manifest: Manifest) -> None:
        """As `Guard.check`, by the newest key list of the broker."""
        await self.settled()
        try:
            self.guard.check(manifest)
        except PolicyError:
            if not await self.newer():
                raise
            self.guard.check(manifest)

    async def command(self, payload: bytes, device_id: str) -> bytes:
        """As `Guard.command`, by the newest key list of the broker: one that the device has missed may revoke the key
        of a command that waited for it. A key that it does not know may be in a newer key list."""
        if self.guard.root.role(DIRECTOR) is not None:
            await self.settled()
        try:
            return self.guard.command(payload, device_id)
        except CommandRefused as error:
            if not error.may_be_newer or not await self.newer():
                raise
            return self.guard.command(payload, device_id)

    async def settled(self) -> None:
        """Returns when the broker has shown its key lists, or had the time to."""
        if self._asking is None:
            self._ask()
        if self._asking is not None:
            await asyncio.shield(self._asking)

    async def newer(self) -> bool:
        """Asks again, unless it has asked a moment ago. Returns whether the guard has another key list than before."""
        before = self.guard.root.version
        if self._asking is None or (self._asking.done() and asyncio.get_running_loop().time() >= self._ask_from):
            self._ask()
        await self.settled()
        return self.guard.root.version != before

    def start(self) -> None:
        if self._asking is None:
            self._ask()

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)

    def _ask(self) -> None:
        self._came.clear()
        self._ask_from = asyncio.get_running_loop().time() + self._ask_every_s
        self._asking = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        try:
            # The subscription stays, so that later key lists arrive by themselves.
            await self._link.listen(KEYS_TOPIC, self._take, qos=0)
        except LinkClosed:
            return
        except LinkError as error:
            log.warning("a device gets no key lists and keeps version %d: %s", self.guard.root.version, error)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._answer_s):
                await self._came.wait()

    def _take(self, delivery: Delivery) -> None:
        if delivery.payload:
            self.guard.learn(delivery.payload)
            self._came.set()
