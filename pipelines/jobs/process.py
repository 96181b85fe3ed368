"""Shared by the command lines of all jobs: waiting for a query, stopping on a signal, one-sentence errors.

exit codes: 0 ended or stopped by a signal, 1 failed, 3 no broker answers or the object store does not answer or
refuses, 4 a broker refuses, 5 a setting or option is wrong
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from broker_edge.errors import HeadwaterError
from broker_edge.escape import SafeFormatter, shown_lines
from pipelines.jobs.children import ended_on_interrupt
from pipelines.settings import SparkSettings
from pipelines.spark.errors import own_error, spark_sentence
from pipelines.spark.jvm_end import CALL_ERRORS, jvm_may_end
from pipelines.spark.session import open_session
from sinks.connect import is_connect
from sinks.store_errors import store_error

T = TypeVar("T")

EXIT_FAILED = 1
EXIT_UNREACHABLE = 3
EXIT_REFUSED = 4
EXIT_SETTINGS = 5

_WAIT_SECONDS = 0.5

_EXIT_CODES = {
    "UnavailableError": EXIT_UNREACHABLE,
    "ConnectError": EXIT_UNREACHABLE,
    "StoreError": EXIT_UNREACHABLE,
    "StoreRefusedError": EXIT_UNREACHABLE,
    "RefusedError": EXIT_REFUSED,
    "OptionError": EXIT_SETTINGS,
    "SettingsError": EXIT_SETTINGS,
    "MissingExtraError": EXIT_SETTINGS,
    "ConfigError": EXIT_SETTINGS,
}


class StopSignal:
    """Set by SIGTERM and SIGINT. Create it in the main thread. A Spark session replaces its handlers, so begin one
    with `started`, or before."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._is_starting = False
        self._listen()

    def started(self, start: Callable[[], T]) -> T | None:
        """Calls `start`, which takes seconds before there is anything to stop. The signal ends it: then the result is
        None, and the processes that it has begun end."""
        self._is_starting = True
        try:
            with ended_on_interrupt():
                return start()
        except KeyboardInterrupt:
            # From our handler, or from that of a session that has just begun.
            self._event.set()
            return None
        except CALL_ERRORS:
            if not self.is_set():
                raise
            return None
        finally:
            self._is_starting = False
            self._listen()

    def _listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._event.set()
        if self._is_starting:
            raise KeyboardInterrupt

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Waits at most that long; returns whether the signal has arrived."""
        return self._event.wait(seconds)


def wait(query: StreamingQuery, stop: StopSignal) -> None:
    """Returns when the query has ended or was stopped. The next start replays a batch that `stop` interrupts."""
    while not stop.is_set():
        if query.awaitTermination(_WAIT_SECONDS):
            return
    query.stop()


def run_query(name: str, settings: SparkSettings, start: Callable[[SparkSession], StreamingQuery]) -> None:
    """Runs the only query of a process, in its own session, until it ends or is told to stop."""
    stop = StopSignal()
    session = stop.started(lambda: open_session(name, settings))
    if session is None:
        return
    mute_query_traces(session.spark)
    try:
        with jvm_may_end(stop.is_set):
            wait(start(session.spark), stop)
    finally:
        with jvm_may_end(stop.is_set):
            session.close()


def mute_query_traces(spark: SparkSession) -> None:
    """Turns off Spark's stack trace of a query that ends with an error; the job reports the error in one sentence.
    Over Spark Connect the server's log is not ours to change."""
    if is_connect(spark):
        return
    configurator = spark._jvm.org.apache.logging.log4j.core.config.Configurator
    off = spark._jvm.org.apache.logging.log4j.Level.OFF
    configurator.setLevel("org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution", off)


def run_job(work: Callable[[], None]) -> int:
    """Runs a job and returns its exit code; an error is reported as one sentence on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("py4j").setLevel(logging.WARNING)
    try:
        work()
    except (HeadwaterError, OSError) as error:
        trouble = store_error(error)
        if trouble is None and not isinstance(error, HeadwaterError):
            raise
        return _failed(type(trouble or error).__name__, str(trouble or error))
    except (PySparkException, Py4JJavaError) as error:
        if (trouble := store_error(error)) is not None:
            return _failed(type(trouble).__name__, str(trouble))
        found = own_error(error)
        if found is None:
            return _failed("Spark", f"{spark_sentence(error)}\n{str(error).strip()}")
        return _failed(*found)
    return 0


def exit_code(name: str) -> int:
    """The exit code for a job that ended with an error of this class."""
    return _EXIT_CODES.get(name, EXIT_FAILED)


def _failed(name: str, sentence: str) -> int:
    sys.stderr.write(f"error: {shown_lines(sentence)}\n")
    return exit_code(name)
