"""`headwater bench` against the real broker: its counts match the log, and it reports an unreachable broker."""

from __future__ import annotations

import pytest
from support.programs import headwater

from broker_edge import Client
from broker_edge.torture.process import BrokerProcess


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


def test_every_subscriber_gets_every_message(broker: BrokerProcess) -> None:
    report = bench(broker, "sub", "-c", "20", "-n", "50", "--size", "20000", "--protocol", "5")
    assert (report["delivered"], report["deliveries_missing"]) == (1000, 0)
    assert report["delivery_latency"]["count"] == 1000  # type: ignore[index]


def test_connections_are_counted(broker: BrokerProcess) -> None:
    assert bench(broker, "connect", "-c", "10", "-n", "200")["acked"] == 200


def test_a_broker_that_is_away_and_a_wrong_word_end_in_one_sentence() -> None:
    away = headwater("bench", "pub", "--mqtt", "127.0.0.1:1")
    assert (away.code, len(away.err.splitlines())) == (3, 1)
    wrong = headwater("bench", "pub", "--wndow", "3")
    assert wrong.code == 2
    assert "--wndow" in wrong.err
