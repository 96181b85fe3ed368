"""Real devices between two real brokers, with kills of the engine and of a broker: each command is carried out once."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.action_fold import fold_differences
from support.programs import StartBroker
from support.rollout_world import StatusPump, fixed_ports

from actions.fleet_desk import FleetDesk, Order
from broker_edge import Client
from broker_edge.device import Agent, Journal, Link
from broker_edge.device.calls import Call
from broker_edge.torture.process import BrokerProcess

WAIT_S = 30.0
MOVING, STAYING = ("m1", "m2", "m3"), ("s1", "s2")
IDS = (*MOVING, *STAYING)


class World:
    """Two brokers, one engine that is killed at random moments, and devices that keep their journals."""

    def __init__(self, folder: Path, roof: BrokerProcess, yard: BrokerProcess) -> None:
        self.roof, self.yard = roof, yard
        self.root = str(folder / "tables")
        self.desk = FleetDesk(self.root, create=True)
        self.desk.describe_devices({id_: {"a": "b"} for id_ in IDS})
        self.servers = [address(broker) for broker in (roof, yard)]
        self.pump = StatusPump(self.root, *self.servers)
        self.journals = {id_: Journal() for id_ in IDS}
        self.carried_out: Counter[tuple[str, str]] = Counter()
        self.seed = random.randrange(10**6)
        self._random = random.Random(self.seed)
        self._errors = folder / "engine.stderr.txt"
        self._config = folder / "pipelines.yaml"
        self._config.write_text(json.dumps({"actions": {"root": self.root, "tick_s": 0.3, "poll_s": 0.1}}))
        self.engine: subprocess.Popen[bytes] | None = None

    def start_engine(self) -> None:
        named = [word for server in self.servers for word in ("--server", server)]
        command = [sys.executable, "-m", "pipelines.actions", "--config", str(self._config), *named]
        with self._errors.open("ab") as errors:
            self.engine = subprocess.Popen(command, stderr=errors)

    def kill_engine(self) -> None:
        if self.engine is not None:
            self.engine.kill()
            self.engine.wait()

    async def kill_engine_soon(self) -> None:
        await asyncio.sleep(self._random.uniform(0, 0.5))
        self.kill_engine()
        self.start_engine()

    @asynccontextmanager
    async def at(self, broker: BrokerProcess, *ids: str):  # type: ignore[no-untyped-def]
        """The devices, connected to this broker. Their sessions stay there when they leave."""
        links, agents = [], []
        for id_ in ids:
            agent = Agent(id_, handlers={"echo": self._echo}, journal=self.journals[id_])
            host, port = broker.mqtt
            link = Link(id_, host=host, port=port, subscribe=agent.topic, on_message=agent.received)
            agent.attach(link)
            await link.open()
            await agent.catch_up()
            await agent.announce()
            links.append(link)
            agents.append(agent)
        try:
            yield
        finally:
            for agent, link in zip(agents, links, strict=True):
                await agent.close()
                await link.close()

    async def _echo(self, call: Call) -> Any:
        self.carried_out[call.device_id, call.action_id] += 1
        return dict(call.params)

    def targets(self, action_id: str) -> dict[str, dict[str, Any]]:
        return {row["device_id"]: row for row in self.desk.targets(action_id)}

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, (
                f"seed {self.seed}: waited for {what}\n{self._errors.read_text()[-2000:]}"
            )
            await asyncio.sleep(0.05)


def address(broker: BrokerProcess) -> str:
    return "grpc://{}:{}".format(*broker.flight)


def keys(broker: BrokerProcess) -> Counter[str]:
    """The records for devices in the log of this broker, as `device/type`."""
    found: Counter[str] = Counter()
    with Client(address(broker)) as client:
        for number, bounds in client.offsets(filters="devices/+/actions").partitions.items():
            stream = client.fetch(number, bounds.log_start, bounds.high_watermark, filters="devices/+/actions")
            for value in stream.to_table().column("value").to_pylist():
                body = json.loads(value)
                found[f"{body['device_id']}/{body['type']}"] += 1
    return found


@pytest.fixture
def world(tmp_path: Path, start_broker: StartBroker) -> Iterator[World]:
    roof, yard = (start_broker(name, settings=fixed_ports()) for name in ("roof", "yard"))
    world = World(tmp_path, roof, yard)
    world.pump.restart()
    world.start_engine()
    try:
        yield world
    finally:
        world.pump.stop()
        world.kill_engine()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(2 * WAIT_S):
            await scenario()

    asyncio.run(limited())


@pytest.mark.timeout(600)
def test_devices_that_move_carry_each_command_out_once_through_kills(world: World) -> None:
    async def scenario() -> None:
        async with world.at(world.roof, *IDS):
            pass
        world.desk.order(Order(name="echo", device_ids=IDS), action_id="a1")
        await world.kill_engine_soon()
        await world.until(
            "all queued at the roof", lambda: [row["state"] for row in world.targets("a1").values()] == ["QUEUED"] * 5
        )
        world.roof.kill()
        async with world.at(world.yard, *MOVING):
            await world.kill_engine_soon()
            await world.until(
                "the moved devices to succeed through the yard, while the roof is away",
                lambda: all(world.targets("a1")[id_]["state"] == "SUCCEEDED" for id_ in MOVING),
            )
        assert all(world.targets("a1")[id_]["state"] == "QUEUED" for id_ in STAYING)
        assert keys(world.yard) == {f"{id_}/command": 1 for id_ in MOVING}
        world.roof.start()
        async with world.at(world.roof, *STAYING):
            await world.until("the end", lambda: (world.desk.action("a1") or {})["phase"] == "ENDED")
        await world.until("the withdrawals", lambda: all(world.targets("a1")[id_]["copies"] is None for id_ in MOVING))
        async with world.at(world.roof, *MOVING):
            # Each of them gets its old copy and the cancel behind it, and answers the cancel with its final state.
            await world.until("the answers", lambda: finals(world) == dict.fromkeys(MOVING, 2))
        assert keys(world.roof) == {
            **{f"{id_}/command": 1 for id_ in IDS},
            **{f"{id_}/cancel": 1 for id_ in MOVING},
        }
        assert world.carried_out == {(id_, "a1"): 1 for id_ in IDS}, f"seed {world.seed}"
        assert {row["state"] for row in world.targets("a1").values()} == {"SUCCEEDED"}
        assert fold_differences(world.root) == []

    run(scenario)


def finals(world: World) -> dict[str, int]:
    """How often each moving device has reported success, in the logs of both brokers."""
    found: Counter[str] = Counter()
    for broker in (world.roof, world.yard):
        with Client(address(broker)) as client:
            for number, bounds in client.offsets(filters="devices/+/status").partitions.items():
                stream = client.fetch(number, bounds.log_start, bounds.high_watermark, filters="devices/+/status")
                for row in stream.to_table().to_pylist():
                    id_ = row["topic"].split("/")[1]
                    found[id_] += id_ in MOVING and json.loads(row["value"])["state"] == "SUCCEEDED"
    return {id_: found[id_] for id_ in MOVING}


async def moved(world: World) -> None:
    """m1 leaves the roof, where its command is queued, and carries it out at the yard."""
    async with world.at(world.roof, "m1"):
        pass
    world.desk.order(Order(name="echo", device_ids=["m1"]), action_id="a1")
    await world.until("the queued command", lambda: world.targets("a1").get("m1", {}).get("state") == "QUEUED")
    async with world.at(world.yard, "m1"):
        await world.until("the command at the yard", lambda: keys(world.yard) == {"m1/command": 1})
        world.pump.stop()
        await world.until("the execution", lambda: world.carried_out["m1", "a1"] == 1)


@pytest.mark.timeout(600)
def test_a_device_without_its_journal_is_stopped_by_the_withdrawal(world: World) -> None:
    async def scenario() -> None:
        await moved(world)
        world.pump.restart()
        await world.until("success", lambda: world.targets("a1")["m1"]["state"] == "SUCCEEDED")
        await world.until("the withdrawal", lambda: keys(world.roof) == {"m1/command": 1, "m1/cancel": 1})
        world.journals["m1"] = Journal()
        async with world.at(world.roof, "m1"):
            journal = world.journals["m1"]
            await world.until("the cancel", lambda: getattr(journal.get("a1", 1), "state", None) == "CANCELLED")
        assert world.carried_out == {("m1", "a1"): 1}
        assert world.targets("a1")["m1"]["state"] == "SUCCEEDED"

    run(scenario)


@pytest.mark.timeout(600)
def test_control_without_journal_and_withdrawal_a_command_is_carried_out_twice(world: World) -> None:
    """Negative control of both: the engine has not heard of the success when the device is back."""

    async def scenario() -> None:
        await moved(world)
        world.journals["m1"] = Journal()
        async with world.at(world.roof, "m1"):
            await world.until("the second execution", lambda: world.carried_out["m1", "a1"] == 2)

    run(scenario)
