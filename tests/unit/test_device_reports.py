"""The statuses of a device: what it says about itself, and when."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from broker_edge.device.journal import Journal
from broker_edge.device.reports import Reports
from broker_edge.device.wording import OwnWords


class RecordingLink:
    def __init__(self) -> None:
        self.published: list[tuple[str, dict[str, Any]]] = []

    async def publish(self, topic: str, payload: bytes) -> None:
        self.published.append((topic, json.loads(payload)))


def statuses(**about: str | None) -> list[dict[str, Any]]:
    """What a device publishes at its start and when a command begins."""
    link = RecordingLink()
    reports = Reports("d1", Journal(), OwnWords(), version=lambda: "1.0.0", on_told=None, **about)
    reports.attach(link)  # type: ignore[arg-type]

    async def run() -> None:
        await reports.online()
        await reports.say(("a1", 1), "IN_PROGRESS")

    asyncio.run(run())
    assert {topic for topic, _ in link.published} == {"devices/d1/status"}
    return [body for _, body in link.published]


def test_device_says_its_product_and_hardware_once_per_start() -> None:
    online, begun = statuses(product="pump", hardware="rev-b")
    assert (online["state"], online["product"], online["hardware"]) == ("ONLINE", "pump", "rev-b")
    assert (begun["state"], begun["version"]) == ("IN_PROGRESS", "1.0.0")
    assert not {"product", "hardware"} & begun.keys()


def test_device_without_a_policy_leaves_product_and_hardware_out() -> None:
    online, _ = statuses()
    assert not {"product", "hardware"} & online.keys()
