"""What a device does with records that arrive one right after the other, before it could begin anything."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from support.device_line import Line

from broker_edge.device import Agent
from broker_edge.device.calls import Call


def device() -> tuple[Agent, Line, list[str]]:
    carried_out: list[str] = []

    async def echo(call: Call) -> Any:
        carried_out.append(call.action_id)
        return {}

    agent, line = Agent("d1", handlers={"echo": echo}), Line()
    agent.attach(line)  # type: ignore[arg-type]
    return agent, line, carried_out


def record(type_: str) -> bytes:
    return json.dumps({"action_id": "a1", "attempt": 1, "type": type_, "name": "echo", "params": {}}).encode()


def test_a_cancel_right_behind_its_command_is_answered_and_nothing_is_carried_out() -> None:
    async def scenario() -> None:
        agent, line, carried_out = device()
        await agent.received(agent.topic, record("command"))
        await agent.received(agent.topic, record("cancel"))
        await line.until("CANCELLED")
        assert ([one["state"] for one in line.said], carried_out) == (["CANCELLED"], [])
        await agent.received(agent.topic, record("command"))
        await agent.close()
        assert carried_out == []

    asyncio.run(scenario())


def test_a_command_that_arrives_before_the_device_has_caught_up_is_carried_out() -> None:
    async def scenario() -> None:
        agent, line, carried_out = device()
        await agent.received(agent.topic, record("command"))
        await agent.catch_up()
        await line.until("SUCCEEDED")
        assert ([one["state"] for one in line.said], carried_out) == (["ACCEPTED", "IN_PROGRESS", "SUCCEEDED"], ["a1"])
        await agent.close()

    asyncio.run(scenario())
