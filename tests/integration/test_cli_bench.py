"""`headwater bench` against the real broker: its counts match the log, and it reports an unreachable broker."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.doc_reference import bench_usage
from support.programs import headwater

from broker_edge import Client
from broker_edge.torture.process import BrokerProcess

WAIT_S = 60.0


def bench(broker: BrokerProcess, *words: str) -> dict[str, object]:
    done = headwater("bench", *words, "--json", "--mqtt", "{}:{}".format(*broker.mqtt))
    assert done.code == 0, done
    (report,) = done.documents
    return report


@pytest.mark.parametrize("pace", ["--window=20", "--rate=4000"])
def test_what_was_published_is_in_the_log(broker: BrokerProcess, client: Client, pace: str) -> None:
    report = bench(broker, "pub", "-c", "5", "-n", "1000", "--topics", "2", "--qos", "1:4,2:1", pace)
    assert (report["sent"], report["acked"], report["refused"]) == (1000, 1000, 0)
    listed = [topic for topic in client.topics() if topic.topic.startswith("bench/")]
    assert len(listed) == 10


def test_the_time_of_messages_without_answers_counts(broker: BrokerProcess) -> None:
    # Longer than the two seconds after which silence ends a run of QoS 0.
    report = bench(broker, "pub", "-c", "2", "-d", "3", "--qos", "0", "--rate=1000")
    assert report["acked"] == 0
    assert 2.9 <= report["seconds"] <= WAIT_S  # type: ignore[operator]


def test_every_subscriber_gets_every_message(broker: BrokerProcess) -> None:
    report = bench(broker, "sub", "-c", "20", "-n", "50", "--size", "20000", "--protocol", "5")
    assert (report["delivered"], report["deliveries_missing"]) == (1000, 0)
    assert report["delivery_latency"]["count"] == 1000  # type: ignore[index]


def test_connections_are_counted(broker: BrokerProcess) -> None:
    assert bench(broker, "connect", "-c", "10", "-n", "200")["acked"] == 200


def test_clients_are_named_by_the_prefix() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WAIT_S)
        words = ("pub", "-c", "1", "-n", "1", "--client-prefix", "north-")
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with ThreadPoolExecutor(1) as pool:
            ended = pool.submit(headwater, "bench", *words, "--mqtt", address)
            client, _ = server.accept()
            with client:
                client.settimeout(WAIT_S)
                assert b"\x00\x07north-0" in client.recv(1024)
            assert ended.result().code == 3
    assert headwater("bench", "pub", "--client-prefix", "x" * 70_000).code == 2


def test_the_options_are_those_of_the_reference() -> None:
    done = headwater("bench", "--help")
    assert (done.code, done.out) == (0, bench_usage())


def test_a_broker_that_is_away_and_a_wrong_word_end_in_one_sentence() -> None:
    away = headwater("bench", "pub", "--mqtt", "127.0.0.1:1")
    assert (away.code, len(away.err.splitlines())) == (3, 1)
    wrong = headwater("bench", "pub", "--wndow", "3")
    assert wrong.code == 2
    assert "--wndow" in wrong.err
