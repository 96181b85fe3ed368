"""Whether a broker's answers can be used: what it says about partitions, and the records that a task has asked for.

A row keeps the log, the partition and the offset under which it came, and they are its identity in every table. So a
broker must not be able to send rows in the name of another one, rows twice, or bytes that no reader of the table can
read. What the payloads contain is not looked at.

Positions become part of a checkpoint. Something there that is no position would end the query at every start, also
without the broker that said it.
"""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from broker_edge.errors import RefusedError
from broker_edge.fields import RECORD
from broker_edge.flight import JsonObject
from broker_edge.values import whole_or_none
from sources.broker_errors import unusable
from sources.offsets import OffsetRange

_NEEDED = tuple(field.name for field in RECORD.fields if not field.nullable)
_TIME_MAX_US = 253_402_300_799_999_999
"""The end of the year 9999, the latest timestamp of Spark and Arrow."""
PARTITIONS_MAX = 4_096
"""More than a broker can have. The checkpoint keeps each of them in every offset."""
_PARTITION_MAX = 2**31 - 1
_NUMBER = re.compile(r"0|[1-9][0-9]{0,9}")
_POSITIONS = (
    "log_start", "high_watermark", "epoch", "epoch_before", "offset_for_time", "bytes", "end", "scanned", "records",
    "initial", "committed",
)  # fmt: skip


def with_partitions(answer: JsonObject, *, server: str) -> JsonObject:
    """The answer, if what it says about partitions can be stored and read again; else raises RefusedError."""
    try:
        wrong = _wrong_partition(answer["partitions"])
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        wrong = f"something is missing or has another type ({error!r:.100})"
    if wrong is not None:
        raise unusable(server, wrong)
    return answer


def _wrong_partition(rows: JsonObject) -> str | None:
    if len(rows) > PARTITIONS_MAX:
        return f"it has {len(rows):,} partitions, and no broker has more than {PARTITIONS_MAX:,}"
    for text, row in rows.items():
        if _NUMBER.fullmatch(text) is None or int(text) > _PARTITION_MAX:
            return f"{text!r:.60} is not the number of a partition"
        for name in _POSITIONS:
            whole_or_none(row.get(name))
    return None


def require_asked_for(batch: pa.RecordBatch, following: int, piece: OffsetRange, *, server: str) -> None:
    """Raises RefusedError unless the batch, in the declared schema, holds records of `piece` below `following`, each
    offset once and in order, and `following` does not go back."""
    wrong = _wrong(batch, following, piece)
    if wrong is not None:
        raise _refused(server, piece, wrong)


def require_readable(batch: pa.RecordBatch, piece: OffsetRange, *, server: str) -> None:
    """Raises RefusedError unless the buffers are what they claim to be: Arrow does not look at what the network brings,
    and computes with offsets into other memory, or with texts that are not UTF-8."""
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise _refused(server, piece, f"they are not valid Arrow: {error}") from error


def _refused(server: str, piece: OffsetRange, wrong: str) -> RefusedError:
    asked = f"the records [{piece.start}, {piece.end}) of partition {piece.partition} of log {piece.log_id}"
    return unusable(server, f"{asked} were asked for, but {wrong}")


def _wrong(batch: pa.RecordBatch, following: int, piece: OffsetRange) -> str | None:
    if following < piece.start:
        return f"the answer goes back to {following}"
    count = batch.num_rows
    if not count:
        return None
    for name in _NEEDED:
        if batch.column(name).null_count:
            return f"some have no {name}"
    if not pc.all(pc.equal(batch.column("log_id"), piece.log_id)).as_py():
        return "some are of another log"
    # Without nulls these are views of the buffers, for which numpy needs a fraction of the time.
    partitions, offsets = (batch.column(name).to_numpy() for name in ("partition", "offset"))
    if not (partitions == piece.partition).all():
        return "some are of another partition"
    first, last = int(offsets[0]), int(offsets[-1])
    if first < piece.start or last >= min(following, piece.end):
        return f"some have the offsets {first} to {last}"
    if not (offsets[1:] > offsets[:-1]).all():
        return "their offsets do not rise"
    times = batch.column("timestamp").view(pa.int64()).to_numpy()
    if times.min() < 0 or times.max() > _TIME_MAX_US:
        return "some have a time before 1970 or after 9999"
    return None
