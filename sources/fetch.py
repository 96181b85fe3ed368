"""Reads a range: fetches it over Flight and passes it on as Arrow batches. No row is handled one by one in Python.

When the connection drops, the read resumes after the last batch. It fails once nothing has arrived for `pollTimeoutMs`.
Offsets that turn out to be gone fail the task; with `failOnDataLoss=false` they are recorded as a gap and skipped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa

from broker_edge.errors import OptionError, RefusedError, UnavailableError
from sources.answers import require_asked_for, require_readable
from sources.broker_errors import unreachable, unusable
from sources.log_server import LogServer
from sources.loss import Loss, pass_or_raise
from sources.offsets import OffsetRange
from sources.options import SourceOptions
from sources.schema import arrow_schema

_LOGGER = logging.getLogger(__name__)

_RETRY_SECONDS = 0.25
# gRPC limits the duration of a whole call. A call this long is a range far larger than a batch.
_CALL_SECONDS_MAX = 3_600.0


def fetch(offsets: OffsetRange, server: LogServer, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """The matching records of a range, in order, in exactly the declared schema."""
    yield from _Fetch(offsets, server, options).batches()


class _Fetch:
    """The state of reading one range: the parts that are still to be read."""

    def __init__(self, offsets: OffsetRange, server: LogServer, options: SourceOptions) -> None:
        # More than one piece only after a gap in the middle was skipped.
        self._left = [offsets]
        self._server = server
        self._options = options
        self._schema = arrow_schema(include_headers=options.include_headers)

    def batches(self) -> Iterator[pa.RecordBatch]:
        patience_seconds = self._options.poll_timeout_ms / 1_000
        deadline = time.monotonic() + patience_seconds
        while self._left:
            piece = self._left[0]
            try:
                for sent, following in self._answer(piece):
                    batch = self._checked(sent, following)
                    if self._advance(following):
                        deadline = time.monotonic() + patience_seconds
                    elif time.monotonic() >= deadline:
                        raise unreachable(self._server.address, f"it sends nothing behind offset {following}")
                    if batch.num_rows:
                        yield batch
                        # The broker ends a read whose batches are not fetched for a long time. The time that the caller
                        # spends on a batch must not count against `pollTimeoutMs` of the next one.
                        deadline = time.monotonic() + patience_seconds
                if self._left and self._left[0].end == piece.end:
                    raise unreachable(self._server.address, f"the answer ended before offset {piece.end}")
            except UnavailableError as error:
                if time.monotonic() >= deadline:
                    raise
                _LOGGER.warning("retrying: %s", error)
                self._server.let_go()
                time.sleep(_RETRY_SECONDS)
            except RefusedError as error:
                self._lose(error)

    def _answer(self, piece: OffsetRange) -> Iterator[tuple[pa.RecordBatch, int]]:
        # The address may belong to another broker by now, whose records and gaps are not those of this log.
        self._server.require_log(piece.log_id)
        return self._server.get(
            piece.partition,
            piece.start,
            piece.end,
            filters=self._options.filters,
            pattern=self._options.pattern,
            timeout_seconds=_CALL_SECONDS_MAX,
        )

    def _checked(self, sent: pa.RecordBatch, following: int) -> pa.RecordBatch:
        """The batch in the declared schema, if it is of the part that is still to be read."""
        server = self._server.address
        if not self._left:
            raise unusable(server, f"it goes on behind the end that was asked for, at {following}")
        piece = self._left[0]
        require_readable(sent, piece, server=server)
        batch = _declared(sent, self._schema)
        require_asked_for(batch, following, piece, server=server)
        self._check_end(batch, following)
        return batch

    def _advance(self, following: int) -> bool:
        """Returns whether there is less to read than before."""
        piece = self._left[0]
        self._left[:1] = [] if following >= piece.end else [replace(piece, start=following)]
        return following > piece.start

    def _check_end(self, batch: pa.RecordBatch, following: int) -> None:
        """Checks that the record before the end is the planned one. If the log was truncated and rewritten, it is
        another."""
        piece = self._left[0]
        if following < piece.end or piece.end_epoch is None or not batch.num_rows:
            return
        offset, epoch = batch.column("offset")[-1].as_py(), batch.column("epoch")[-1].as_py()
        if offset == piece.end - 1 and epoch != piece.end_epoch:
            reason = f"found epoch {epoch} instead of {piece.end_epoch}: the log was truncated and rewritten"
            loss = Loss(piece.log_id, piece.partition, offset, piece.end, piece.end, piece.start, reason)
            pass_or_raise(loss, self._options, self._server)

    def _lose(self, error: RefusedError) -> None:
        """Removes the offsets that the broker reports as gone from the remaining ones, if the options allow it."""
        if not self._left:
            raise error
        piece = self._left[0]
        loss = _loss(piece, error)
        if loss is None or not piece.start <= loss.start < loss.end <= piece.end:
            raise error
        pass_or_raise(loss, self._options, self._server)
        before = [replace(piece, end=loss.start, end_epoch=None)] if piece.start < loss.start else []
        after = [replace(piece, start=loss.end)] if loss.end < piece.end else []
        self._left[:1] = [*before, *after]


def _loss(piece: OffsetRange, error: RefusedError) -> Loss | None:
    """The part of `piece` that the refusal reports as gone; None if it reports something else, or nothing of use."""
    try:
        return _lost(piece, error)
    except (KeyError, TypeError, ValueError):
        return None


def _lost(piece: OffsetRange, error: RefusedError) -> Loss | None:
    detail = error.detail or {}
    if error.code == "data_loss":
        start, end = max(piece.start, int(detail["start"])), min(piece.end, int(detail["end"]))
        reason = "they were purged" if detail.get("reason") == "purge" else "they are damaged and in quarantine"
        return Loss(piece.log_id, piece.partition, start, end, end, end, reason)
    if error.code != "out_of_range":
        return None
    log_start, high_watermark = int(detail["log_start"]), int(detail["high_watermark"])
    if piece.start < log_start:
        end = min(log_start, piece.end)
        reason = "retention removed them before they were read"
        return Loss(piece.log_id, piece.partition, piece.start, end, log_start, log_start, reason)
    start = max(piece.start, high_watermark)
    reason = f"the log ends at {high_watermark}"
    return Loss(piece.log_id, piece.partition, start, piece.end, piece.end, log_start, reason)


def _declared(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Drops `headers` unless the options ask for them; refuses a broker that lacks a column."""
    try:
        if batch.num_columns != len(schema):
            batch = batch.select(schema.names)
        return batch if batch.schema.equals(schema) else batch.cast(schema)
    except (KeyError, ValueError, pa.ArrowException) as error:
        raise OptionError(f"the broker sends the columns {batch.schema.names}, but not as needed: {error}") from error
