"""A link without a broker: keeps what a device reports, and shows it the key lists that a broker would retain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from broker_edge.device.link import Delivery
from broker_edge.policy import KEYS_TOPIC

WAIT_S = 30


class Line:
    """`chain` is the retained record of key lists; None: there is none."""

    def __init__(self, chain: bytes | None = None) -> None:
        self.said: list[dict[str, Any]] = []
        self.chain = chain
        self.asked = 0
        self.qos: set[int] = set()
        self._take: Callable[[Delivery], None] | None = None

    async def publish(self, topic: str, payload: bytes, **more: Any) -> None:
        self.said.append(json.loads(payload))

    async def listen(self, topic: str, take: Callable[[Delivery], None], *, qos: int = 1) -> None:
        assert topic == KEYS_TOPIC
        self.asked += 1
        self.qos.add(qos)
        self._take = take
        if self.chain is not None:
            self.show(self.chain)

    def show(self, chain: bytes) -> None:
        """Delivers a record of key lists to the device that listens."""
        assert self._take is not None
        self._take(Delivery(KEYS_TOPIC, chain))

    async def until(self, state: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while not any(one["state"] == state for one in self.said):
                await asyncio.sleep(0)
