"""A producer that sends again what had no answer: with idempotency keys each row is in the log once (I3, I10)."""

from __future__ import annotations

import random
import threading
from collections import Counter

import pytest
from support.broker_process import BrokerProcess
from support.log_reader import LogReader

from broker_edge import Client, Row
from broker_edge.errors import HeadwaterError

Place = tuple[int, int]


class _Producer:
    """Sends numbered batches one after the other until the broker is gone, and remembers each answer."""

    def __init__(self, moments: random.Random) -> None:
        self.places: dict[str, Place] = {}
        self.unanswered: list[Row] = []
        self._moments = moments
        self._next = 0
        self._answered = threading.Condition()

    def run(self, broker: BrokerProcess) -> threading.Thread:
        thread = threading.Thread(target=self._until_gone, args=(broker.flight,), daemon=True)
        thread.start()
        return thread

    def wait_answers(self, count: int) -> None:
        with self._answered:
            assert self._answered.wait_for(lambda: len(self.places) >= count, timeout=30), "no answers to DoPut"

    def send(self, client: Client, rows: list[Row]) -> None:
        """Rows that were answered before must be answered with the same places."""
        for row, place in zip(rows, client.produce(rows), strict=True):
            assert row.idempotency_key is not None
            known = self.places.setdefault(row.idempotency_key, (place.partition, place.offset))
            assert known == (place.partition, place.offset), f"{row.idempotency_key} moved from {known} to {place}"

    def some_answered(self) -> list[Row]:
        return [_row(key) for key in self._moments.sample(sorted(self.places), k=min(50, len(self.places)))]

    def _until_gone(self, address: tuple[str, int]) -> None:
        with Client(f"grpc://{address[0]}:{address[1]}", retries=0) as client:
            while True:
                rows = [_row(f"{self._next + n}") for n in range(self._moments.randint(1, 40))]
                self._next += len(rows)
                self.unanswered = rows
                try:
                    self.send(client, rows)
                except HeadwaterError:
                    return
                self.unanswered = []
                with self._answered:
                    self._answered.notify_all()


def _row(key: str) -> Row:
    kind = "actions" if int(key) % 2 else "telemetry"
    return Row(topic=f"devices/put-{int(key) % 7}/{kind}", value=key.encode(), idempotency_key=key)


@pytest.mark.parametrize("how", ["kill_9", "power_cut"])
def test_row_that_is_sent_again_after_a_crash_is_there_once(loop_image, broker_on, seed, cycles, how):
    image = loop_image(384)
    broker = broker_on(image.mount_point / "data", {"log.segment_bytes": "256KiB"})
    moments = random.Random(seed)
    producer = _Producer(moments)
    broker.start()
    for _ in range((cycles + 3) // 4):
        thread = producer.run(broker)
        producer.wait_answers(len(producer.places) + moments.randint(1, 1_500))
        if how == "power_cut":
            image.cut_power()
        broker.kill()
        thread.join(30)
        assert not thread.is_alive()
        if how == "power_cut":
            image.power_on()
        broker.start()
        with Client("grpc://{}:{}".format(*broker.flight)) as client:
            producer.send(client, producer.unanswered + producer.some_answered())
    held: Counter[str] = Counter()
    with LogReader(broker.flight) as reader:
        for bounds in reader.bounds().values():
            for row in reader.rows(bounds, 0, bounds.high_watermark):
                held[row.value.decode()] += 1
                assert producer.places[row.value.decode()] == (bounds.number, row.offset), f"seed {seed}"
    assert set(held) == set(producer.places), f"seed {seed}"
    assert set(held.values()) == {1}, f"seed {seed}"
