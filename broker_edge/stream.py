"""Record batches of one partition as they come over Flight, resumed where they stopped when the broker was away.

Offsets below the high watermark name the same bytes for ever, so going on at the next offset after a lost connection
repeats and skips nothing; the log id is compared, because another log may have taken the address meanwhile.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from broker_edge._connection import Connection
from broker_edge.errors import ConnectError, DataLossError, HeadwaterError, UnavailableError


class RecordStream(Iterator[pa.RecordBatch]):
    """Record batches in the canonical schema, in offset order; made by `Client.fetch` and `Client.tail`.

    `next_offset` is where a reader goes on after the last batch that was given, also past records that no filter
    matches. A stream that follows ends only by `close()` or an error; with `idle=True` it gives empty batches about
    each second while there is nothing new. Use it from one thread; `close()` may come from another.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        ticket: dict[str, Any],
        timeout_s: float | None,
        idle: bool = False,
    ) -> None:
        self.partition: int = ticket["partition"]
        self.next_offset: int = ticket["start"]
        self._end: int | None = ticket.get("end")
        self._connection = connection
        self._ticket = ticket
        self._timeout_s = timeout_s
        self._idle = idle
        self._reader: flight.FlightStreamReader | None = None
        self._log_id: str | None = None
        self._resumed = False
        self._done = threading.Event()
        self._failures = 0

    def __enter__(self) -> RecordStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> RecordStream:
        return self

    def close(self) -> None:
        """Ends the stream; a thread that waits in it gets StopIteration."""
        self._done.set()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()

    def to_table(self) -> pa.Table:
        """All that is left of a bounded stream as one table."""
        if self._end is None:
            raise ValueError("a stream that follows has no end; iterate over it")
        batches = list(self)
        return pa.Table.from_batches(batches, schema=batches[0].schema if batches else self.schema)

    @property
    def schema(self) -> pa.Schema:
        """The canonical schema as the broker declares it."""
        with self._connection.errors():
            return self._open().schema

    def __next__(self) -> pa.RecordBatch:
        while not self._done.is_set():
            try:
                batch = self._read()
            except (ConnectError, UnavailableError) as error:
                self._reader = None
                self._resumed = True
                self._failures += 1
                if self._done.is_set():
                    break
                if not self._connection.pause(error, self._failures):
                    raise
                continue
            except HeadwaterError:
                if self._done.is_set():
                    break
                raise
            if batch is None:
                break
            self._failures = 0
            if batch.num_rows or (self._idle and self._end is None):
                return batch
        raise StopIteration

    def _open(self) -> flight.FlightStreamReader:
        if self._reader is None:
            ticket = {**self._ticket, "start": self.next_offset}
            self._reader = self._connection.get(ticket, timeout_s=self._timeout_s)
        return self._reader

    def _read(self) -> pa.RecordBatch | None:
        """The next batch; None at the end of a bounded stream."""
        try:
            with self._connection.errors():
                chunk = self._open().read_chunk()
        except StopIteration:
            if self._end is None:
                raise ConnectError(
                    f"{self._connection.server} ended the stream of partition {self.partition}",
                    server=self._connection.server,
                ) from None
            self.next_offset = self._end
            self._done.set()
            return None
        batch = chunk.data
        if batch.num_rows and (self._log_id is None or self._resumed):
            self._check_log(batch.column("log_id")[0].as_py())
        with self._connection.errors():
            self.next_offset = int(json.loads(chunk.app_metadata.to_pybytes())["next"])
        return batch

    def _check_log(self, log_id: str) -> None:
        if self._log_id not in (None, log_id):
            raise DataLossError(
                f"{self._connection.server} now serves log {log_id}, this stream was reading {self._log_id}: "
                "start again with the offsets of the new log",
                partition=self.partition,
                start=self.next_offset,
                end=self.next_offset,
            )
        self._log_id = log_id
        self._resumed = False
