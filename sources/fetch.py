"""How a range is read: fetched over Flight and handed on as Arrow batches. No row is ever touched in Python.

When the connection drops, reading goes on behind the last batch until nothing has come for `pollTimeoutMs`. Offsets
that turn out to be gone end the task, or with `failOnDataLoss=false` are recorded as a gap and passed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from sources.errors import OptionError, RefusedError, UnavailableError
from sources.flight import LogServer
from sources.loss import Loss, pass_or_raise
from sources.offsets import OffsetRange
from sources.options import SourceOptions
from sources.schema import arrow_schema

_LOGGER = logging.getLogger(__name__)

_RETRY_SECONDS = 0.25
# gRPC bounds a whole call; a call that long is a range far beyond what a batch holds.
_CALL_SECONDS_MAX = 3_600.0


def fetch(offsets: OffsetRange, server: LogServer, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The matching records of a range, in order, in exactly the declared schema."""
    schema = arrow_schema(include_headers=options.include_headers)
    for batch in _Fetch(offsets, server, options).batches():
        yield _declared(batch, schema)


class _Fetch:
    """The state of reading one range: what of it is still to come."""

    def __init__(self, offsets: OffsetRange, server: LogServer, options: SourceOptions) -> None:
        # More than one piece only after a gap in the middle was passed.
        self._left = [offsets]
        self._server = server
        self._options = options

    def batches(self) -> Iterator[pa.RecordBatch]:
        patience_seconds = self._options.poll_timeout_ms / 1_000
        deadline = time.monotonic() + patience_seconds
        while self._left:
            piece = self._left[0]
            try:
                for batch, following in self._answer(piece):
                    deadline = time.monotonic() + patience_seconds
                    self._check_end(batch, following)
                    self._advance(following)
                    if batch.num_rows:
                        yield batch
                        # The broker ends a read of which nothing is taken for long: whoever took long to use a batch
                        # has all the patience for the next.
                        deadline = time.monotonic() + patience_seconds
                if self._left and self._left[0].end == piece.end:
                    raise UnavailableError(self._server.address, f"the answer ended before offset {piece.end}")
            except UnavailableError as error:
                if time.monotonic() >= deadline:
                    raise
                _LOGGER.warning("trying again: %s", error)
                self._server.close()
                time.sleep(_RETRY_SECONDS)
            except RefusedError as error:
                self._lose(error)

    def _answer(self, piece: OffsetRange) -> Iterator[tuple[pa.RecordBatch, int]]:
        # An address may be given to another broker: its records, and its gaps, are not ours.
        self._server.require_log(piece.log_id)
        return self._server.get(
            piece.partition,
            piece.start,
            piece.end,
            filters=self._options.filters,
            pattern=self._options.pattern,
            timeout_seconds=_CALL_SECONDS_MAX,
        )

    def _advance(self, following: int) -> None:
        piece = self._left[0]
        self._left[:1] = [] if following >= piece.end else [replace(piece, start=max(piece.start, following))]

    def _check_end(self, batch: pa.RecordBatch, following: int) -> None:
        """The record before the end must be the planned one: a log that was cut and written again has others."""
        piece = self._left[0]
        if following < piece.end or piece.end_epoch is None or not batch.num_rows:
            return
        offset, epoch = batch.column("offset")[-1].as_py(), batch.column("epoch")[-1].as_py()
        if offset == piece.end - 1 and epoch != piece.end_epoch:
            reason = f"epoch {epoch} is there instead of {piece.end_epoch}: it was cut and written again"
            loss = Loss(piece.log_id, piece.partition, offset, piece.end, piece.end, piece.start, reason)
            pass_or_raise(loss, self._options, self._server)

    def _lose(self, error: RefusedError) -> None:
        """Takes what the broker says is gone out of what is left, if the options allow it."""
        piece = self._left[0]
        loss = _loss(piece, error)
        if loss is None or not piece.start <= loss.start < loss.end <= piece.end:
            raise error
        pass_or_raise(loss, self._options, self._server)
        before = [replace(piece, end=loss.start, end_epoch=None)] if piece.start < loss.start else []
        after = [replace(piece, start=loss.end)] if loss.end < piece.end else []
        self._left[:1] = [*before, *after]


def _loss(piece: OffsetRange, error: RefusedError) -> Loss | None:
    """What of `piece` the refusal says is gone; None when it says something else."""
    detail = error.detail
    if error.code == "data_loss":
        start, end = max(piece.start, int(detail["start"])), min(piece.end, int(detail["end"]))
        reason = "they were purged" if detail.get("reason") == "purge" else "they are damaged and kept aside"
        return Loss(piece.log_id, piece.partition, start, end, end, end, reason)
    if error.code != "out_of_range":
        return None
    log_start, high_watermark = int(detail["log_start"]), int(detail["high_watermark"])
    if piece.start < log_start:
        end = min(log_start, piece.end)
        reason = "retention removed what was not read yet"
        return Loss(piece.log_id, piece.partition, piece.start, end, log_start, log_start, reason)
    start = max(piece.start, high_watermark)
    reason = f"the log ends at {high_watermark}"
    return Loss(piece.log_id, piece.partition, start, piece.end, piece.end, log_start, reason)


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
