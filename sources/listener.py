"""How far a query lags: in records from Spark's progress, in bytes and seconds from the brokers.

`LagListener` passes a `Lag` to each of its publishers after every batch; `JsonLines` and `PrometheusFile` are
publishers. If a publisher or a broker fails, the listener logs a warning and the query continues. Records, bytes and
seconds cover all waiting records of the partitions that the query reads, whether they match its filters or not.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from broker_edge.errors import HeadwaterError, OffsetError
from sources.offsets import SourceOffset, is_offset
from sources.options import SourceOptions
from sources.servers import Servers
from sources.start import ask_offsets

_LOGGER = logging.getLogger(__name__)

ASK_SECONDS = 5.0
"""Minimum interval between two requests to the brokers for bytes and seconds."""

_READ_SECONDS_MAX = 10.0


@dataclass(frozen=True, slots=True)
class Behind:
    """What waits at the brokers. `bytes` is estimated from the size of each partition; `seconds` is the age of the
    oldest unread record, 0 if there is none."""

    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a query lagged when a batch ended. `timestamp` is Spark's, ISO 8601 in UTC; `bytes` and `seconds` are
    None if the brokers were not asked or did not answer."""

    query: str
    query_id: str
    batch_id: int
    timestamp: str
    records: int
    by_log: Mapping[str, int]
    bytes: int | None
    seconds: float | None
    input_rows: int
    rows_per_second: float


Publish = Callable[[Lag], None]


def records_behind(end: SourceOffset, heads: SourceOffset) -> dict[str, int]:
    """Offsets between the end of a batch and the high watermarks known at that time, by log."""
    return {
        log_id: sum(max(0, head.next - end.logs.get(log_id, {}).get(n, head).next) for n, head in places.items())
        for log_id, places in heads.logs.items()
    }


def ask_behind(options: SourceOptions, end: SourceOffset) -> Behind | None:
    """Current bytes and seconds from the brokers; None if a broker that the query reads does not answer."""
    servers = Servers(options)
    try:
        reachable, _ = servers.reachable(end.owners)
        if not set(end.logs) <= set(reachable):
            return None
        size, oldest_us = 0.0, None
        for log_id, places in end.logs.items():
            server = reachable[log_id]
            for number, row in ask_offsets(log_id, server, options).items():
                log_start, head = int(row["log_start"]), int(row["high_watermark"])
                first = max(places[number].next, log_start) if number in places else log_start
                if first >= head:
                    continue
                size += int(row["bytes"]) * (head - first) / (head - log_start)
                answer = server.get(number, first, first + 1, filters=None, timeout_seconds=_READ_SECONDS_MAX)
                for batch, _ in answer:
                    for moment in batch.column("timestamp").cast("int64").to_pylist():
                        oldest_us = moment if oldest_us is None else min(oldest_us, moment)
        seconds = 0.0 if oldest_us is None else max(0.0, time.time() - oldest_us / 1e6)
        return Behind(int(size), seconds)
    except HeadwaterError as error:
        _LOGGER.warning("the lag in bytes and seconds is unknown: %s", error)
        return None
    finally:
        servers.close()


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """`spark.streams.addListener(LagListener([JsonLines(path)]))` covers all queries of a session that read
    `headwater`.

    `options` (`parse_options` of the queries' options) lets it ask the brokers for bytes and seconds.
    """

    def __init__(self, publishers: list[Publish], *, options: SourceOptions | None = None) -> None:
        self._publishers = publishers
        self._options = options
        self._asked: dict[str, float] = {}

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to publish yet."""

    def onQueryProgress(self, event: Any) -> None:
        try:
            lag = self._lag(event.progress)
        except (OffsetError, ValueError) as error:
            _LOGGER.warning("cannot parse the progress of a query: %s", error)
            return
        if lag is None:
            return
        for publish in self._publishers:
            try:
                publish(lag)
            except OSError as error:
                _LOGGER.warning("the lag of query %s was not published: %s", lag.query, error)

    def onQueryIdle(self, event: Any) -> None:
        """The last published lag is still valid."""

    def onQueryTerminated(self, event: Any) -> None:
        self._asked.pop(str(event.id), None)

    def _lag(self, progress: Any) -> Lag | None:
        ends: dict[str, Any] = {}
        owners: dict[str, str] = {}
        by_log: dict[str, int] = {}
        for source in progress.sources:
            if not (source.endOffset and source.latestOffset):
                continue
            end, heads = json.loads(source.endOffset), json.loads(source.latestOffset)
            if not is_offset(end):
                # This is another source of the query.
                continue
            place = SourceOffset.from_json(end)
            ends |= place.logs
            owners |= place.owners
            for log_id, count in records_behind(place, SourceOffset.from_json(heads)).items():
                by_log[log_id] = by_log.get(log_id, 0) + count
        if not ends:
            return None
        behind = self._behind(str(progress.id), SourceOffset(ends, owners))
        return Lag(
            query=progress.name or str(progress.id),
            query_id=str(progress.id),
            batch_id=progress.batchId,
            timestamp=progress.timestamp,
            records=sum(by_log.values()),
            by_log=by_log,
            bytes=None if behind is None else behind.bytes,
            seconds=None if behind is None else round(behind.seconds, 3),
            input_rows=progress.numInputRows,
            rows_per_second=round(progress.processedRowsPerSecond, 1),
        )

    def _behind(self, query_id: str, end: SourceOffset) -> Behind | None:
        if self._options is None or time.monotonic() - self._asked.get(query_id, float("-inf")) < ASK_SECONDS:
            return None
        self._asked[query_id] = time.monotonic()
        return ask_behind(self._options, end)


class JsonLines:
    """Appends each lag as a line of JSON."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, lag: Lag) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(lag)) + "\n")


class PrometheusFile:
    """Keeps the newest lag of each query in a file for the node exporter's textfile collector. Replaces the file
    atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._newest: dict[str, Lag] = {}

    def __call__(self, lag: Lag) -> None:
        known = self._newest.get(lag.query)
        if lag.seconds is None and known is not None:
            # Bytes and seconds are asked for less often; the previous values remain until the next answer.
            values = asdict(lag) | {"bytes": known.bytes, "seconds": known.seconds}
            lag = Lag(**values)
        self._newest[lag.query] = lag
        partial = self._path.with_name(self._path.name + ".new")
        partial.write_text(prometheus_text(list(self._newest.values())), encoding="utf-8")
        os.replace(partial, self._path)


_METRICS = (
    ("headwater_query_lag_records", "records", "records that the query has not read yet"),
    ("headwater_query_lag_bytes", "bytes", "estimated size of the unread records in bytes"),
    ("headwater_query_lag_seconds", "seconds", "age of the oldest unread record in seconds"),
    ("headwater_query_rows_per_second", "rows_per_second", "rows per second of the last batch"),
    ("headwater_query_batch_id", "batch_id", "number of the last batch"),
)


def prometheus_text(lags: list[Lag]) -> str:
    """The lags in Prometheus text format: one gauge per metric, labelled by query."""
    lines = []
    for name, field_name, meaning in _METRICS:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge"]
        for lag in sorted(lags, key=lambda one: one.query):
            value = getattr(lag, field_name)
            if value is not None:
                label = lag.query.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
                lines.append(f'{name}{{query="{label}"}} {value}')
    return "\n".join(lines) + "\n"
