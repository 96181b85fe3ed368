"""When a position follows the records that a query has passed: it has looked at them, and none matches.

A position in the checkpoint moves with matching records. Where few match, it stays far behind, and so does the group,
which holds back from retention all that follows. After a restart nobody knows that these records were looked at, so
each that was removed is a loss. So the position follows with a batch that has no records, as a connector of Debezium
follows the log of a database with its heartbeats (`heartbeat.interval.ms`). docs/adr/0005 says what else was thought
of.

How often depends on the size of the partition and not on time: a busy log gives few such batches, and a quiet one none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PASSED_BYTES_MIN = 1024 * 1024
"""The least that must have been passed before a position follows."""

PASSED_PART = 8
"""A position follows once an eighth of its partition has been passed. Retention removes records from the start, so it
does not reach a position that is this close to the end."""


@dataclass(frozen=True, slots=True)
class Extent:
    """What a broker says about a partition: the answer to `offsets`."""

    log_start: int
    high_watermark: int
    epoch: int
    size_bytes: int

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Extent:
        # Where a broker does not tell the size, a position follows only when it is gone.
        size_bytes = int(row.get("bytes") or 0)
        return cls(int(row["log_start"]), int(row["high_watermark"]), int(row["epoch"]), size_bytes)


def is_far(first: int, end: int, extent: Extent) -> bool:
    """Whether a position at `first` should follow to `end`."""
    if end <= first:
        return False
    if first < extent.log_start:
        # The position is gone already, and this query alone knows that nothing is lost.
        return True
    # Records may have come since the broker was asked.
    offsets = max(end, extent.high_watermark) - extent.log_start
    passed_bytes = extent.size_bytes * (end - first) // offsets
    return passed_bytes >= max(PASSED_BYTES_MIN, extent.size_bytes // PASSED_PART)
