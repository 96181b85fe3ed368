"""The `headwater` command against the real broker, as processes: published messages are received, tailed and listed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest
from support.programs import Ended, headwater, start_headwater

from broker_edge.torture.process import BrokerProcess


class Commands:
    """The command with the addresses of a broker in its environment."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.mqtt = "{}:{}".format(*broker.mqtt)
        self.server = "grpc://{}:{}".format(*broker.flight)

    def __call__(self, *arguments: str, stdin: str = "") -> Ended:
        environment = {"HEADWATER_MQTT": self.mqtt, "HEADWATER_SERVER": self.server}
        return headwater(*arguments, stdin=stdin, environment=environment)


@pytest.fixture
def hw(broker: BrokerProcess) -> Commands:
    return Commands(broker)


@pytest.fixture
def subscriber(hw: Commands) -> Iterator[subprocess.Popen[str]]:
    """`headwater sub` that waits for 3 messages and already has the retained one, so it is subscribed."""
    assert hw("pub", "devices/d1/name", "d one", "--retain").code == 0
    process = start_headwater("sub", "devices/d1/#", "--count", "3", "--timeout", "120", "--json", "--mqtt", hw.mqtt)
    assert process.stdout is not None
    assert '"retain": true' in process.stdout.readline()
    yield process
    process.kill()
    process.communicate()


def test_a_client_that_the_broker_disconnects_says_why(
    broker: BrokerProcess, hw: Commands, subscriber: subprocess.Popen[str]
) -> None:
    admin = ("--admin", "http://{}:{}".format(*broker.admin))
    (client,) = hw("clients", "list", "--connected", "--json", *admin).documents[0]["clients"]
    assert hw("clients", "kick", client["client_id"], *admin).code == 0
    _, err = subscriber.communicate(timeout=60)
    assert subscriber.returncode == 3
    assert err.rstrip().endswith("while waiting for messages: administrative action"), err


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_what_is_published_is_listed_tailed_and_replayed(hw: Commands, protocol: str) -> None:
    topic = "devices/d1/telemetry"
    done = hw("pub", topic, "--file", "-", "--lines", "--protocol", protocol, stdin="one\ntwo\n")
    assert (done.code, done.out) == (0, "")
    (listed,) = hw("topics", "--json").documents[0]["topics"]
    assert (listed["topic"], listed["next"] - listed["first"]) == (topic, 2)
    tailed = hw("tail", "devices/+/telemetry", "--from", "earliest", "--no-follow", "--json")
    assert [document["value"] for document in tailed.documents] == ["one", "two"]
    replayed = hw("sub", "devices/#", "--from", "earliest", "--count", "2", "--json", "--protocol", protocol)
    assert replayed.code == 0
    places = [(document["partition"], document["offset"]) for document in replayed.documents]
    assert places == [(document["name"], document["offset"]) for document in tailed.documents]
    again = hw("sub", "devices/#", "--from", "{}:{}".format(*places[1]), "--count", "1", "--protocol", protocol)
    assert again.lines == [f"{places[1][0]}:{places[1][1]}\t{topic}\ttwo"]


def test_a_subscriber_gets_what_comes(hw: Commands, subscriber: subprocess.Popen[str]) -> None:
    for text in ("one", "two"):
        assert hw("pub", "devices/d1/telemetry", text).code == 0
    out, _ = subscriber.communicate(timeout=30)
    assert subscriber.returncode == 0
    assert [line.partition('"value": ')[2][:5] for line in out.splitlines()] == ['"one"', '"two"']


def test_ack_names_the_place_of_each_message(hw: Commands) -> None:
    done = hw("pub", "devices/d1/telemetry", "x", "--count", "3", "--ack", "--json")
    assert done.code == 0
    offsets = [document["offset"] for document in done.documents]
    assert offsets == [0, 1, 2]
    assert {document["durability"] for document in done.documents} == {"synced"}


def test_offsets_show_the_partitions(hw: Commands) -> None:
    hw("pub", "devices/d1/telemetry", "x")
    (document,) = hw("offsets", "devices/+/telemetry", "--json").documents
    assert sum(row["high_watermark"] for row in document["partitions"]) == 1


def test_a_subscriber_that_waits_in_vain_is_timed_out(hw: Commands) -> None:
    done = hw("sub", "nothing/here", "--count", "1", "--timeout", "0.5")
    assert (done.code, done.out) == (124, "")
    assert "0 of 1 messages" in done.err


def test_an_interrupted_subscriber_ends_with_130(hw: Commands, subscriber: subprocess.Popen[str]) -> None:
    subscriber.send_signal(signal.SIGINT)
    _, errors = subscriber.communicate(timeout=30)
    assert subscriber.returncode == 130
    assert "Traceback" not in errors


def test_a_refused_topic_or_offset_is_one_sentence(hw: Commands) -> None:
    for arguments in (
        ("pub", "$receipts", "x"),
        ("sub", "devices/#", "--from", "telemetry-0:999999"),
        ("tail", "--from", "telemetry-0:999999"),
    ):
        done = hw(*arguments)
        assert (done.code, done.out) == (4, ""), done
        assert done.err.startswith("headwater: ")
        assert done.err.count("\n") == 1


def test_a_broker_that_goes_away_ends_the_subscriber_with_3(
    broker: BrokerProcess, hw: Commands, subscriber: subprocess.Popen[str]
) -> None:
    broker.kill()
    _, errors = subscriber.communicate(timeout=30)
    assert subscriber.returncode == 3
    assert hw.mqtt in errors
