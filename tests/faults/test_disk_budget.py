"""A disk that telemetry would fill: what `log.disk` removes or refuses, also across a kill, and what it never touches
(I5)."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import pytest

from broker_edge import Client, FullError, Row
from broker_edge.torture.process import BrokerProcess

IMAGE_MIB = 64
VALUE = bytes(4000)
SMALL = {"log.segment_bytes": "1MiB", "log.classes.telemetry.partitions": "1"}
TELEMETRY = 3
ROWS = 256


def _client(broker: BrokerProcess) -> Client:
    host, port = broker.flight
    return Client(f"grpc://{host}:{port}", retries=0)


def _numbers(start: int) -> list[Row]:
    """Rows whose value begins with the expected offset."""
    return [Row("devices/d/telemetry", number.to_bytes(8) + VALUE) for number in range(start, start + ROWS)]


def _disk(broker: BrokerProcess) -> dict[str, object]:
    disk: dict[str, object] = json.loads(broker.get("/api/v1/status")[1])["disk"]
    return disk


def _removed(broker: BrokerProcess, cause: str) -> int:
    text = broker.get("/metrics")[1]
    found = re.findall(rf'^headwater_log_removed_segments_total{{.*cause="{cause}".*}} (\d+)$', text, re.M)
    return sum(int(value) for value in found)


def _values(client: Client) -> Iterator[tuple[int, int]]:
    """Offset and number of every remaining telemetry record."""
    bounds = client.offsets(partitions=[TELEMETRY]).partitions[TELEMETRY]
    for batch in client.fetch(TELEMETRY, bounds.log_start, bounds.high_watermark):
        offsets, values = batch.column("offset").to_pylist(), batch.column("value").to_pylist()
        for offset, value in zip(offsets, values, strict=True):
            yield offset, int.from_bytes(value[:8])


def _produce_until_full(client: Client) -> int:
    for produced in range(0, 30_000, ROWS):
        try:
            client.produce(_numbers(produced))
        except FullError:
            return produced
    pytest.fail("the budget was never used up")


def test_trimming_makes_room_by_the_oldest_telemetry_alone_and_outlives_a_kill(loop_image, broker_on) -> None:
    image = loop_image(IMAGE_MIB)
    broker = broker_on(image.mount_point / "data", {**SMALL, "log.disk.action": "trim"})
    broker.start()
    with _client(broker) as client:
        client.produce([Row("devices/d/actions", b"kept")])
        produced, deadline = 0, time.monotonic() + 240
        while _removed(broker, "disk") < 20:
            assert time.monotonic() < deadline, f"{produced} records and too little was removed: {_disk(broker)}"
            try:
                client.produce(_numbers(produced))
            except FullError:
                # Faster than the check of the budget: after the next check there is room again.
                time.sleep(0.1)
            else:
                produced += ROWS
    broker.kill()
    broker.start()
    with _client(broker) as client:
        left = list(_values(client))
        assert left[0][0] > 0
        assert left[-1] == (produced - 1, produced - 1)
        assert [offset for offset, _ in left] == [number for _, number in left] == list(range(left[0][0], produced))
        (commands,) = client.topics("devices/d/actions")
        assert commands.first == 0


def test_a_budget_is_kept_telemetry_refused_and_taken_again_when_there_is_more(loop_image, broker_on) -> None:
    image = loop_image(2 * IMAGE_MIB)
    budget = {**SMALL, "log.disk.budget": "64MiB", "log.disk.act_at": "60", "log.disk.warn_at": "50"}
    data = image.mount_point / "data"
    broker = broker_on(data, budget)
    broker.start()
    with _client(broker) as client:
        produced = _produce_until_full(client)
        assert _disk(broker)["level"] == "acting"
        client.produce([Row("devices/d/actions", b"taken")])
        used = sum(path.stat().st_size for path in data.rglob("*") if path.is_file())
        assert used < 64 << 20
        assert [number for _, number in _values(client)] == list(range(produced))
    broker.stop()

    # Records produced between two checks of the budget may have exceeded the first limit by far.
    more = broker_on(data, {**budget, "log.disk.budget": "110MiB", "log.disk.act_at": "90"})
    more.start()
    with _client(more) as client:
        client.produce(_numbers(produced))
        assert [number for _, number in _values(client)] == list(range(produced + ROWS))
