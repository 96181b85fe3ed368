"""A sync or write that fails once: no acknowledgement after it, the partition stops, reads go on, a restart recovers.

`strace` answers one call of each thread with EIO, and lets the later ones succeed: a broker that tried again would go
on as if nothing had happened, although the kernel has dropped the dirty pages (invariant I5).
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.load_records import Recipe, publishers
from support.log_check import LogCheck
from support.log_reader import LogReader
from support.mqtt_load import MqttLoad, Place

FAILING_CALL = 60


@contextlib.contextmanager
def failing(call: str, strace: str, pid: int) -> Iterator[None]:
    """Every thread of the process gets EIO from its FAILING_CALL-th such call from now on, and from no other."""
    inject = f"inject={call}:error=EIO:when={FAILING_CALL}"
    command = [strace, "-f", "-qq", "-e", f"trace={call}", "-e", inject, "-o", "/dev/null", "-p", str(pid)]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        _wait_traced(pid, tracer)
        yield
    finally:
        tracer.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            tracer.wait(10)
        tracer.kill()
        tracer.wait(10)
        if tracer.stderr is not None:
            tracer.stderr.close()


def _wait_traced(pid: int, tracer: subprocess.Popen[str]) -> None:
    """Returns when every thread of the process has a tracer."""
    deadline = time.monotonic() + 10
    while not _all_traced(pid):
        if tracer.poll() is not None or time.monotonic() > deadline:
            said = tracer.stderr.read() if tracer.poll() is not None and tracer.stderr is not None else "nothing"
            pytest.fail(f"strace cannot attach to {pid} (root and ptrace are needed); it said: {said}")
        time.sleep(0.01)


def _all_traced(pid: int) -> bool:
    for task in Path(f"/proc/{pid}/task").iterdir():
        lines = (task / "status").read_text().splitlines()
        if next(line for line in lines if line.startswith("TracerPid:")).split()[1] == "0":
            return False
    return True


@pytest.mark.parametrize("connections", [1, 8], ids=["one_publisher", "eight_publishers"])
@pytest.mark.parametrize("call", ["fdatasync", "pwrite64"])
def test_no_ack_after_failed(tmp_path, broker_on, need_program, seed, note, call, connections):
    strace = need_program("strace")
    recipe, sources = Recipe(seed, large_every=1 << 30), publishers(connections, control=False)
    broker = broker_on(tmp_path / "data", {"log.classes.telemetry.partitions": "1"})
    check = LogCheck(recipe, sources)
    try:
        broker.start()
        with failing(call, strace, broker.pid):
            with MqttLoad(address=broker.mqtt, run=1, recipe=recipe, publishers=sources, window=4) as load:
                load.wait(lambda one: one.over or one.refused > 0, seconds=30, what="the failed sync to end the acks")
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
                load.wait(lambda one: one.over or one.refused > 0, seconds=30, what="the stopped partition to refuse")
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
            load.wait(lambda one: one.acked == 50 * connections, seconds=30, what="publishes after the restart")
        check.add(load.stop())
        assert broker.readyz()[0] == 200
        with LogReader(broker.flight) as reader:
            check.everything(reader)
    finally:
        note(check.report)
    assert check.report.clean, check.report.details()
