"""`spark.readStream.format("headwater")`: the methods that Spark calls, in the order of the calls.

`planner` decides how far a batch goes; `splits` divides it into tasks and reads them.

Spark stores the offset and nothing else: this object is created twice per query and again at each restart. What it
remembers between calls (connections, the group's epoch, the last answer) only saves calls.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from broker_edge.errors import OffsetError, OptionError, UnavailableError
from broker_edge.sync import sync_checkpoint
from sources.group import ReaderGroup
from sources.log_server import LogServer
from sources.loss import report_retired
from sources.offsets import SourceOffset, ranges
from sources.options import SourceOptions
from sources.planner import Heads, find_heads, plan_batch
from sources.scans import Scans
from sources.servers import Servers, unknown_log
from sources.splits import SplitTask, plan_tasks, read_task
from sources.start import resolve

_LOGGER = logging.getLogger(__name__)

IDLE_SECONDS = 0.1
"""How long the answer "nothing new" is reused: without a trigger interval Spark asks every 11 ms."""

_WARNING_SECONDS = 10.0


@dataclass(slots=True)
class _Session:
    """The state of a reader that talks to brokers; never pickled."""

    servers: Servers
    group: ReaderGroup | None
    # Whether this is an AvailableNow run, and its end per log and partition, once it is known.
    is_bounded: bool = False
    targets: Heads | None = None
    # The last known high watermarks.
    heads: Heads = field(default_factory=dict)
    scans: Scans = field(default_factory=dict)
    idle_text: str = ""
    # The offset up to which the checkpoint is known to be on disk.
    kept_text: str = ""
    idle_until: float = 0.0
    warned_at: float = float("-inf")
    # When a batch with records was last planned, for maxTriggerDelay. As in Kafka, the first batch never waits.
    planned_at: float = float("-inf")
    # Spark asks twice, and a broker may appear or disappear in between.
    initial: SourceOffset | None = None
    has_reached_a_broker: bool = False
    # Whether every broker answered at the last check.
    is_complete: bool = False


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """One query's view of its brokers."""

    def __init__(self, options: SourceOptions) -> None:
        options.require_stream()
        self._options = options
        self._session: _Session | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_session": None}

    # The methods that Spark calls, in the order of the calls.

    def getDefaultReadLimit(self) -> ReadLimit:
        rows = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """This run ends at the high watermarks that the first plan sees: only with an offset of the checkpoint is it
        known which broker each log belongs to."""
        self._open().is_bounded = True

    def initialOffset(self) -> dict[str, Any]:
        """Where the query starts. A start that depends only on the logs does not need every broker: the log of an
        unreachable one joins when the broker is back, and is then read from its oldest record too."""
        session = self._open()
        if session.initial is None:
            starting = self._options.starting
            with session.servers.patient():
                servers = self._reachable(session) if starting.kind == "earliest" else session.servers.all()
                is_complete = starting.kind != "earliest" or session.is_complete
                initial = resolve(starting, self._options, servers, session.group, is_complete=is_complete)
            session.initial = replace(initial, owners=session.servers.owners)
            session.has_reached_a_broker = True
        return session.initial.to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The end of the next batch, or `start` unchanged if no matching record waits and no position follows what was
        looked at."""
        session = self._open()
        begin = SourceOffset.from_json(start)
        text = begin.text()
        if text == session.idle_text and monotonic() < session.idle_until:
            return start
        reachable = self._reachable(session, begin)
        begin = self._without_retired(session, begin, reachable)
        if session.is_bounded and session.targets is None:
            session.targets = find_heads(session.servers, reachable, self._options)
        if session.group is not None:
            # Spark asks from here on, so all earlier records are in the sink.
            self._keep_checkpoint(session, text)
            _, away = session.servers.ask(reachable, partial(session.group.commit, begin, session.scans))
            for error in away:
                self._warn(session, error)
        delay_seconds = self._options.max_trigger_delay_ms / 1_000
        batch = plan_batch(
            begin,
            session.servers,
            reachable,
            self._options,
            max_rows=limit.max_rows if isinstance(limit, ReadMaxRows) else None,
            targets=session.targets,
            scans=session.scans,
            # An AvailableNow run must not wait for records that may never arrive.
            may_wait=not session.is_bounded and monotonic() - session.planned_at < delay_seconds,
        )
        session.heads = {**session.heads, **batch.heads}
        for error in batch.away:
            self._warn(session, error)
        if batch.records:
            session.planned_at = monotonic()
        end = replace(batch.end, owners=session.servers.owners)
        if end.text() == text:
            session.idle_text, session.idle_until = text, monotonic() + IDLE_SECONDS
            return start
        return end.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The high watermarks of the last plan, for the lag in Spark's progress report."""
        heads = {} if self._session is None else self._session.heads
        return SourceOffset(heads).to_json() if heads else None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        last = SourceOffset.from_json(end)
        found = ranges(SourceOffset.from_json(start), last)
        found = [one for one in found if one.log_id not in self._options.retire_logs]
        addresses = self._open().servers.wait_for(
            {one.log_id for one in found},
            timeout_seconds=self._options.poll_timeout_ms / 1_000,
            owners=last.owners,
        )
        return plan_tasks(found, addresses, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, SplitTask):
            raise OffsetError(f"{partition!r} is not a task of this source")
        return read_task(partition, self._options)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: `latestOffset` informs the group, because it also learns of the last batch of a run."""

    def stop(self) -> None:
        if self._session is not None:
            self._session.servers.close()

    def _keep_checkpoint(self, session: _Session, text: str) -> None:
        """Brokers may delete what a group has finished, so that a lost checkpoint could not be replayed."""
        if self._options.sync_checkpoint is not None and text != session.kept_text:
            sync_checkpoint(Path(self._options.sync_checkpoint))
            session.kept_text = text

    # Brokers.

    def _open(self) -> _Session:
        if self._session is None:
            name = self._options.consumer_group
            self._session = _Session(Servers(self._options), None if name is None else ReaderGroup(name))
        return self._session

    def _reachable(self, session: _Session, begin: SourceOffset | None = None) -> dict[str, LogServer]:
        """The brokers that answer. At the first contact one must; later all may be unreachable, which only causes
        delay."""
        reachable, away = session.servers.reachable(None if begin is None else begin.owners)
        if not reachable and not session.has_reached_a_broker:
            raise away[0]
        session.has_reached_a_broker, session.is_complete = True, not away
        for error in away:
            self._warn(session, error)
        retired = self._options.retire_logs
        for log_id in retired:
            if log_id in reachable:
                raise OptionError(
                    f"retireLogs names log {log_id}, which {reachable[log_id].address} still holds: "
                    "remove that broker from option servers, or the log from retireLogs"
                )
        if not away and begin is not None:
            for log_id in begin.logs:
                if log_id not in reachable and log_id not in retired:
                    raise unknown_log(log_id, reachable)
        return reachable

    def _without_retired(
        self, session: _Session, begin: SourceOffset, reachable: Mapping[str, LogServer]
    ) -> SourceOffset:
        """Drops the retired logs after their unread rest has been recorded as a gap."""
        dropped = {log_id: begin.logs[log_id] for log_id in self._options.retire_logs if log_id in begin.logs}
        if not dropped or not reachable:
            return begin
        try:
            for log_id, places in dropped.items():
                report_retired(log_id, places, self._options, next(iter(reachable.values())))
        except UnavailableError as error:
            # They are dropped with a later batch, once the gap has been recorded.
            self._warn(session, error)
            return begin
        return replace(begin, logs={one: places for one, places in begin.logs.items() if one not in dropped})

    def _warn(self, session: _Session, error: UnavailableError) -> None:
        if monotonic() - session.warned_at >= _WARNING_SECONDS:
            session.warned_at = monotonic()
            _LOGGER.warning("%s; its records wait until it is back", error)
