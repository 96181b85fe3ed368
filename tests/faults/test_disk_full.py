"""A full disk: publishes are refused, nothing acknowledged is lost, reads continue, and the broker recovers by itself
(I5, I7)."""

from __future__ import annotations

import time

from broker_edge.torture.check import LogCheck
from broker_edge.torture.load import LoadResult, MqttLoad
from broker_edge.torture.process import BrokerProcess
from broker_edge.torture.reader import LogReader
from broker_edge.torture.records import Recipe, publishers

IMAGE_MIB = 96
SETTINGS = {"log.segment_bytes": "2MiB", "log.classes.telemetry.partitions": "1"}
QUOTA_EXCEEDED = 0x97
SOURCES = publishers(8, control=False)
V5 = tuple(one for one in SOURCES if one.protocol == 5)
V4 = tuple(one for one in SOURCES if one.protocol == 4)


def _wait_readyz(broker: BrokerProcess, wanted: int, *, seconds: float) -> str:
    deadline = time.monotonic() + seconds
    while (answer := broker.readyz())[0] != wanted:
        assert time.monotonic() < deadline, f"/readyz is {answer} after {seconds} s, not {wanted}"
        time.sleep(0.05)
    return answer[1]


def _assert_refused(result: LoadResult) -> None:
    """Nothing was acknowledged. MQTT 5 clients got the reason and stay connected; older versions have no code for
    it."""
    assert result.acked == 0
    for one in result.connections:
        if one.publisher.protocol == 5:
            assert one.closed_because is None
            assert set(one.refused.values()) == {QUOTA_EXCEEDED}
        else:
            assert one.closed_because is not None


def test_full_disk_refuses_and_resumes_by_itself(loop_image, broker_on, seed, note):
    image = loop_image(IMAGE_MIB)
    recipe = Recipe(seed)
    broker = broker_on(image.mount_point / "data", SETTINGS)
    check = LogCheck(recipe, SOURCES)
    try:
        broker.start()
        with MqttLoad(address=broker.mqtt, run=1, recipe=recipe, publishers=SOURCES) as load:
            load.wait(lambda one: one.acked > 1_000, seconds=120, what="publishes before the disk is full")
            ballast = image.fill()
            assert "telemetry-0" in _wait_readyz(broker, 503, seconds=120)
        check.add(load.stop())
        with MqttLoad(address=broker.mqtt, run=2, recipe=recipe, publishers=SOURCES) as load:
            load.wait(lambda one: one.refused > 0 and one.closed == len(V4), seconds=120, what="refusals")
        refused = load.stop()
        check.add(refused)
        _assert_refused(refused)
        with LogReader(broker.flight) as reader:
            check.everything(reader)

        ballast.unlink()
        _wait_readyz(broker, 200, seconds=120)
        with MqttLoad(address=broker.mqtt, run=3, recipe=recipe, publishers=SOURCES, records_each=200) as load:
            load.wait(
                lambda one: one.acked == 200 * len(SOURCES), seconds=120, what="publishes after the space is back"
            )
        check.add(load.stop())

        broker.kill()
        broker.start()
        with LogReader(broker.flight) as reader:
            check.after_restart(reader)
            check.everything(reader)
    finally:
        note(check.report)
    assert check.report.clean, check.report.details()


def test_broker_starts_and_serves_reads_on_a_full_disk(loop_image, broker_on, seed, note):
    image = loop_image(IMAGE_MIB)
    recipe = Recipe(seed)
    broker = broker_on(image.mount_point / "data", SETTINGS)
    check = LogCheck(recipe, V5)
    try:
        broker.start()
        with MqttLoad(address=broker.mqtt, run=1, recipe=recipe, publishers=V5) as load:
            load.wait(lambda one: one.acked > 1_000, seconds=120, what="publishes before the disk is full")
            ballast = image.fill()
            broker.kill()
            load.wait(lambda one: one.over, seconds=60, what="the connections to end with the broker")
        check.add(load.stop())
        image.fill("more-ballast")

        broker.start()
        with LogReader(broker.flight) as reader:
            check.after_restart(reader)
            check.everything(reader)

        ballast.unlink()
        _wait_readyz(broker, 200, seconds=120)
        with MqttLoad(address=broker.mqtt, run=2, recipe=recipe, publishers=V5, records_each=200) as load:
            load.wait(lambda one: one.acked == 200 * len(V5), seconds=120, what="publishes once there is space")
        check.add(load.stop())
        with LogReader(broker.flight) as reader:
            check.everything(reader)
    finally:
        note(check.report)
    assert check.report.clean, check.report.details()
