"""Record batches of one partition over Flight; resumes where it stopped when the broker was unreachable.

Offsets below the high watermark never change their bytes, so resuming at the next offset neither repeats nor skips
records. The log id is compared, because another log may have taken over the address.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import TracebackType

from broker_edge._arrow import pa
from broker_edge.errors import ConnectError, DataLossError, HeadwaterError, UnavailableError
from broker_edge.flight import FlightClient, RecordReader


class RecordStream(Iterator[pa.RecordBatch]):
    """Record batches in the canonical schema, in offset order; created by `Client.fetch` and `Client.tail`.

    `next_offset` is where a reader resumes after the last batch, also past records that no filter matches. A following
    stream ends only by `close()` or an error; with `idle=True` it yields empty batches about once a second while there
    are no new records. Use it from one thread; any thread may call `close()`.
    """

    def __init__(
        self,
        client: FlightClient,
        partition: int,
        start: int,
        end: int | None = None,
        *,
        filters: str | Sequence[str] | None = None,
        batch_rows: int | None = None,
        timeout_s: float | None = None,
        idle: bool = False,
    ) -> None:
        self.partition = partition
        self.next_offset = start
        self._end = end
        self._client = client
        self._filters = filters
        self._batch_rows = batch_rows
        self._timeout_s = timeout_s
        self._idle = idle
        self._reader: RecordReader | None = None
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
        """Ends the stream; a thread waiting in it gets StopIteration."""
        self._done.set()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.cancel()

    def to_table(self) -> pa.Table:
        """The rest of a bounded stream as one table."""
        if self._end is None:
            raise ValueError("a following stream has no end: iterate over it")
        batches = list(self)
        return pa.Table.from_batches(batches, schema=batches[0].schema if batches else self.schema)

    @property
    def schema(self) -> pa.Schema:
        """The canonical schema as the broker declares it."""
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
                if not self._client.pause(error, self._failures):
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

    def _open(self) -> RecordReader:
        if self._reader is None:
            self._reader = self._client.get(
                self.partition,
                self.next_offset,
                self._end,
                filters=self._filters,
                batch_rows=self._batch_rows,
                timeout_s=self._timeout_s,
            )
        return self._reader

    def _read(self) -> pa.RecordBatch | None:
        """The next batch; None at the end of a bounded stream."""
        found = self._open().read()
        if found is None:
            if self._end is None:
                raise ConnectError(
                    f"{self._client.server} ended the stream of partition {self.partition}",
                    server=self._client.server,
                )
            self.next_offset = self._end
            self._done.set()
            return None
        batch, following = found
        with self._client.decoding():
            # Arrow computes with the lengths and offsets that the network brings without a look at them.
            batch.validate(full=True)
            if following < self.next_offset:
                raise ValueError(f"it goes back from offset {self.next_offset} to {following}")
        if batch.num_rows and (self._log_id is None or self._resumed):
            self._check_log(batch.column("log_id")[0].as_py())
        self.next_offset = following
        return batch

    def _check_log(self, log_id: str) -> None:
        if self._log_id not in (None, log_id):
            raise DataLossError(
                f"{self._client.server} now serves log {log_id}, this stream was reading {self._log_id}: "
                "start again with the offsets of the new log",
                partition=self.partition,
                start=self.next_offset,
                end=self.next_offset,
            )
        self._log_id = log_id
        self._resumed = False
