"""What a task does: fetch one range over Flight and hand Arrow batches to Spark. No row is ever touched in Python.

When the connection drops, reading goes on behind the last batch until nothing has come for `pollTimeoutMs`. Offsets
that turn out to be gone end the task, or with `failOnDataLoss=false` are recorded as a gap and passed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from sources.errors import DataLossError, OptionError, RefusedError, UnavailableError
from sources.flight import LogServer
from sources.loss import Loss, pass_or_raise
from sources.offsets import OffsetRange
from sources.options import SourceOptions
from sources.schema import arrow_schema

_LOGGER = logging.getLogger(__name__)

_RETRY_SECONDS = 0.25
# gRPC bounds a whole call; a call that long is a range far beyond what a batch holds.
_CALL_SECONDS_MAX = 3_600.0


class RangePartition(InputPartition):  # type: ignore[misc]
    """One task: a range and the address of the broker that holds it."""

    def __init__(self, offsets: OffsetRange, address: str) -> None:
        super().__init__(offsets)
        self.offsets = offsets
        self.address = address


def split_ranges(found: list[OffsetRange], min_partitions: int | None) -> list[OffsetRange]:
    """One task a partition, or the larger ranges in pieces until there are about `min_partitions` tasks."""
    if min_partitions is None or not 0 < len(found) < min_partitions:
        return found
    total = sum(one.end - one.start for one in found)
    return [part for one in found for part in one.split(round(min_partitions * (one.end - one.start) / total))]


def fetch(task: RangePartition, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The matching records of the task's range, in order, in exactly the declared schema."""
    schema = arrow_schema(include_headers=options.include_headers)
    server = LogServer(task.address, token=options.token)
    try:
        for batch in _Fetch(task.offsets, server, options).batches():
            yield _declared(batch, schema)
    finally:
        server.close()


class _Fetch:
    """The state of reading one range: how far it has come."""

    def __init__(self, offsets: OffsetRange, server: LogServer, options: SourceOptions) -> None:
        self._left: OffsetRange | None = offsets
        self._server = server
        self._options = options
        self._has_passed_loss = False

    def batches(self) -> Iterator[pa.RecordBatch]:
        patience_seconds = self._options.poll_timeout_ms / 1_000
        deadline = time.monotonic() + patience_seconds
        while self._left is not None:
            try:
                for batch, following in self._answer(self._left):
                    deadline = time.monotonic() + patience_seconds
                    self._check_end(batch, following)
                    self._advance(following)
                    if batch.num_rows:
                        yield batch
                if self._left is not None:
                    raise UnavailableError(self._server.address, f"the answer ended before offset {self._left.end}")
            except UnavailableError as error:
                if time.monotonic() >= deadline:
                    raise
                _LOGGER.warning("trying again: %s", error)
                self._server.close()
                time.sleep(_RETRY_SECONDS)
            except RefusedError as error:
                self._pass_loss(self._left, error)

    def _answer(self, left: OffsetRange) -> Iterator[tuple[pa.RecordBatch, int]]:
        filters = self._options.filters
        return self._server.get(
            left.partition, left.start, left.end, filters=filters, timeout_seconds=_CALL_SECONDS_MAX
        )

    def _advance(self, following: int) -> None:
        left = self._left
        assert left is not None, "a batch arrived after the end of the range"
        self._left = None if following >= left.end else replace(left, start=max(left.start, following))

    def _check_end(self, batch: pa.RecordBatch, following: int) -> None:
        """The record before the end must be the planned one: a log that was cut and written again has others."""
        left = self._left
        if left is None or following < left.end or left.end_epoch is None or not batch.num_rows:
            return
        offset = batch.column("offset")[-1].as_py()
        epoch = batch.column("epoch")[-1].as_py()
        if offset == left.end - 1 and epoch != left.end_epoch and not self._has_passed_loss:
            reason = f"epoch {epoch} is there instead of {left.end_epoch}: it was cut and written again"
            self._lose(Loss(left.log_id, left.partition, offset, left.end, left.end, left.start, reason))

    def _pass_loss(self, left: OffsetRange, error: RefusedError) -> None:
        detail = error.detail
        if error.code == "data_loss":
            start, end = max(left.start, int(detail["start"])), min(left.end, int(detail["end"]))
            if start > left.start:
                raise DataLossError(f"{error} after offset {left.start} was served") from error
            self._lose(Loss(left.log_id, left.partition, start, end, end, end, "they are damaged and kept aside"))
            self._advance(end)
        elif error.code == "out_of_range":
            log_start, high_watermark = int(detail["log_start"]), int(detail["high_watermark"])
            if left.start < log_start:
                end = min(log_start, left.end)
                reason = "retention removed what was not read yet"
                self._lose(Loss(left.log_id, left.partition, left.start, end, log_start, log_start, reason))
                self._advance(end)
            elif left.end > high_watermark:
                start = max(left.start, high_watermark)
                reason = f"the log ends at {high_watermark}"
                self._lose(Loss(left.log_id, left.partition, start, left.end, left.end, log_start, reason))
                self._left = replace(left, end=start, end_epoch=None) if left.start < start else None
            else:
                raise error
        else:
            raise error

    def _lose(self, loss: Loss) -> None:
        pass_or_raise(loss, self._options, self._server)
        self._has_passed_loss = True


def _declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Drops `headers` where they were not asked for; a broker that lacks a column is refused."""
    if batch.num_columns != len(schema):
        try:
            batch = batch.select(schema.names)
        except KeyError as error:
            raise OptionError(
                f"the broker sends the columns {batch.schema.names}, and {error} is not among them"
            ) from error
    return batch if batch.schema.equals(schema) else batch.cast(schema)
