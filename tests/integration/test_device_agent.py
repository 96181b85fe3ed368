"""The device side against a real broker (mosquitto): commands, cancels, acknowledgements, reconnects, the fleet."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from support.mosquitto import Mosquitto
from support.ports import free_port

from broker_edge.device import Agent, Fleet, FleetSettings, Journal, Link, LinkError, PublishRefused, RunningFleet
from broker_edge.device.calls import Handler
from broker_edge.device.commands import handlers
from broker_edge.device.fleet import device_ids, payload_hash

SERIES = [{"temperature_c": value / 10} for value in range(100)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path) as broker:
        yield broker


class Backend:
    """The other side: publishes commands and collects the devices' reports."""

    def __init__(self, port: int, *filters: str) -> None:
        self.messages: list[tuple[str, bytes]] = []
        self._subscribed = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, client_id="backend")
        self._client.on_message = lambda client, data, message: self.messages.append((message.topic, message.payload))
        self._client.on_subscribe = lambda *args: self._loop.call_soon_threadsafe(self._subscribed.set)
        self._client.connect("127.0.0.1", port)
        self._client.subscribe([(filter_, 1) for filter_ in filters or ("devices/+/status",)])
        self._client.loop_start()

    async def ready(self) -> Backend:
        async with asyncio.timeout(60):
            await self._subscribed.wait()
        return self

    def command(self, device_id: str, **fields: Any) -> None:
        body = {"action_id": "a1", "attempt": 1, "type": "command", "name": "echo", "params": {}, **fields}
        self.raw(device_id, json.dumps(body).encode())

    def raw(self, device_id: str, payload: bytes) -> None:
        self._client.publish(f"devices/{device_id}/actions", payload, qos=1)

    def statuses(self, device_id: str) -> list[dict[str, Any]]:
        topic = f"devices/{device_id}/status"
        return [json.loads(payload) for name, payload in list(self.messages) if name == topic]

    def states(self, device_id: str) -> list[str]:
        return [status["state"] for status in self.statuses(device_id)]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


async def until(condition: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        await asyncio.sleep(0.01)


@asynccontextmanager
async def device(
    broker: Mosquitto, table: dict[str, Handler] | None = None, *, journal: Journal | None = None, version: int = 5
) -> AsyncIterator[tuple[Agent, Link, Backend]]:
    backend = await Backend(broker.port).ready()
    agent = Agent("d1", handlers=table if table is not None else dict(handlers(_Device())), journal=journal)
    link = Link(
        "d1", host="127.0.0.1", port=broker.port, subscribe=agent.topic, on_message=agent.received, version=version
    )
    agent.attach(link)
    await link.open()
    await agent.catch_up()
    try:
        yield agent, link, backend
    finally:
        await agent.close()
        await link.close(drain_s=0)
        backend.close()


class _Device:
    interval_s = 1.0

    async def reboot(self) -> None:
        raise AssertionError("not asked for here")


def run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 240))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [4, 5])
def test_command_is_reported_step_by_step_with_its_result(broker: Mosquitto, version: int) -> None:
    async def scenario() -> None:
        async with device(broker, version=version) as (agent, _, backend):
            backend.command("d1", params={"text": "hi"})
            await until(lambda: "SUCCEEDED" in backend.states("d1"), "success")
            assert backend.states("d1") == ["ACCEPTED", "IN_PROGRESS", "SUCCEEDED"]
            statuses = backend.statuses("d1")
            assert statuses[-1]["result"] == {"text": "hi"}
            assert [status["seq"] for status in statuses] == [1, 2, 3]
            assert {status["boot"] for status in statuses} == {agent.boot}

    run(scenario)


def test_repeated_command_is_carried_out_once(broker: Mosquitto) -> None:
    calls: list[str] = []

    async def count(call: Any) -> None:
        calls.append(call.action_id)

    async def scenario() -> None:
        async with device(broker, {"count": count}) as (_, _, backend):
            for action_id in ("a1", "a1", "a2"):
                backend.command("d1", name="count", action_id=action_id)
            await until(lambda: backend.states("d1").count("SUCCEEDED") == 2, "both actions")
            backend.command("d1", name="count", attempt=2)
            await until(lambda: backend.states("d1").count("SUCCEEDED") == 3, "the second attempt")
            assert backend.statuses("d1")[-1]["message"] == "done by attempt 1"
            assert calls == ["a1", "a2"]

    run(scenario)


@pytest.mark.parametrize("withdrawn", [True, False])
def test_a_device_that_was_away_for_three_attempts_does_the_work_once(broker: Mosquitto, withdrawn: bool) -> None:
    """Two attempts timed out meanwhile; their cancels are behind them, or in another log."""
    calls: list[int] = []

    async def reboot(call: Any) -> None:
        calls.append(call.attempt)

    async def scenario() -> None:
        async with device(broker, {"reboot": reboot}):
            pass  # Its session exists from now on.
        backend = await Backend(broker.port, "devices/d1/actions").ready()
        sent = [(1, "command"), (1, "cancel"), (2, "command"), (2, "cancel"), (3, "command")]
        queue = [one for one in sent if withdrawn or one[1] == "command"]
        for attempt, type_ in queue:
            backend.command("d1", name="reboot", type=type_, attempt=attempt)
        await until(lambda: len(backend.messages) == len(queue), "the queue")
        backend.close()
        async with device(broker, {"reboot": reboot}) as (_, _, backend):
            ended = {"attempt": 3, "state": "SUCCEEDED"}
            await until(lambda: any(ended.items() <= one.items() for one in backend.statuses("d1")), "the last attempt")
            assert len(calls) == 1

    run(scenario)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "dance"}, "does not know the command 'dance'; it knows echo"),
        ({"type": "firmware"}, "does not know the type 'firmware'"),
        ({"deadline_us": 1}, "deadline had passed"),
        ({"name": "set-interval", "params": {"seconds": "soon"}}, "needs the param seconds, a number"),
    ],
)
def test_command_that_cannot_be_done_is_rejected_in_words(broker: Mosquitto, fields: dict[str, Any], said: str) -> None:
    async def scenario() -> None:
        async with device(broker) as (_, _, backend):
            backend.command("d1", **fields)
            await until(lambda: "REJECTED" in backend.states("d1"), "the rejection")
            assert said in backend.statuses("d1")[-1]["message"]

    run(scenario)


def test_handler_that_raises_is_reported_as_failed(broker: Mosquitto) -> None:
    async def broken(call: Any) -> None:
        raise OSError("no such valve")

    async def scenario() -> None:
        async with device(broker, {"valve": broken}) as (_, _, backend):
            backend.command("d1", name="valve")
            await until(lambda: "FAILED" in backend.states("d1"), "the failure")
            assert backend.statuses("d1")[-1]["message"] == "OSError: no such valve"

    run(scenario)


def test_record_that_is_no_command_does_not_stop_the_device(broker: Mosquitto) -> None:
    async def scenario() -> None:
        async with device(broker) as (_, _, backend):
            for payload in (b"\xff\x00", b"[]", b"[" * 100_000, b"{}"):
                backend.raw("d1", payload)
            for wrong in ({"action_id": 7}, {"attempt": True}, {"params": 3}, {"deadline_us": "soon"}, {"name": []}):
                backend.command("d1", **wrong)
            backend.command("d1")
            await until(lambda: "SUCCEEDED" in backend.states("d1"), "the command behind the rubbish")

    run(scenario)


def test_cancel_stops_what_runs_and_leaves_what_has_finished(broker: Mosquitto) -> None:
    async def forever(call: Any) -> None:
        await asyncio.Event().wait()

    async def echo(call: Any) -> str:
        return "done"

    async def scenario() -> None:
        async with device(broker, {"wait": forever, "echo": echo}) as (_, _, backend):
            backend.command("d1", name="wait")
            await until(lambda: "IN_PROGRESS" in backend.states("d1"), "the start")
            backend.command("d1", type="cancel")
            await until(lambda: "CANCELLED" in backend.states("d1"), "the cancel")
            backend.command("d1", action_id="a2")
            await until(lambda: "SUCCEEDED" in backend.states("d1"), "success")
            backend.command("d1", action_id="a2", type="cancel")
            await until(lambda: backend.states("d1").count("SUCCEEDED") == 2, "the final state reported again")
            assert backend.states("d1").count("CANCELLED") == 1

    run(scenario)


def test_cancel_that_comes_first_keeps_the_command_from_running(broker: Mosquitto) -> None:
    async def scenario() -> None:
        async with device(broker) as (_, _, backend):
            backend.command("d1", type="cancel")
            backend.command("d1")
            backend.command("d1", action_id="a2")
            await until(lambda: "SUCCEEDED" in backend.states("d1"), "the other action")
            assert [s["state"] for s in backend.statuses("d1") if s["action_id"] == "a1"] == ["CANCELLED"]

    run(scenario)


def test_commands_for_a_device_that_is_away_wait_in_its_session(broker: Mosquitto) -> None:
    async def scenario() -> None:
        async with device(broker):
            pass
        backend = await Backend(broker.port).ready()
        backend.command("d1")
        backend.close()
        async with device(broker) as (_, _, backend):
            await until(lambda: "SUCCEEDED" in backend.states("d1"), "the command from before")

    run(scenario)


def test_restarted_device_tells_what_it_could_not_and_fails_what_it_had_begun(
    broker: Mosquitto, tmp_path: Path
) -> None:
    path = tmp_path / "journal.json"

    async def forever(call: Any) -> None:
        await asyncio.Event().wait()

    async def scenario() -> None:
        async with device(broker, {"wait": forever}, journal=Journal(path)) as (_, _, backend):
            backend.command("d1", name="wait")
            await until(lambda: "IN_PROGRESS" in backend.states("d1"), "the start")
        async with device(broker, {"wait": forever}, journal=Journal(path)) as (_, _, backend):
            await until(lambda: "FAILED" in backend.states("d1"), "the report of the interruption")
            assert "restarted while the command ran" in backend.statuses("d1")[-1]["message"]
        assert list(Journal(path).untold()) == []

    run(scenario)


def test_publishes_survive_a_broker_that_loses_its_sessions(broker: Mosquitto) -> None:
    """Contains its negative control: without resending, publishes in flight at the kill would never be acknowledged."""

    async def scenario() -> None:
        link = Link("d9", host="127.0.0.1", port=broker.port, inflight_max=200, reconnect_delay_s=0.1)
        await link.open()
        futures = [await link.send("devices/d9/telemetry", str(number).encode()) for number in range(100)]
        broker.kill()
        await until(lambda: not link.connected, "the loss of the connection")
        later = asyncio.gather(*(link.publish("devices/d9/telemetry", b"later") for _ in range(10)))
        broker.start()
        await asyncio.wait_for(asyncio.gather(*futures, later), 60)
        assert link.unacked == 0
        assert await link.close() == 0

    run(scenario)


def test_each_acknowledgement_belongs_to_its_own_publish_and_refusals_are_no_acknowledgements() -> None:
    """A minimal broker that acknowledges out of order and refuses every fourth packet id."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held: list[bytes] = []
        try:
            while True:
                head = await reader.readexactly(1)
                length = (await reader.readexactly(1))[0]
                if length & 0x80:
                    length = (length & 0x7F) + 128 * (await reader.readexactly(1))[0]
                body = await reader.readexactly(length)
                if head[0] >> 4 == 1:
                    writer.write(bytes([0x20, 3, 0, 0, 0]))
                if head[0] >> 4 == 3:
                    topic_bytes = int.from_bytes(body[:2], "big")
                    mid = body[2 + topic_bytes : 4 + topic_bytes]
                    code = 0x97 if mid[1] % 4 == 0 else 0
                    held.append(bytes([0x40, 4]) + mid + bytes([code, 0]))
                    if len(held) == 8:
                        writer.write(b"".join(reversed(held)))
        except asyncio.IncompleteReadError:
            writer.close()

    async def scenario() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        link = Link("d1", host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        await link.open()
        futures = [await link.send("t", str(number).encode()) for number in range(8)]
        results = await asyncio.gather(*futures, return_exceptions=True)
        refused = [isinstance(result, PublishRefused) for result in results]
        assert refused == [False, False, False, True] * 2
        await link.close()
        server.close()

    run(scenario)


def test_publishes_without_acknowledgement_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(100)
            writer.write(bytes([0x20, 3, 0, 0, 0]))
            await reader.read()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        link = Link("d1", host="127.0.0.1", port=server.sockets[0].getsockname()[1], inflight_max=3)
        await link.open()
        for _ in range(3):
            await link.send("t", b"x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(link.send("t", b"x"), 0.2)
        assert await link.close(drain_s=0) == 3
        server.close()

    run(scenario)


def test_missing_broker_is_one_sentence() -> None:
    async def scenario() -> None:
        port = free_port()
        link = Link("d1", host="127.0.0.1", port=port)
        with pytest.raises(LinkError, match=f"device d1 could not connect to 127.0.0.1:{port} within 0.3 s"):
            await link.open(timeout_s=0.3)

    run(scenario)


def test_acked_list_of_the_fleet_is_what_arrived(broker: Mosquitto, tmp_path: Path) -> None:
    path = tmp_path / "acked.csv"
    settings = FleetSettings(count=20, port=broker.port, interval_s=0.05, acked_path=path)

    async def scenario() -> None:
        backend = await Backend(broker.port, "devices/+/telemetry").ready()
        fleet = Fleet(settings, SERIES)
        await fleet.start()
        await until(lambda: len(fleet.acked) >= 200, "200 acknowledgements")
        assert await fleet.stop() == 0
        counts = fleet.counts()
        assert counts.published == counts.acked == len(fleet.acked)
        await until(lambda: len(backend.messages) >= counts.acked, "all messages")
        arrived = {(topic.split("/")[1], json.loads(p)["seq"], payload_hash(p)) for topic, p in backend.messages}
        rows = fleet.acked.to_table().to_pylist()
        assert {(row["device_id"], row["seq"], row["payload_hash"]) for row in rows} == arrived
        assert len(path.read_text().splitlines()) == counts.acked
        starts = {json.loads(p)["temperature_c"] for _, p in backend.messages if json.loads(p)["seq"] == 1}
        assert len(starts) == 20, "each device begins at another point of the series"
        backend.close()

    run(scenario)


def test_fleet_device_reboots_with_another_boot_id_and_goes_on(broker: Mosquitto) -> None:
    async def scenario() -> None:
        backend = await Backend(broker.port).ready()
        fleet = Fleet(FleetSettings(count=2, port=broker.port, interval_s=0.05), SERIES)
        await fleet.start()
        id_ = device_ids(fleet.settings)[0]
        backend.command(id_, name="reboot")
        await until(lambda: "SUCCEEDED" in backend.states(id_), "the reboot")
        statuses = backend.statuses(id_)
        assert len({status["boot"] for status in statuses}) == 2
        assert statuses[-1]["seq"] == 1
        backend.command(id_, name="set-interval", params={"seconds": 0.02}, action_id="a2")
        await until(lambda: backend.states(id_).count("SUCCEEDED") == 2, "the new interval")
        assert fleet.devices[0].interval_s == 0.02
        await fleet.stop()
        backend.close()

    run(scenario)


def test_five_hundred_devices_run_on_one_thread(broker: Mosquitto) -> None:
    settings = FleetSettings(count=500, port=broker.port, interval_s=0.5, prefix="many")
    with RunningFleet(settings, SERIES) as fleet:
        deadline = time.monotonic() + 120
        while len(fleet.acked) < 1_000:
            assert time.monotonic() < deadline, fleet.counts()
            time.sleep(0.05)
        assert fleet.counts().connected == 500
    assert fleet.unacked_at_stop == 0


def test_payload_hash_is_the_head_of_sha256() -> None:
    expected = int.from_bytes(hashlib.sha256(b"x").digest()[:8], "big", signed=True)
    assert payload_hash(b"x") == expected


def test_refused_subscription_is_one_sentence() -> None:
    async def scenario() -> None:
        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1_000)
            writer.write(bytes([0x20, 3, 0, 0, 0]))
            subscribe = await reader.read(1_000)
            writer.write(bytes([0x90, 4]) + subscribe[2:4] + bytes([0, 0x87]))
            await reader.read()

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        link = Link("d1", host="127.0.0.1", port=port, subscribe="devices/d1/actions")
        with pytest.raises(LinkError, match="refused device d1 the subscription to devices/d1/actions: code 0x87"):
            await link.open(timeout_s=60)
        await link.close(drain_s=0)
        server.close()

    run(scenario)
