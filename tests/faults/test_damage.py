"""Changed bytes on the disk: never served, reported with their offsets, and all other records are still there (I4)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from broker_edge import Client
from broker_edge.errors import DataLossError
from broker_edge.torture.load import MqttLoad
from broker_edge.torture.process import BrokerProcess
from broker_edge.torture.reader import LogReader
from broker_edge.torture.records import Recipe, publishers

SOURCES = publishers(4, control=False, protocols=(5,))
# Segment sizes: sixteen segments hold the published records, or a single one, which is then still active.
SEALED, ACTIVE = "64KiB", "4MiB"


def _acked(broker: BrokerProcess, recipe: Recipe) -> dict[int, bytes]:
    """Publishes 4,000 records; returns their payloads by acknowledged offset."""
    with MqttLoad(address=broker.mqtt, run=1, recipe=recipe, publishers=SOURCES, records_each=1_000) as load:
        load.wait(lambda one: one.acked == 4_000, seconds=120, what="4,000 acknowledgements")
    result = load.stop()
    return {
        place.offset: recipe.payload(result.name(one, sequence))
        for one in result.connections
        for sequence, place in one.acked.items()
        if place is not None
    }


def _readable(broker: BrokerProcess) -> tuple[dict[int, bytes], list[tuple[int, int]]]:
    """Payloads by offset, and the offsets that the broker reports as lost."""
    held: dict[int, bytes] = {}
    lost: list[tuple[int, int]] = []
    with Client("grpc://{}:{}".format(*broker.flight)) as client, LogReader(broker.flight) as reader:
        (bounds,) = [one for one in reader.bounds().values() if one.name == "telemetry-0"]
        start = bounds.log_start
        while start < bounds.high_watermark:
            try:
                for batch in client.fetch(bounds.number, start=start, end=bounds.high_watermark):
                    for offset, value in zip(batch["offset"].to_pylist(), batch["value"].to_pylist(), strict=True):
                        held[offset] = value
                        start = offset + 1
            except DataLossError as loss:
                lost.append((loss.start, loss.end))
                start = loss.end
    return held, lost


def _flip_in(path: Path, payload: bytes, moments: random.Random) -> None:
    """Flips one bit of a payload in the file."""
    content = path.read_bytes()
    at = content.index(payload) + moments.randrange(len(payload))
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ 1 << moments.randrange(8)]))


@pytest.mark.parametrize("segment_bytes", [SEALED, ACTIVE], ids=["sealed", "active"])
def test_flipped_bit_is_never_served_and_costs_its_batch_alone(tmp_path, broker_on, seed, segment_bytes):
    recipe, moments = Recipe(seed, large_every=1 << 30), random.Random(seed)
    settings = {"log.segment_bytes": segment_bytes, "log.classes.telemetry.partitions": "1"}
    broker = broker_on(tmp_path / "data", settings)
    broker.start()
    acked = _acked(broker, recipe)
    broker.kill()
    segments = sorted((tmp_path / "data" / "telemetry-0").glob("*.seg"))
    assert (len(segments) == 1) == (segment_bytes == ACTIVE)
    segment = moments.choice(segments[1:-1]) if segment_bytes == SEALED else segments[0]
    # Not in the last batch of the active segment: without a batch after it, a bad one counts as a torn tail.
    damaged = int(segment.stem) + (0 if segment_bytes == SEALED else 1_500)
    _flip_in(segment, acked[damaged], moments)

    broker.start()
    held, lost = _readable(broker)
    assert len(lost) == 1, f"seed {seed}: {lost}"
    ((start, end),) = lost
    assert start <= damaged < end <= start + 200, f"seed {seed}: {lost}"
    assert held == {offset: value for offset, value in acked.items() if not start <= offset < end}, f"seed {seed}"
