"""Debian's mosquitto_pub and mosquitto_sub, unchanged, talk to the broker in both protocol versions."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest
from support.programs import program, run

from broker_edge import Client
from broker_edge.torture.process import BrokerProcess

VERSIONS = ("mqttv311", "mqttv5")
StartSub = Callable[..., "subprocess.Popen[str]"]


def pub(broker: BrokerProcess, version: str, *arguments: str, stdin: str = "") -> None:
    host, port = broker.mqtt
    command = [program("mosquitto_pub", "mosquitto-clients"), "-h", host, "-p", str(port), "-V", version]
    done = run(*command, *arguments, stdin=stdin)
    assert (done.code, done.err) == (0, "")


@pytest.fixture
def start_sub(broker: BrokerProcess) -> Iterator[StartSub]:
    """Starts mosquitto_sub and returns once its subscription is acknowledged."""
    started: list[subprocess.Popen[str]] = []

    def start(version: str, *arguments: str) -> subprocess.Popen[str]:
        host, port = broker.mqtt
        command = [program("mosquitto_sub", "mosquitto-clients"), "-h", host, "-p", str(port), "-V", version]
        # With -d it reports the SUBACK on stdout; the messages follow on the same stream.
        process = subprocess.Popen(
            [program("stdbuf", "coreutils"), "-oL", *command, "-d", "-W", "30", *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Subscribed"):
                return process
        raise AssertionError("mosquitto_sub ended without a SUBACK")

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def printed(process: subprocess.Popen[str], count: int) -> list[str]:
    """The next lines that are messages, without mosquitto_sub's own output."""
    assert process.stdout is not None
    found: list[str] = []
    for line in process.stdout:
        if not line.startswith(("Client ", "Subscribed")):
            found.append(line.rstrip("\n"))
        if len(found) == count:
            return found
    raise AssertionError(f"mosquitto_sub ended after {found}")


@pytest.mark.parametrize("sub_version", VERSIONS)
@pytest.mark.parametrize("pub_version", VERSIONS)
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_a_message_goes_from_one_to_the_other(
    broker: BrokerProcess, start_sub: StartSub, pub_version: str, sub_version: str, qos: str
) -> None:
    sub = start_sub(sub_version, "-q", qos, "-v", "-t", "devices/+/telemetry")
    pub(broker, pub_version, "-q", qos, "-t", "devices/d1/telemetry", "-m", '{"t": 21.5}')
    assert printed(sub, 1) == ['devices/d1/telemetry {"t": 21.5}']


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("qos", ["1", "2"])
def test_many_lines_arrive_in_order_and_are_in_the_log(
    broker: BrokerProcess, client: Client, start_sub: StartSub, version: str, qos: str
) -> None:
    lines = [str(i) for i in range(1_000)]
    sub = start_sub(version, "-q", qos, "-c", "-i", "lasting", "-x", "60", "-t", "devices/d1/telemetry")
    pub(broker, version, "-q", qos, "-t", "devices/d1/telemetry", "-l", stdin="\n".join(lines) + "\n")
    assert printed(sub, 1_000) == lines
    (topic,) = client.topics("devices/d1/telemetry")
    table = client.fetch(topic.partition, topic.first, topic.next, filters=topic.topic).to_table()
    assert [value.decode() for value in table.column("value").to_pylist()] == lines


@pytest.mark.parametrize("version", VERSIONS)
def test_a_retained_message_reaches_who_comes_later(broker: BrokerProcess, start_sub: StartSub, version: str) -> None:
    pub(broker, version, "-q", "1", "-r", "-t", "site/name", "-m", "north")
    assert printed(start_sub(version, "-t", "site/#", "-v"), 1) == ["site/name north"]


def test_a_position_in_the_filter_replays_for_mqtt_3(broker: BrokerProcess, start_sub: StartSub) -> None:
    for text in ("one", "two"):
        pub(broker, "mqttv311", "-q", "1", "-t", "devices/d1/telemetry", "-m", text)
    assert printed(start_sub("mqttv311", "-q", "1", "-t", "$at/earliest/devices/#"), 2) == ["one", "two"]
    with_places = printed(start_sub("mqttv311", "-q", "1", "-v", "-t", "$at-offset/earliest/devices/#"), 2)
    for line, text in zip(with_places, ("one", "two"), strict=True):
        topic, payload = line.split(" ", 1)
        at, place, rest = topic.split("/", 2)
        assert (at, rest, payload) == ("$at", "devices/d1/telemetry", text)
        assert place.startswith("telemetry-")
