"""Calls a stream reader in the same order as Spark, without a JVM.

`Query` keeps a checkpoint in memory. It cannot show the behaviour of the sink, or of a task in another process.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from sources.options import parse_options
from sources.stream import StreamReader
from support.flight_server import FlightServer

Json = dict[str, Any]

FILTER = "devices/+/telemetry"


def open_reader(*servers: FlightServer | str, **options: str) -> StreamReader:
    """A reader of the telemetry topics, with short timeouts."""
    base = {
        "servers": ",".join(one if isinstance(one, str) else one.location for one in servers),
        "pollTimeoutMs": "300",
    }
    if "assign" not in options and "subscribePattern" not in options:
        base["subscribe"] = FILTER
    return StreamReader(parse_options({**base, **options}))


def fill(server: FlightServer, count: int, *, partition: int | None = None, topic: str | None = None) -> None:
    """Appends numbered records to `topic`, by default to the telemetry topics of 20 devices."""
    for number in range(count):
        name = topic or f"devices/d{number % 20}/telemetry"
        server.log.append(name, b"%d" % number, partition=partition)


def through_json(offset: Json) -> Json:
    """An offset as Spark returns it: serialized to text and parsed again."""
    return json.loads(json.dumps(offset))  # type: ignore[no-any-return]


def read_rows(reader: StreamReader, start: Json, end: Json) -> list[Json]:
    """The rows of a batch, read with a copy of the reader, as tasks do."""
    tasks = reader.partitions(through_json(start), through_json(end))
    worker = pickle.loads(pickle.dumps(reader))
    batches: list[pa.RecordBatch] = [batch for task in tasks for batch in worker.read(pickle.loads(pickle.dumps(task)))]
    return [row for batch in batches for row in batch.to_pylist()]


class Query:
    """A query over its lifetime: `restart` creates a new reader on the same checkpoint."""

    def __init__(self, *servers: FlightServer | str, **options: str) -> None:
        self._servers = servers
        self._options = options
        self.ends: list[Json] = []
        self.rows: list[Json] = []
        self.restart()

    def restart(self) -> None:
        self.reader = open_reader(*self._servers, **self._options)

    def start(self) -> Json:
        return self.ends[-1] if self.ends else through_json(self.reader.initialOffset())

    def plan(self, limit: int | None = None) -> tuple[Json, Json]:
        """Start and end of the next batch."""
        start = self.start()
        asked = self.reader.getDefaultReadLimit() if limit is None else ReadMaxRows(limit)
        assert isinstance(asked, ReadAllAvailable | ReadMaxRows)
        return start, through_json(self.reader.latestOffset(start, asked))

    def batch(self, limit: int | None = None) -> list[Json]:
        """Runs one batch and returns its rows; does nothing if nothing is new."""
        start, end = self.plan(limit)
        if json.dumps(start) == json.dumps(end):
            return []
        rows = read_rows(self.reader, start, end)
        self.ends.append(end)
        self.rows += rows
        return rows

    def drain(self, limit: int | None = None) -> list[Json]:
        """Runs batches until no offset moves."""
        found: list[Json] = []
        while True:
            before = len(self.ends)
            found += self.batch(limit)
            if len(self.ends) == before:
                return found


def places(rows: list[Json]) -> list[tuple[str, int, int, int]]:
    """Keys that must be unique for the life of a checkpoint."""
    return sorted((row["log_id"], row["partition"], row["offset"], row["epoch"]) for row in rows)
