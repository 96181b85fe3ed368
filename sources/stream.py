"""`spark.readStream.format("headwater")`: decides in the driver how far each batch reads. `fetch` does the reading.

What Spark stores is the offset, and nothing else survives: this object is made twice per query and again at each
restart. What it remembers between calls (connections, the group's epoch, the answer of a moment ago) is only there to
save calls.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from sources.errors import OffsetError, UnavailableError
from sources.fetch import RangePartition, fetch, split_ranges
from sources.flight import LogServer
from sources.group import ReaderGroup
from sources.loss import find_loss, pass_or_raise
from sources.offsets import Place, SourceOffset, ranges
from sources.options import SourceOptions
from sources.servers import Servers, unknown_log
from sources.start import ask_offsets, resolve

_LOGGER = logging.getLogger(__name__)

IDLE_SECONDS = 0.1
"""How long "nothing new" is believed: without a trigger interval Spark asks every 11 ms."""

_WARNING_SECONDS = 10.0


@dataclass(slots=True)
class _Session:
    """What a reader has once it talks to brokers; never pickled."""

    servers: Servers
    group: ReaderGroup | None
    # Ends of an AvailableNow run, per log and partition.
    targets: Mapping[str, Mapping[int, Place]] | None = None
    # High watermarks as last seen.
    heads: dict[str, dict[int, Place]] = field(default_factory=dict)
    idle_text: str = ""
    idle_until: float = 0.0
    warned_at: float = float("-inf")
    has_reached_a_broker: bool = False


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One query's view of its brokers."""

    def __init__(self, options: SourceOptions) -> None:
        options.require_stream()
        self._options = options
        self._session: _Session | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_session": None}

    # What Spark calls, in its order.

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Fixes the ends of this run: the high watermarks of now."""
        session = self._open()
        reachable = self._reachable(session)
        session.targets = {log_id: self._heads(log_id, server) for log_id, server in reachable.items()}

    def initialOffset(self) -> dict[str, Any]:
        session = self._open()
        start = resolve(self._options.starting, self._options, session.servers.all(), session.group)
        session.has_reached_a_broker = True
        return start.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch, or `start` as it is when no matching record waits."""
        session = self._open()
        begin = SourceOffset.from_json(start)
        text = begin.text()
        if text == session.idle_text and time.monotonic() < session.idle_until:
            return start
        reachable = self._reachable(session, begin)
        if session.group is not None:
            # Spark asks from here on: everything before is in the sink.
            session.group.commit(begin, reachable)
        end = self._next(session, begin, reachable, limit)
        if end.text() == text:
            session.idle_text, session.idle_until = text, time.monotonic() + IDLE_SECONDS
            return start
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The high watermarks of the last look, for Spark's progress report: how far behind the query is."""
        heads = {} if self._session is None else self._session.heads
        return SourceOffset(heads).to_json() if heads else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = ranges(SourceOffset.from_json(start), SourceOffset.from_json(end))
        addresses = self._open().servers.wait_for(
            {one.log_id for one in found}, timeout_seconds=self._options.poll_timeout_ms / 1_000
        )
        return [RangePartition(one, addresses[one.log_id]) for one in split_ranges(found, self._options.min_partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            raise OffsetError(f"{partition!r} is not a range of this source")
        return fetch(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the group is told in `latestOffset`, which also hears of the last batch of a run."""

    def stop(self) -> None:
        if self._session is not None:
            self._session.servers.close()

    # How far the next batch goes.

    def _next(
        self, session: _Session, begin: SourceOffset, reachable: Mapping[str, LogServer], limit: ReadLimit
    ) -> SourceOffset:
        waiting: dict[str, dict[int, Place]] = {}
        backlog: dict[str, int] = {}
        logs = {log_id: dict(places) for log_id, places in begin.logs.items()}
        for log_id, server in reachable.items():
            try:
                places, backlog[log_id] = self._places_to_read(session, log_id, server, logs.setdefault(log_id, {}))
            except UnavailableError as error:
                self._delay(session, server, error)
                continue
            if places:
                waiting[log_id] = places
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        for log_id, places in waiting.items():
            server = reachable[log_id]
            share = backlog[log_id] / sum(backlog[one] for one in waiting)
            try:
                logs[log_id].update(self._planned(session, log_id, server, logs[log_id], places, rows, share))
            except UnavailableError as error:
                self._delay(session, server, error)
        return SourceOffset({log_id: places for log_id, places in logs.items() if places})

    def _places_to_read(
        self, session: _Session, log_id: str, server: LogServer, known: dict[int, Place]
    ) -> tuple[dict[int, Place], int]:
        """Where to go on in each partition that has offsets to scan, and how many; `known` gets new partitions."""
        wanted = {number: place.next for number, place in known.items()}
        rows = ask_offsets(log_id, server, self._options, epoch_before=wanted)
        for number in known:
            if number not in rows:
                raise OffsetError(
                    f"the checkpoint reads partition {number} of log {log_id}, where {self._options.what} cannot be: "
                    "the subscription was changed; use a new checkpoint"
                )
        session.heads[log_id] = {number: Place(int(row["high_watermark"])) for number, row in rows.items()}
        targets = None if session.targets is None else session.targets.get(log_id, {})
        places, backlog = {}, 0
        for number, row in rows.items():
            if targets is not None and number not in targets:
                continue
            place = known.get(number)
            if place is None:
                # Read from the next batch on: in this one its range is empty.
                known[number] = Place(int(row["log_start"]))
                continue
            loss = find_loss(log_id, number, place, row, server)
            if loss is not None:
                pass_or_raise(loss, self._options, server)
                place = Place(loss.resume_at, resumed_at=loss.resume_at)
            else:
                # Where an earlier batch resumed is that batch's affair.
                place = replace(place, resumed_at=None)
            head = int(row["high_watermark"]) if targets is None else targets[number].next
            if place.next < head:
                places[number] = place
                backlog += head - place.next
        return places, backlog

    def _planned(
        self,
        session: _Session,
        log_id: str,
        server: LogServer,
        known: Mapping[int, Place],
        places: Mapping[int, Place],
        max_rows: int | None,
        share: float,
    ) -> dict[int, Place]:
        """The ends that the broker plans within the limits; only partitions with matching records move."""
        max_bytes = self._options.max_bytes_per_trigger
        answer = server.plan(
            {number: place.next for number, place in places.items()},
            filters=self._options.filters,
            max_records=None if max_rows is None else max(1, int(max_rows * share)),
            max_bytes=None if max_bytes is None else max(1, int(max_bytes * share)),
        )
        if answer["log_id"] != log_id:
            raise UnavailableError(server.address, f"it holds log {answer['log_id']} and not log {log_id}")
        moved = {}
        for number, place in places.items():
            row = answer["partitions"][str(number)]
            end = Place(int(row["end"]), row["epoch"], place.resumed_at)
            if end.next <= place.next:
                continue
            target = None if session.targets is None else session.targets[log_id][number]
            if target is not None and end.next > target.next:
                end = replace(target, resumed_at=place.resumed_at)
            moved[number] = end
        return {number: end for number, end in moved.items() if end != known[number]}

    # Brokers.

    def _open(self) -> _Session:
        if self._session is None:
            name = self._options.consumer_group
            self._session = _Session(Servers(self._options), None if name is None else ReaderGroup(name))
        return self._session

    def _reachable(self, session: _Session, begin: SourceOffset | None = None) -> dict[str, LogServer]:
        """The brokers that answer. At the first contact one must; later all may be away, which only delays."""
        reachable, away = session.servers.reachable()
        if not reachable and not session.has_reached_a_broker:
            raise away[0]
        session.has_reached_a_broker = True
        for error in away:
            self._warn(session, error)
        if not away and begin is not None:
            for log_id in begin.logs:
                if log_id not in reachable:
                    raise unknown_log(log_id, reachable)
        return reachable

    def _heads(self, log_id: str, server: LogServer) -> dict[int, Place]:
        rows = ask_offsets(log_id, server, self._options)
        heads = {number: int(row["high_watermark"]) for number, row in rows.items()}
        rows = ask_offsets(log_id, server, self._options, epoch_before=heads)
        return {number: Place(head, rows[number].get("epoch_before")) for number, head in heads.items()}

    def _delay(self, session: _Session, server: LogServer, error: UnavailableError) -> None:
        session.servers.forget(server)
        self._warn(session, error)

    def _warn(self, session: _Session, error: UnavailableError) -> None:
        if time.monotonic() - session.warned_at >= _WARNING_SECONDS:
            session.warned_at = time.monotonic()
            _LOGGER.warning("%s; its records wait until it is back", error)
