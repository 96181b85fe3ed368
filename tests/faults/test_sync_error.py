"""A sync or write that fails once: no acknowledgement after it, the partition stops, reads continue, a restart
recovers.

`strace` makes one call of each thread fail with EIO, and later calls succeed. A broker that retried would therefore
continue as if nothing had happened, although the kernel has dropped the dirty pages (invariant I5).
"""

from __future__ import annotations

import pytest

from broker_edge.torture.check import LogCheck
from broker_edge.torture.load import MqttLoad, Place
from broker_edge.torture.reader import LogReader
from broker_edge.torture.records import Recipe, publishers
from broker_edge.torture.strace import injected

# The number of the call in each thread: late enough for some acknowledgements before it.
FAILING_CALL = 60


@pytest.mark.parametrize("connections", [1, 8], ids=["one_publisher", "eight_publishers"])
@pytest.mark.parametrize("call", ["fdatasync", "pwritev"])
def test_no_ack_after_failed(tmp_path, broker_on, need_program, seed, note, call, connections):
    strace = need_program("strace")
    recipe, sources = Recipe(seed, large_every=1 << 30), publishers(connections, control=False)
    broker = broker_on(tmp_path / "data", {"log.classes.telemetry.partitions": "1"})
    check = LogCheck(recipe, sources)
    try:
        broker.start()
        with injected(strace, pid=broker.pid, call=call, what=f"error=EIO:when={FAILING_CALL}"):
            with MqttLoad(address=broker.mqtt, run=1, recipe=recipe, publishers=sources, window=4) as load:
                load.wait(lambda one: one.over or one.refused > 0, seconds=120, what="the failed sync to end the acks")
            first = load.stop()
            check.add(first)
            assert first.acked > 0
            with LogReader(broker.flight) as reader:
                stopped_at = reader.bounds()["telemetry-0"].high_watermark
                check.observe(reader)
            places = [place for one in first.connections for place in one.acked.values() if place is not None]
            assert max(places, key=lambda place: place.offset, default=Place("", -1)).offset < stopped_at
            status, body = broker.readyz()
            assert status == 503
            assert "telemetry-0" in body

            with MqttLoad(address=broker.mqtt, run=2, recipe=recipe, publishers=sources, window=4) as load:
                load.wait(lambda one: one.over or one.refused > 0, seconds=120, what="the stopped partition to refuse")
            second = load.stop()
            check.add(second)
            assert second.acked == 0, f"acknowledged by a partition whose {call} has failed"
            with LogReader(broker.flight) as reader:
                assert reader.bounds()["telemetry-0"].high_watermark == stopped_at
        broker.kill()

        broker.start()
        with LogReader(broker.flight) as reader:
            check.after_restart(reader)
        with MqttLoad(address=broker.mqtt, run=3, recipe=recipe, publishers=sources, records_each=50) as load:
            load.wait(lambda one: one.acked == 50 * connections, seconds=120, what="publishes after the restart")
        check.add(load.stop())
        assert broker.readyz()[0] == 200
        with LogReader(broker.flight) as reader:
            check.everything(reader)
    finally:
        note(check.report)
    assert check.report.clean, check.report.details()
