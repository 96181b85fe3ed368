"""A job as the runner sees it: start, progress, stop. Either a streaming query or a loop on its own thread.

What a job does is in its own module. A job never restarts itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql.streaming import StreamingQuery

from broker_edge.errors import OffsetError
from pipelines.spark.jvm_end import CALL_ERRORS
from sources.listener import records_behind
from sources.offsets import SourceOffset, is_offset

_JOIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of the newest finished batch; empty for a job without batches."""

    batch: int | None = None
    rows: int | None = None
    rows_per_s: float | None = None
    batch_s: float | None = None
    lag_records: int | None = None


class Job(Protocol):
    """`start` may raise, and may be called again after the job has ended."""

    @property
    def name(self) -> str: ...

    @property
    def is_watched(self) -> bool:
        """Whether its lag can cause alerts."""

    def start(self) -> None: ...

    def ended(self) -> bool: ...

    def error(self) -> BaseException | None:
        """The error that ended the job, if there was one."""

    def progress(self) -> Progress: ...

    def stop(self) -> None:
        """Returns when the job has ended. A started batch is then either complete or absent."""


class StreamJob:
    """A streaming query."""

    def __init__(
        self, name: str, make: Callable[[], StreamingQuery], *, is_watched: bool = True, has_splits: bool = False
    ) -> None:
        self._name = name
        self._is_watched = is_watched
        self._has_splits = has_splits
        self._make = make
        self._query: StreamingQuery | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def is_watched(self) -> bool:
        return self._is_watched

    def start(self) -> None:
        self._query = self._make()

    def ended(self) -> bool:
        return self._query is not None and not self._query.isActive

    def error(self) -> BaseException | None:
        return None if self._query is None or self._query.isActive else self._query.exception()

    def progress(self) -> Progress:
        last = None if self._query is None else self._query.lastProgress
        return Progress() if last is None else progress_of(json.loads(last.json), has_splits=self._has_splits)

    def stop(self) -> None:
        if self._query is not None:
            # If the JVM has ended, so has the query, and the other jobs still have to be stopped.
            with suppress(*CALL_ERRORS):
                self._query.stop()


class LoopJob:
    """Work on a thread: `work` gets a function that waits the given seconds and returns whether to end."""

    is_watched = False

    def __init__(self, name: str, work: Callable[[Callable[[float], bool]], None]) -> None:
        self._name = name
        self._work = work
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def name(self) -> str:
        return self._name

    def start(self) -> None:
        self._error = None
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def ended(self) -> bool:
        return self._thread is not None and not self._thread.is_alive()

    def error(self) -> BaseException | None:
        return self._error if self.ended() else None

    def progress(self) -> Progress:
        return Progress()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        try:
            self._work(self._stop.wait)
        except BaseException as error:
            self._error = error


def progress_of(report: Mapping[str, Any], *, has_splits: bool = False) -> Progress:
    """Converts Spark's report of a batch. The lag is what the source had beyond the end of the batch.

    `has_splits`: Spark's row count counts splits, so the rows are taken from the offsets instead.
    """
    took_ms = report.get("durationMs", {}).get("triggerExecution")
    sources = report.get("sources") or ()
    rows: int | None = int(report.get("numInputRows") or 0)
    rate = _finite(report.get("processedRowsPerSecond"))
    if has_splits:
        # Spark reports the first batch of a checkpoint without its start.
        rows = _between(sources, "startOffset", "endOffset")
        rate = rows / (took_ms / 1_000) if took_ms and rows is not None else None
    return Progress(
        batch=int(report["batchId"]),
        rows=rows,
        rows_per_s=rate,
        batch_s=None if took_ms is None else took_ms / 1_000,
        lag_records=_between(sources, "endOffset", "latestOffset"),
    )


def _between(sources: Any, low: str, high: str) -> int | None:
    """Records between two offsets of the batch, whether they match the filters or not; None if a source has no such
    offsets."""
    count = 0
    for source in sources:
        begin, end = _offset(source.get(low)), _offset(source.get(high))
        if begin is None or end is None:
            return None
        count += sum(records_behind(begin, end).values())
    return count


def _offset(value: Any) -> SourceOffset | None:
    """An offset of the source `headwater`; None for the offset of another source."""
    with suppress(ValueError, OffsetError):
        found = json.loads(value) if isinstance(value, str) else value
        if is_offset(found):
            return SourceOffset.from_json(dict(found))
    return None


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value == value and abs(value) != float("inf") else None
