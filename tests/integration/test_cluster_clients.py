"""The Flight client and a device at a real cluster: both go on at the new leader when the old one is killed."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.following import (
    FILTER,
    TOPIC,
    WAIT_S,
    Publisher,
    Subscriber,
    address_of,
    in_log,
    numbers_in_log,
    publishing,
    until,
    without_repeats,
)
from support.programs import headwaterd, program, start_headwater

import broker_edge
from broker_edge import Client
from broker_edge.device.link import Link
from broker_edge.local_cluster import LocalCluster, Node
from broker_edge.mqtt_address import parse_mqtt

_PACKAGES = Path(broker_edge.__file__).resolve().parents[1]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    yield from _started(tmp_path, command=[headwaterd()])


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[LocalCluster]:
    """Its nodes know each other by certificates."""
    yield from _started(tmp_path, command=[headwaterd()], tls=True)


def _started(tmp_path: Path, **how: Any) -> Iterator[LocalCluster]:
    program("etcd", "etcd-server")
    with LocalCluster(tmp_path / "cluster", **how) as made:
        made.start()
        yield made


def _leader(cluster: LocalCluster) -> str:
    """The node that leads, once somebody does."""

    def look() -> str | None:
        found = cluster.status()
        return found.leader if found.leader in found.reports else None

    return until("a leader", look)


def _kill_leader(cluster: LocalCluster) -> None:
    cluster.nodes[_leader(cluster)].process.kill()


def test_a_stream_goes_on_at_the_new_leader_at_the_same_offset(cluster: LocalCluster) -> None:
    nodes = list(cluster.nodes.values())
    publisher = Publisher(nodes)
    publisher.publish(30)
    with Client([node.server for node in nodes], timeout_s=WAIT_S) as client:
        bounds = client.offsets(filters=TOPIC).partitions
        (partition,) = [number for number, at in bounds.items() if at.high_watermark > at.log_start]
        with client.tail(partition, 0, filters=TOPIC, batch_rows=10) as stream:
            offsets, numbers = [], []

            def read_until(count: int) -> None:
                while len(set(numbers)) < count:
                    batch = next(stream)
                    offsets.extend(batch.column("offset").to_pylist())
                    numbers.extend(int(value) for value in batch.column("value").to_pylist())

            read_until(20)
            _kill_leader(cluster)
            publisher.publish(30)
            read_until(60)
    publisher.leave()
    assert without_repeats(numbers) == list(range(60))
    assert offsets == sorted(set(offsets)), "each offset came once"


def test_a_device_goes_on_at_the_new_leader(cluster: LocalCluster) -> None:
    first, *others = [parse_mqtt(node.mqtt) for node in cluster.nodes.values()]

    async def scenario() -> None:
        link = Link("d1", host=first.host, port=first.port, others=others, reconnect_delay_s=0.1)
        async with asyncio.timeout(WAIT_S):
            await link.open(timeout_s=WAIT_S)
            for number in range(20):
                await link.publish(TOPIC, str(number).encode())
            await asyncio.to_thread(_kill_leader, cluster)
            for number in range(20, 40):
                await link.publish(TOPIC, str(number).encode())
        await link.close()

    asyncio.run(scenario())
    assert without_repeats(numbers_in_log(cluster.nodes[_leader(cluster)])) == list(range(40))


def test_a_simulated_fleet_goes_on_at_the_new_leader(cluster: LocalCluster, tmp_path: Path) -> None:
    acked = tmp_path / "acked.csv"
    first, *others = [node.mqtt for node in cluster.nodes.values()]
    _leader(cluster)
    words = [word for other in others for word in ("--node", other)]
    fleet = start_headwater(
        *("devices", "simulate", "4", "--interval", "0.05", "--mqtt", first, *words),
        *("--acked", str(acked)),
    )

    def at_least(count: int) -> bool | None:
        if fleet.poll() is not None:
            raise RuntimeError(f"the fleet has ended: {fleet.communicate()}")
        return (acked.exists() and len(acked.read_text().splitlines()) > count) or None

    try:
        until("acknowledgements", lambda: at_least(40))
        _kill_leader(cluster)
        before = len(acked.read_text().splitlines())
        until("acknowledgements of the new leader", lambda: at_least(before + 80))
    finally:
        fleet.send_signal(signal.SIGINT)
        _, err = fleet.communicate(timeout=WAIT_S)
    assert fleet.returncode in (0, 130), err
    confirmed = {tuple(line.split(",")[:2]) for line in acked.read_text().splitlines() if line[-1:].isdigit()}
    assert confirmed <= _published(cluster.nodes[_leader(cluster)])


def _published(node: Node) -> set[tuple[str, ...]]:
    """Device and sequence number of each telemetry record in the log of the leader."""
    found = set()
    with Client(node.server) as client:
        for number, at in client.offsets(filters="devices/+/telemetry").partitions.items():
            if at.high_watermark > at.log_start:
                table = client.fetch(number, at.log_start, at.high_watermark, filters="devices/+/telemetry").to_table()
                topics, values = table.column("topic").to_pylist(), table.column("value").to_pylist()
                for topic, value in zip(topics, values, strict=True):
                    found.add((topic.split("/")[1], str(json.loads(value)["seq"])))
    return found


def test_sessions_see_no_hole_and_nothing_twice_at_qos_2(cluster: LocalCluster) -> None:
    nodes = list(cluster.nodes.values())
    publishers = [Publisher(nodes, topic=f"devices/d{at}/telemetry", qos=qos) for at, qos in enumerate((1, 2))]

    def acknowledged() -> int:
        return sum(one.acknowledged for one in publishers)

    def wait_for_more(count: int) -> None:
        end = acknowledged() + count
        until("acknowledgements", lambda: acknowledged() > end or None)

    with Subscriber(nodes, FILTER) as subscriber:
        with publishing(publishers):
            for _ in range(2):
                wait_for_more(200)
                until("a whole cluster", lambda: cluster.status().is_whole or None)
                killed = _leader(cluster)
                cluster.nodes[killed].process.kill()
                wait_for_more(50)
                cluster.nodes[killed].process.start()
        wanted = {one.topic: list(range(one.acknowledged)) for one in publishers}
        until("all", lambda: all(set(subscriber.numbers[of]) >= set(of_it) for of, of_it in wanted.items()) or None)
    once = next(one.topic for one in publishers if one.qos == 2)
    logged = [number for topic, number in in_log(address_of(nodes)).values() if topic == once]
    assert {topic: without_repeats(numbers) for topic, numbers in subscriber.numbers.items()} == wanted
    assert subscriber.numbers[once] == sorted(logged) == wanted[once]
    assert not subscriber.has_lost_session


def test_a_node_that_is_stopped_gives_the_log_away_and_comes_back(cluster: LocalCluster) -> None:
    publisher = Publisher(list(cluster.nodes.values()))
    publisher.publish(10)
    stopped = _leader(cluster)
    assert cluster.nodes[stopped].process.stop() == 0
    publisher.publish(10)
    cluster.nodes[stopped].process.start()
    until("a whole cluster", lambda: cluster.status().is_whole or None)
    publisher.leave()
    assert without_repeats(numbers_in_log(cluster.nodes[_leader(cluster)])) == list(range(20))


def test_without_a_program_this_python_starts_the_brokers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADWATERD", "PYTHONPATH"):
        monkeypatch.delenv(name, raising=False)
    # A variable that would be a setting of each broker.
    monkeypatch.setenv("HEADWATER_CLUSTER__NAME", "other")
    for cluster in _started(tmp_path):
        publisher = Publisher(list(cluster.nodes.values()))
        publisher.publish(10)
        publisher.leave()
        assert without_repeats(numbers_in_log(cluster.nodes[_leader(cluster)])) == list(range(10))
        for node in cluster.nodes.values():
            given = Path(f"/proc/{node.process.pid}/environ").read_text().split("\0")
            assert f"PYTHONPATH={_PACKAGES}" in given, "it finds our packages, wherever this Python has them from"


def test_nodes_with_certificates_make_a_cluster(secured: LocalCluster) -> None:
    until("a whole cluster", lambda: secured.status().is_whole or None)
    publisher = Publisher(list(secured.nodes.values()))
    publisher.publish(10)
    publisher.leave()
    assert without_repeats(numbers_in_log(secured.nodes[_leader(secured)])) == list(range(10))


def test_a_reload_says_which_files_want_a_restart(secured: LocalCluster) -> None:
    certificate = secured.root / "tls" / "n1.pem"
    certificate.write_bytes(certificate.read_bytes() + b"\n")
    secured.nodes["n1"].process.send_signal(signal.SIGHUP)
    told = f"cluster.tls.cert: {certificate} has changed; the broker uses it after a restart"
    until("a warning", lambda: told in secured.log_file("n1").read_text() or None)
