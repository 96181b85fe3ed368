"""Keeps jobs running: starts them, restarts those whose error may pass, stops all of them together.

One thread checks once per second. A job that cannot continue ends the run, because a pipeline that runs only in part
but looks alive is worse than none; the exit code tells the supervisor of the process.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from broker_edge.errors import JobFailedError
from pipelines.jobs.alerts import Alert, AlertKind, StreamWatch
from pipelines.jobs.kinds import Job, Progress
from pipelines.jobs.retry import Backoff, error_name, is_final, sentence
from pipelines.settings import JobsSettings

log = logging.getLogger(__name__)


class JobState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class JobView:
    """The displayed state of a job. `said`: why it is paused."""

    job: str
    state: JobState
    progress: Progress
    restarts: int
    said: str | None = None


class Screen(Protocol):
    def show(self, views: Sequence[JobView]) -> None: ...

    def alert(self, alert: Alert) -> None: ...


class RunFailedError(JobFailedError):
    """A job could not continue. `cause_name` is the class of its error."""

    def __init__(self, job: str, cause: BaseException) -> None:
        super().__init__(f"{job}: {sentence(cause)}")
        self.cause_name = error_name(cause)


def _stop(job: Job) -> None:
    try:
        job.stop()
    except Exception as error:
        log.warning("%s could not be stopped: %s", job.name, sentence(error))


@dataclass(slots=True)
class _Kept:
    job: Job
    backoff: Backoff
    watch: StreamWatch
    state: JobState = JobState.WAITING
    began_s: float = 0.0
    again_s: float = 0.0
    restarts: int = 0
    said: str | None = None


class LogScreen:
    """Displays nothing and logs alerts: for a job that runs alone."""

    def show(self, views: Sequence[JobView]) -> None:
        """Nothing."""

    def alert(self, alert: Alert) -> None:
        log.warning("%s", alert.sentence)


def run_alone(job: Job, policy: JobsSettings, stop: Callable[[float], bool]) -> None:
    """Runs one job until `stop`, and restarts it where that can help. Raises the error that it cannot recover from."""
    try:
        Runner([job], policy, LogScreen()).run(stop)
    except RunFailedError as failed:
        raise (failed.__cause__ or failed) from None


class Runner:
    """Runs jobs in the given order. `clock` and the wait of `run` are seams for tests."""

    def __init__(
        self,
        jobs: Sequence[Job],
        policy: JobsSettings,
        screen: Screen,
        *,
        on_alert: Callable[[Alert], None] = lambda alert: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy, self._screen, self._on_alert, self._clock = policy, screen, on_alert, clock
        now_s = clock()
        self._kept = [_Kept(job, Backoff(policy), StreamWatch(job.name, policy, now_s=now_s)) for job in jobs]

    def run(self, stop: Callable[[float], bool]) -> None:
        """Runs until `stop(seconds)`, which waits at most that long, returns True, or every job has ended by itself.

        Raises RunFailedError when a job cannot continue. In any case every job has been told to stop when this
        returns, and has `stop_s` of the policy to do it.
        """
        try:
            while True:
                for kept in self._kept:
                    self._look(kept)
                self._screen.show([self._view(kept) for kept in self._kept])
                if all(kept.state is JobState.ENDED for kept in self._kept) or stop(self._policy.look_s):
                    return
        finally:
            self._stop()

    def _stop(self) -> None:
        """Stops all jobs at once. One that does not end in time, as while a store does not answer, is left behind: a
        job may be killed at any point, and its next start repeats what it had begun."""
        threads = [
            threading.Thread(target=_stop, args=(kept.job,), name=kept.job.name, daemon=True)
            for kept in reversed(self._kept)
            if kept.state is not JobState.WAITING
        ]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + self._policy.stop_s
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        left = [thread.name for thread in threads if thread.is_alive()]
        if left:
            names, within = " and ".join(left), f"within {self._policy.stop_s:g} s"
            log.warning("%s did not end %s: the next start repeats what was begun", names, within)

    def _look(self, kept: _Kept) -> None:
        now_s = self._clock()
        if kept.state is JobState.WAITING or (kept.state is JobState.PAUSED and now_s >= kept.again_s):
            self._start(kept, now_s)
        elif kept.state is JobState.RUNNING:
            if kept.job.is_watched:
                for alert in kept.watch.look(kept.job.progress(), now_s):
                    self._tell(alert)
            if kept.job.ended():
                error = kept.job.error()
                if error is None:
                    kept.state = JobState.ENDED
                else:
                    self._failed(kept, error, now_s)

    def _start(self, kept: _Kept, now_s: float) -> None:
        kept.began_s = now_s
        try:
            kept.job.start()
        except Exception as error:
            self._failed(kept, error, now_s)
            return
        kept.state, kept.said = JobState.RUNNING, None

    def _failed(self, kept: _Kept, error: BaseException, now_s: float) -> None:
        name = kept.job.name
        pause = None if is_final(error) else kept.backoff.failed(now_s - kept.began_s)
        if pause is None:
            self._tell(Alert(AlertKind.STOPPED, name, f"{name} stopped: {sentence(error)}"))
            raise RunFailedError(name, error) from error
        kept.state, kept.again_s, kept.said = JobState.PAUSED, now_s + pause, sentence(error)
        kept.restarts += 1
        self._tell(Alert(AlertKind.RESTARTED, name, f"{name} failed and restarts in {pause:g} s: {kept.said}"))

    def _tell(self, alert: Alert) -> None:
        self._screen.alert(alert)
        self._on_alert(alert)

    @staticmethod
    def _view(kept: _Kept) -> JobView:
        return JobView(kept.job.name, kept.state, kept.job.progress(), kept.restarts, kept.said)
