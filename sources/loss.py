"""Data loss: detects that the records at a query's position are gone, and reports it once, with what to do.

The position is lost when retention removed it, when the log ends before it, or when the record before it has another
epoch (the log was truncated and rewritten). With `failOnDataLoss=false` the reader gets the offset to resume at, and
the broker records the gap.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_edge.errors import DataLossError, HeadwaterError
from sources.log_server import LogServer
from sources.offsets import Place
from sources.options import SourceOptions

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets `[start, end)` of a partition are gone or hold other records now; reading resumes at `resume_at`."""

    log_id: str
    partition: int
    start: int
    end: int
    resume_at: int
    log_start: int
    reason: str

    def sentence(self, what: str) -> str:
        return (
            f"records of {what} are gone: offset {self.start} of partition {self.partition} of log "
            f"{self.log_id} was requested, the oldest kept is {self.log_start} ({self.reason})"
        )


def find_loss(log_id: str, partition: int, place: Place, state: Mapping[str, Any], server: LogServer) -> Loss | None:
    """Compares a position with the `offsets` answer for its partition (requested with `epoch_before` that position).
    Raises `UnavailableError` if the answer is that of a deposed leader."""
    log_start, high_watermark = int(state["log_start"]), int(state["high_watermark"])
    if place.next < log_start:
        return Loss(
            log_id,
            partition,
            place.next,
            log_start,
            log_start,
            log_start,
            "retention removed them before they were read",
        )
    found = state.get("epoch_before")
    is_cut = place.next > high_watermark
    is_other = place.epoch is not None and found is not None and found != place.epoch
    if not (is_cut or is_other):
        return None
    if is_cut:
        server.require_led(high_watermark, place.next, epoch=int(state["epoch"]), known_epoch=place.epoch)
    reason = f"the log ends at {high_watermark}" if is_cut else f"found epoch {found} instead of {place.epoch}"
    resume_at = _end_of_epoch(partition, place.epoch, log_start, min(place.next, high_watermark), server)
    return Loss(
        log_id, partition, resume_at, place.next, resume_at, log_start, reason + ": the log was truncated and rewritten"
    )


def _end_of_epoch(partition: int, epoch: int | None, low: int, high: int, server: LogServer) -> int:
    """The first offset whose record is newer than `epoch`. Records before it have been read and are not read again.

    Epochs never decrease along a partition, so a binary search finds it.
    """
    if epoch is None:
        return low
    while low < high:
        middle = (low + high) // 2
        row = server.offsets(partitions=[partition], epoch_before={partition: middle + 1})["partitions"][str(partition)]
        at_middle = row.get("epoch_before")
        if at_middle is not None and at_middle > epoch:
            high = middle
        else:
            low = middle + 1
    return low


def report_retired(log_id: str, places: Mapping[int, Place], options: SourceOptions, witness: LogServer) -> None:
    """Records, at the broker of another log, that the rest of this log will not be read: from each position to an
    unknown end. After a restart before the next batch is planned, it is recorded again."""
    _LOGGER.warning("log %s is retired: reading of %s stops at %s", log_id, options.what, dict(places))
    for number, place in places.items():
        witness.gap(
            group=options.consumer_group,
            log_id=log_id,
            partition=number,
            start=place.next,
            end=None,
            reason="the log was retired",
        )


def pass_or_raise(loss: Loss, options: SourceOptions, server: LogServer) -> None:
    """Raises `DataLossError`; with `failOnDataLoss=false` records the gap at the broker and logs a warning instead."""
    sentence = loss.sentence(options.what)
    at = {"partition": loss.partition, "start": loss.start, "end": loss.end}
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{sentence}; to continue without them set failOnDataLoss=false, to start over use a new "
            f"checkpoint and consumerGroup",
            **at,
        )
    _LOGGER.warning("%s; resuming at offset %d", sentence, loss.resume_at)
    try:
        server.gap(
            group=options.consumer_group,
            partition=loss.partition,
            start=loss.start,
            end=loss.end,
            reason=loss.reason,
        )
    except HeadwaterError as error:
        # Do not skip a gap that nobody could look up later.
        raise DataLossError(f"{sentence}; and the gap could not be recorded: {error}", **at) from error
