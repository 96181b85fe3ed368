"""The commands of a simulated device: echo, set-interval, sleep, reboot. Real devices bring their own table."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from broker_edge.device.calls import Call, Handler, Rejected

INTERVAL_S_MIN = 0.001
INTERVAL_S_MAX = 3600.0
SLEEP_S_MAX = 600.0


class Controls(Protocol):
    """What the commands can change on the device."""

    interval_s: float

    async def reboot(self) -> None: ...


def handlers(device: Controls) -> Mapping[str, Handler]:
    """The table of handlers for a device."""

    async def echo(call: Call) -> Any:
        return dict(call.params)

    async def set_interval(call: Call) -> Any:
        before = device.interval_s
        device.interval_s = _number(call, "seconds", INTERVAL_S_MIN, INTERVAL_S_MAX)
        return {"before": before, "after": device.interval_s}

    async def sleep(call: Call) -> Any:
        seconds = _number(call, "seconds", 0, SLEEP_S_MAX)
        for part in range(1, 5):
            await asyncio.sleep(seconds / 4)
            await call.progress(part * 25)
        return {"slept_s": seconds}

    async def reboot(call: Call) -> Any:
        await device.reboot()
        return {"rebooted": True}

    table: dict[str, Callable[[Call], Awaitable[Any]]] = {
        "echo": echo,
        "set-interval": set_interval,
        "sleep": sleep,
        "reboot": reboot,
    }
    return table


def _number(call: Call, name: str, low: float, high: float) -> float:
    value = call.params.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise Rejected(f"{call.name} needs the param {name}, a number from {low:g} to {high:g}, not {value!r}")
    return float(value)
