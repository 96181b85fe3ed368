"""Alerts: a stream that lags, a stream that went silent, a job that failed. Each is logged, and posted if a webhook is
set.

An alert is reported when it begins and when it ends, not in between.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum

from broker_edge.errors import SettingsError
from pipelines.jobs.kinds import Progress
from pipelines.jobs.posting import POST_S, is_address
from pipelines.jobs.posting import post as posted
from pipelines.settings import JobsSettings

log = logging.getLogger(__name__)

_WAITING_MAX = 100


class AlertKind(StrEnum):
    LAG = "lag"
    SILENT = "silent"
    RESTARTED = "restarted"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Alert:
    """`over`: the condition that was reported earlier has ended."""

    kind: AlertKind
    job: str
    sentence: str
    over: bool = False


class StreamWatch:
    """Judges one stream by its progress reports and their times."""

    def __init__(self, job: str, policy: JobsSettings, *, now_s: float) -> None:
        self._job, self._policy = job, policy
        self._batch: int | None = None
        self._moved_s = now_s
        self._on: set[AlertKind] = set()

    def look(self, progress: Progress, now_s: float) -> list[Alert]:
        """The alerts that begin or end now."""
        if progress.batch != self._batch:
            self._batch, self._moved_s = progress.batch, now_s
        lag, limit = progress.lag_records, self._policy.lag_records_max
        lags = lag is not None and limit is not None and lag > limit
        silence, longest = now_s - self._moved_s, self._policy.silent_s_max
        # A stream without records to read finishes no batch either.
        is_silent = longest is not None and silence > longest and lag is not None and lag > 0
        return [
            *self._turn(AlertKind.LAG, lags, f"{self._job} lags by {lag} records; the limit is {limit}"),
            *self._turn(
                AlertKind.SILENT,
                is_silent,
                f"{self._job} has finished no batch for {silence:.0f} s and has records to read",
            ),
        ]

    def _turn(self, kind: AlertKind, is_on: bool, sentence: str) -> list[Alert]:
        if is_on == (kind in self._on):
            return []
        self._on ^= {kind}
        return [Alert(kind, self._job, sentence if is_on else f"{self._job}: {kind} is over", over=not is_on)]


class Webhook:
    """Posts alerts as JSON from its own thread. While `_WAITING_MAX` alerts wait, further ones are dropped with a
    warning in the log: a slow receiver must not stop the jobs."""

    def __init__(self, url: str, *, post: Callable[[str, bytes], None] | None = None) -> None:
        if not is_address(url):
            raise SettingsError("jobs.webhook must be an http:// or https:// address")
        self._url = url
        self._post = post or posted
        self._waiting: queue.Queue[Alert | None] = queue.Queue(_WAITING_MAX)
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    def send(self, alert: Alert) -> None:
        try:
            self._waiting.put_nowait(alert)
        except queue.Full:
            log.warning("alert not posted, because %d others are waiting: %s", _WAITING_MAX, alert.sentence)

    def close(self) -> None:
        """Returns when everything was posted, or after a few seconds."""
        try:
            self._waiting.put(None, timeout=POST_S)
        except queue.Full:
            return
        self._thread.join(2 * POST_S)

    def _run(self) -> None:
        while (alert := self._waiting.get()) is not None:
            try:
                self._post(self._url, json.dumps(asdict(alert)).encode())
            except (OSError, ValueError) as error:
                log.warning("alert could not be posted: %s", error)
