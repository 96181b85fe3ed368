"""`spark.read.format("headwater")`: a bounded read whose range is fixed when Spark plans it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from broker_edge.errors import DataLossError, OptionError
from sources.log_server import LogServer
from sources.offsets import OffsetRange, Place, SourceOffset
from sources.options import SourceOptions
from sources.pushdown import Narrowing, clip_above, clip_below, clip_to_topics, narrow, narrow_topics
from sources.servers import Servers, unknown_log
from sources.splits import SplitTask, plan_tasks, read_task
from sources.start import ask_offsets, resolve

_AT_ONCE_US = 1_000_000
"""Allowance for records that arrived together: their log order may differ from their time order, briefly on an idle
machine and for longer on a busy one."""


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Plans in the driver and reads in the tasks. The options are the only state shared between the two."""

    def __init__(self, options: SourceOptions) -> None:
        options.require_batch()
        self._options = options
        self._narrowing = Narrowing()
        # The options that tasks read with: narrowed to fewer topics where the query's filters name some; None if no
        # topic is left.
        self._reading: SourceOptions | None = options

    def partitions(self) -> Sequence[InputPartition]:
        if self._reading is None:
            return []
        servers = Servers(self._options, is_patient=True)
        try:
            logs = servers.all()
            # Ask for the ends first, so that a start resolved at the same moment is never past them.
            ends = {log_id: _ends(log_id, server, self._options) for log_id, server in logs.items()}
            for log_id in self._options.ending.places:
                if log_id not in logs:
                    raise unknown_log(log_id, logs)
            start = resolve(self._options.starting, self._options, logs, None)
            found = self._narrowed(_bounded(start, ends), logs)
        finally:
            servers.close()
        addresses = {log_id: server.place for log_id, server in logs.items()}
        # Spark turns an empty list into one task without a range; `read` returns no rows for it.
        return plan_tasks(found, addresses, self._options)

    @property
    def _time_to_us(self) -> int | None:
        """The read may stop at the first record with this time or a later one: no later record can be early enough to
        pass."""
        back_ms = self._options.max_clock_set_back_ms
        if back_ms is None or self._narrowing.time_to_us is None:
            return None
        return self._narrowing.time_to_us + back_ms * 1_000 + _AT_ONCE_US

    def _narrowed(self, found: list[OffsetRange], logs: Mapping[str, LogServer]) -> list[OffsetRange]:
        """The parts of the ranges that can still have rows under the query's filters."""
        for log_id, server in logs.items():
            theirs = [one for one in found if one.log_id == log_id]
            if theirs and self._narrowing.time_from_us is not None:
                rows = ask_offsets(log_id, server, self._options, time_us=self._narrowing.time_from_us)
                theirs = clip_below(theirs, {number: int(row["offset_for_time"]) for number, row in rows.items()})
            if theirs and self._time_to_us is not None:
                rows = ask_offsets(log_id, server, self._options, time_us=self._time_to_us)
                theirs = clip_above(theirs, {number: int(row["offset_for_time"]) for number, row in rows.items()})
            if theirs and self._reading is not None and self._reading.filters != self._options.filters:
                theirs = clip_to_topics(theirs, server, self._reading.filters or ())
            found = [one for one in found if one.log_id != log_id] + theirs
        clipped = (self._narrowing.clip(one) for one in found)
        return [one for one in clipped if one is not None]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitTask):
            return iter(())
        return read_task(partition, self._reading or self._options)


class FilteringBatchReader(BatchReader):
    """For sessions with filter push-down enabled. Spark rejects a reader that has `pushFilters` in any other
    session."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:
        """Uses the filters to read less. Returns all of them, so Spark applies each of them again."""
        self._narrowing = narrow(filters)
        self._reading = narrow_topics(self._options, self._narrowing.topics)
        return filters


def _ends(log_id: str, server: LogServer, options: SourceOptions) -> dict[int, int]:
    ending = options.ending
    rows = ask_offsets(log_id, server, options, time_us=ending.time_us)
    named: Mapping[int, Place] = ending.places.get(log_id, {})
    ends = {}
    for number, row in rows.items():
        high_watermark = int(row["high_watermark"])
        if number in named:
            ends[number] = named[number].next
            if ends[number] > high_watermark and options.fail_on_data_loss:
                raise DataLossError(
                    f"endingOffsets asks for offset {ends[number]} of partition {number} of log {log_id}, "
                    f"which ends at {high_watermark}: use latest, or set failOnDataLoss=false to read the existing "
                    "records",
                    partition=number,
                    start=high_watermark,
                    end=ends[number],
                )
            ends[number] = min(ends[number], high_watermark)
        else:
            ends[number] = int(row["offset_for_time"]) if ending.kind == "time" else high_watermark
    for number in named:
        if number not in rows:
            raise OptionError(
                f"endingOffsets names partition {number} of log {log_id}, which cannot hold {options.what}"
            )
    return ends


def _bounded(start: SourceOffset, ends: Mapping[str, Mapping[int, int]]) -> list[OffsetRange]:
    return [
        OffsetRange(log_id, number, place.next, ends[log_id][number])
        for log_id, places in sorted(start.logs.items())
        for number, place in sorted(places.items())
        if place.next < ends[log_id].get(number, 0)
    ]
