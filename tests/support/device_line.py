"""A link without a broker: keeps what a device reports."""

from __future__ import annotations

import asyncio
import json
from typing import Any

WAIT_S = 30


class Line:
    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []

    async def publish(self, topic: str, payload: bytes, **more: Any) -> None:
        self.said.append(json.loads(payload))

    async def until(self, state: str) -> None:
        async with asyncio.timeout(WAIT_S):
            while not any(one["state"] == state for one in self.said):
                await asyncio.sleep(0)
