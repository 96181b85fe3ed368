"""DoPut with idempotency keys, as a sink does it: batches one after the other, and unanswered ones again.

Each row is in the log exactly once, because its key stays the same.
"""

from __future__ import annotations

import random
import threading

from broker_edge.client import Client
from broker_edge.errors import HeadwaterError
from broker_edge.torture.load import LoadResult
from broker_edge.torture.publisher import Place, Published
from broker_edge.torture.records import Publisher, Recipe, RecordName
from broker_edge.values import Row

PRODUCER = Publisher(connection=96, protocol=5, topic="devices/put-0/telemetry", client_id="")
ROWS_MAX = 40


class Producer:
    """`start` sends from its own thread until the broker is gone or `finish` is called."""

    def __init__(self, *, recipe: Recipe, moments: random.Random, timeout_s: float = 20.0) -> None:
        """A batch without an answer in `timeout_s` counts as unanswered."""
        self._timeout_s = timeout_s
        self._recipe = recipe
        self._moments = moments
        self._unanswered: list[RecordName] = []
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._published = Published(PRODUCER)
        self._run = 0
        self._numbers: dict[int, str] = {}

    def start(self, address: tuple[str, int], *, run: int) -> None:
        self._published, self._run = Published(PRODUCER), run
        self._stopping.clear()
        self._thread = threading.Thread(target=self._until_gone, args=(address,), daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        """Whether it still sends, or waits for the answer to its last batch."""
        return self._thread is not None and self._thread.is_alive()

    def end_soon(self) -> None:
        """Ends after the batch in flight, without waiting for that."""
        self._stopping.set()

    def finish(self) -> LoadResult:
        """Waits for the batch in flight, or for its failure."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(30)
            if self._thread.is_alive():
                self._published.violations.append("DoPut: neither answer nor error in 30 s")
        return LoadResult(self._run, self._recipe, (self._published,))

    def _until_gone(self, address: tuple[str, int]) -> None:
        try:
            with Client(f"grpc://{address[0]}:{address[1]}", retries=0, timeout_s=self._timeout_s) as client:
                offsets = client.offsets().partitions
                self._numbers = {number: one.name for number, one in offsets.items()}
                while not self._stopping.is_set():
                    names = self._unanswered or self._next_names()
                    self._unanswered = names
                    self._send(client, names)
                    self._unanswered = []
        except HeadwaterError:
            return

    def _next_names(self) -> list[RecordName]:
        first = self._published.sent
        count = self._moments.randint(1, ROWS_MAX)
        self._published.sent += count
        return [RecordName(self._run, PRODUCER.connection, first + n) for n in range(count)]

    def _send(self, client: Client, names: list[RecordName]) -> None:
        rows = [
            Row(
                topic=PRODUCER.topic,
                value=self._recipe.payload(name),
                idempotency_key=f"{name.run}/{name.connection}/{name.sequence}",
            )
            for name in names
        ]
        for name, told in zip(names, client.produce(rows), strict=True):
            place = Place(self._numbers[told.partition], told.offset)
            if name.run == self._run:
                self._published.acked[name.sequence] = place
            else:
                self._published.late[name] = place
