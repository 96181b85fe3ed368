"""Kill -9 of the engine and of the broker while commands are being sent: each device gets each command once."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from support.programs import StartBroker

from actions.fleet_desk import FleetDesk, Order
from broker_edge import Client, Row
from broker_edge.device import FleetSettings, RunningFleet
from broker_edge.torture.process import BrokerProcess
from sinks import tables
from sinks.rows import rows_of

DEVICES = 40
ACTIONS = 6
SERIES = [{"temperature_c": 20.5}]


@contextmanager
def engine(root: str, *brokers: BrokerProcess) -> Iterator[subprocess.Popen[bytes]]:
    named = [word for broker in brokers for word in ("--server", "grpc://{}:{}".format(*broker.flight))]
    command = [sys.executable, "-m", "pipelines.actions", "--root", root, *named]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


def commands(broker: BrokerProcess) -> list[dict[str, Any]]:
    with Client("grpc://{}:{}".format(*broker.flight)) as client:
        found = []
        for number, bounds in client.offsets(filters="devices/+/actions").partitions.items():
            stream = client.fetch(number, bounds.log_start, bounds.high_watermark, filters="devices/+/actions")
            found += [json.loads(value) for value in stream.to_table().column("value").to_pylist()]
        return found


def states(root: str) -> list[str]:
    table = DeltaTable(tables.uri_of(root, "action_targets")).to_pyarrow_table()
    return [row["state"] for row in rows_of(table)]


def until_all_queued(root: str, process: subprocess.Popen[bytes], actions: int = ACTIONS) -> None:
    deadline = time.monotonic() + 240
    while Counter(states(root)) != {"QUEUED": DEVICES * actions}:
        assert time.monotonic() < deadline, Counter(states(root))
        assert process.poll() is None, "the engine ended by itself"
        time.sleep(0.05)


@pytest.fixture
def root(tmp_path: Path) -> str:
    root = str(tmp_path / "tables")
    FleetDesk(root, create=True).describe_devices({f"device-{n:04}": {"a": "b"} for n in range(1, DEVICES + 1)})
    return root


def test_engine_killed_at_random_moments_sends_each_command_once(root: str, start_broker: StartBroker) -> None:
    """Half of the devices are at each of two brokers."""
    brokers = [start_broker(name) for name in ("roof", "yard")]
    half = DEVICES // 2
    for broker, condition in zip(brokers, ("<=", ">"), strict=True):
        with Client("grpc://{}:{}".format(*broker.flight)) as client:
            log_id = client.version().log_id
        devices = DeltaTable(tables.uri_of(root, "devices"))
        devices.update(updates={"log": f"'{log_id}'"}, predicate=f"device_id {condition} 'device-{half:04}'")
    seed = random.randrange(10**6)
    moments = random.Random(seed)
    desk = FleetDesk(root)
    for number in range(ACTIONS):
        desk.order(Order(name="echo", percentage=100), action_id=f"a{number}")
        with engine(root, *brokers) as process:
            before = DeltaTable(tables.uri_of(root, "action_targets")).version()
            deadline = time.monotonic() + 240
            # From the engine's first commit on, which is its claim, the kill may come at any step of its turn.
            while DeltaTable(tables.uri_of(root, "action_targets")).version() == before:
                assert time.monotonic() < deadline, f"seed {seed}: the engine did not start"
            time.sleep(moments.uniform(0, 0.4))
            process.kill()
    with engine(root, *brokers) as process:
        until_all_queued(root, process)
    found = [commands(broker) for broker in brokers]
    keys = Counter((command["action_id"], command["device_id"]) for some in found for command in some)
    assert len(keys) == DEVICES * ACTIONS, f"seed {seed}"
    assert set(keys.values()) == {1}, f"seed {seed}"
    assert [len({command["device_id"] for command in some}) for some in found] == [half, DEVICES - half]


def test_of_two_engines_started_at_once_one_goes_on_and_each_command_is_sent_once(
    root: str, start_broker: StartBroker
) -> None:
    broker = start_broker()
    desk = FleetDesk(root)
    for number in range(ACTIONS):
        desk.order(Order(name="echo", percentage=100), action_id=f"a{number}")
    with engine(root, broker) as one, engine(root, broker) as other:
        deadline, ordered = time.monotonic() + 240, ACTIONS
        while one.poll() is None and other.poll() is None:
            assert time.monotonic() < deadline, "no engine has noticed the other one"
            if Counter(states(root)) == {"QUEUED": DEVICES * ordered}:
                # The first one was done before the other one began. An engine notices it when it has to write.
                desk.order(Order(name="echo", percentage=100), action_id=f"a{ordered}")
                ordered += 1
            time.sleep(0.05)
        ended, running = (one, other) if one.poll() is not None else (other, one)
        assert ended.returncode == 1
        until_all_queued(root, running, ordered)
    keys = Counter((command["action_id"], command["device_id"]) for command in commands(broker))
    assert len(keys) == DEVICES * ordered
    assert set(keys.values()) == {1}
    for name, key in (("action_targets", ("action_id", "device_id")), ("action_state", ("action_id",))):
        rows = list(rows_of(DeltaTable(tables.uri_of(root, name)).to_pyarrow_table()))
        assert len({tuple(row[column] for column in key) for row in rows}) == len(rows), name


def test_broker_killed_under_the_engine_has_each_command_once_and_devices_carry_it_out_once(
    root: str, start_broker: StartBroker
) -> None:
    with RunningFleet(_fleet(broker := start_broker()), SERIES):
        pass  # From now on the broker keeps the sessions of the devices.
    desk = FleetDesk(root)
    for number in range(ACTIONS):
        desk.order(Order(name="echo", percentage=100), action_id=f"a{number}")
    with engine(root, broker) as process:
        deadline = time.monotonic() + 240
        while not commands(broker):
            assert time.monotonic() < deadline, "the engine published nothing"
        broker.kill()
        process.kill()
    broker.start()
    with engine(root, broker) as process:
        until_all_queued(root, process)
    keys = Counter((command["action_id"], command["device_id"]) for command in commands(broker))
    assert (len(keys), set(keys.values())) == (DEVICES * ACTIONS, {1})
    with RunningFleet(_fleet(broker), SERIES):
        succeeded = _finished(broker)
    assert (len(succeeded), set(succeeded.values())) == (DEVICES * ACTIONS, {1})


def _fleet(broker: BrokerProcess) -> FleetSettings:
    return FleetSettings(count=DEVICES, port=broker.mqtt[1], interval_s=60, connect_timeout_s=60)


def _finished(broker: BrokerProcess) -> Counter[tuple[str, str]]:
    """How often each device reported success of each action, once all of them have."""
    deadline = time.monotonic() + 240
    with Client("grpc://{}:{}".format(*broker.flight)) as client:
        while True:
            found: Counter[tuple[str, str]] = Counter()
            for number, bounds in client.offsets(filters="devices/+/status").partitions.items():
                stream = client.fetch(number, bounds.log_start, bounds.high_watermark, filters="devices/+/status")
                for row in stream.to_table().to_pylist():
                    body = json.loads(row["value"])
                    if body["state"] == "SUCCEEDED":
                        found[(body["action_id"], row["topic"])] += 1
            if len(found) >= DEVICES * ACTIONS:
                return found
            assert time.monotonic() < deadline, f"{len(found)} successes"
            time.sleep(0.1)


def test_control_a_log_that_forgets_keys_would_show_doubled_commands(root: str, broker: BrokerProcess) -> None:
    """Negative control of the counting: the same command under two keys counts twice."""
    body = json.dumps({"action_id": "a1", "device_id": "device-0001"}).encode()
    with Client("grpc://{}:{}".format(*broker.flight)) as client:
        topic = "devices/device-0001/actions"
        client.produce([Row(topic=topic, value=body, idempotency_key=key) for key in ("one", "two", "two")])
    assert Counter(command["device_id"] for command in commands(broker)) == {"device-0001": 2}
