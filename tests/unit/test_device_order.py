"""What a device does with records that arrive one right after the other, before it could begin anything."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.device_line import Line

from broker_edge.artifacts import Trust
from broker_edge.device import Agent, FileFlash, Firmware, UpdatePolicy, Updater
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


def test_no_record_has_the_type_of_what_the_device_goes_on_with_by_itself() -> None:
    """That skips the deadline, and the limit of commands at once."""

    async def scenario() -> None:
        agent, line, carried_out = device()
        await agent.received(agent.topic, record("again"))
        await agent.received(agent.topic, record("command"))
        await line.until("SUCCEEDED")
        await agent.close()
        assert ([one["state"] for one in line.said], carried_out) == (["ACCEPTED", "IN_PROGRESS", "SUCCEEDED"], ["a1"])

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


@pytest.mark.parametrize(
    ("name", "version"), [("pump", "#/+x"), ("../../x", "2"), ("a/b", "+"), ("\ud800", "2"), ("pump", "x" * 70_000)]
)
def test_an_order_that_names_no_topic_is_rejected_before_a_subscription_and_is_not_kept(
    tmp_path: Path, name: str, version: str
) -> None:
    """A broker closes the connection at a wrong filter: the device would come back with the same order, for ever."""

    async def scenario() -> None:
        line, flash = Line(), FileFlash(tmp_path, firmware=Firmware("pump", "1.0.0"))
        updater = Updater(flash, line, policy=UpdatePolicy(Trust(())))  # type: ignore[arg-type]
        agent = Agent("d1", handlers={}, updater=updater)
        agent.attach(line)  # type: ignore[arg-type]
        artifact = {"name": name, "version": version}
        order = {"action_id": "a1", "attempt": 1, "type": "ota", "name": "update", "artifact": artifact}
        await agent.received(agent.topic, json.dumps(order).encode())
        await line.until("REJECTED")
        assert "is not a valid" in line.said[-1]["message"]
        assert flash.job() is None
        await agent.close()

    asyncio.run(scenario())


def test_a_text_that_is_no_unicode_is_answered_with_a_question_mark() -> None:
    async def scenario() -> None:
        line = Line()

        async def fail(call: Call) -> Any:
            raise ValueError(f"there is no valve {call.params['valve']}")

        agent = Agent("d1", handlers={"open": fail})
        agent.attach(line)  # type: ignore[arg-type]
        body = {"action_id": "a1", "attempt": 1, "type": "command", "name": "open", "params": {"valve": "\ud800"}}
        await agent.received(agent.topic, json.dumps(body).encode())
        await line.until("FAILED")
        assert line.said[-1]["message"] == "ValueError: there is no valve ?"
        await agent.close()

    asyncio.run(scenario())
