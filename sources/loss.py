"""Data loss: finding out that the place where a query goes on is gone, and saying so, once, in words that help.

A place is lost when retention removed it, when the log ends before it, or when the record before it has another epoch
(the log was cut and written again). Who may go on (`failOnDataLoss=false`) gets the place to go on at, and the broker
gets the gap.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sources.errors import DataLossError, SourceError
from sources.flight import LogServer
from sources.offsets import Place
from sources.options import SourceOptions

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loss:
    """Offsets `[start, end)` of a partition are gone, or are other records now; reading goes on at `resume_at`."""

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
            f"{self.log_id} was wanted, "
            f"the oldest kept is {self.log_start} ({self.reason})"
        )


def find_loss(log_id: str, partition: int, place: Place, state: Mapping[str, Any], server: LogServer) -> Loss | None:
    """Compares a place with what `offsets` says of its partition (asked with `epoch_before` that place)."""
    log_start, high_watermark = int(state["log_start"]), int(state["high_watermark"])
    if place.next < log_start:
        return Loss(
            log_id, partition, place.next, log_start, log_start, log_start, "retention removed what was not read yet"
        )
    found = state.get("epoch_before")
    is_cut = place.next > high_watermark
    is_other = place.epoch is not None and found is not None and found != place.epoch
    if not (is_cut or is_other):
        return None
    reason = f"the log ends at {high_watermark}" if is_cut else f"epoch {found} is there instead of {place.epoch}"
    resume_at = _end_of_epoch(partition, place.epoch, log_start, min(place.next, high_watermark), server)
    return Loss(
        log_id, partition, resume_at, place.next, resume_at, log_start, reason + ": it was cut and written again"
    )


def _end_of_epoch(partition: int, epoch: int | None, low: int, high: int, server: LogServer) -> int:
    """The first offset whose record is newer than `epoch`: what is before it has been read, and is not read twice.

    Epochs never fall along a partition, so this is a search by halves.
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
    """Records at the broker of another log that the rest of this one will not be read: from each place on, to an end
    that nobody can tell any more. A restart before the next batch is planned records it again."""
    _LOGGER.warning("log %s is retired: %s is not read on from %s", log_id, options.what, dict(places))
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
    """Raises `DataLossError`, or with `failOnDataLoss=false` records the gap at the broker and logs it here."""
    sentence = loss.sentence(options.what)
    if options.fail_on_data_loss:
        raise DataLossError(
            f"{sentence}; to go on without them set failOnDataLoss=false, to begin anew use a new "
            f"checkpoint and consumerGroup"
        )
    _LOGGER.warning("%s; going on at %d", sentence, loss.resume_at)
    try:
        server.gap(
            group=options.consumer_group,
            partition=loss.partition,
            start=loss.start,
            end=loss.end,
            reason=loss.reason,
        )
    except SourceError as error:
        # A gap that nobody can look up must not be passed.
        raise DataLossError(f"{sentence}; and the gap could not be recorded: {error}") from error
