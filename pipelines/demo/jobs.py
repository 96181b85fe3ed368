"""The three jobs of the demo in one Spark session: telemetry, status, and the action engine on a thread.

Wiring and supervision only; the jobs themselves are in their own modules.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from types import TracebackType

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from actions.job import ActionJob
from actions.store import DeltalakeStore
from broker_edge.errors import PipelineError
from pipelines.demo.layout import Layout
from pipelines.jobs.process import mute_query_traces
from pipelines.settings import Settings, TelemetrySettings
from pipelines.spark.errors import own_error
from pipelines.spark.session import SHORT_RUN, spark_session
from pipelines.status import StatusSettings, start_status
from pipelines.telemetry import start_telemetry
from sinks.devices import Fleet

TRIGGER = "1 second"
_JOIN_S = 30.0


class JobError(PipelineError):
    """A job of the demo ended too early."""


class Jobs:
    """Starts Spark when it is created. `start` begins to read; leaving the context ends the jobs and the session."""

    def __init__(self, layout: Layout, settings: Settings) -> None:
        self._layout, self._settings = layout, settings
        # py4j logs the error of each failed call before it raises it.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        self._spark: SparkSession = spark_session(
            "headwater-demo", warehouse=layout.root / "warehouse", config=SHORT_RUN
        )
        mute_query_traces(self._spark)
        self._queries: list[StreamingQuery] = []
        self._fleet = Fleet(settings.fleet())
        self._engine: ActionJob | None = None
        self._engine_thread: threading.Thread | None = None
        self._engine_error: BaseException | None = None

    def start(self) -> None:
        layout = self._layout
        telemetry = {
            "table_path": str(layout.bronze),
            "checkpoint": str(layout.checkpoint("telemetry")),
            "trigger": TRIGGER,
        }
        settings = self._settings.model_copy(update={"telemetry": TelemetrySettings.model_validate(telemetry)})
        self._queries.append(start_telemetry(self._spark, settings))
        status = StatusSettings(
            servers=settings.fleet(),
            root=str(layout.tables),
            checkpoint=str(layout.checkpoint("status")),
            trigger=TRIGGER,
        )
        self._queries.append(start_status(self._spark, status))
        self._engine = ActionJob(DeltalakeStore(layout.tables), self._fleet.publishers)
        self._engine_thread = threading.Thread(
            target=self._run_engine, args=(self._engine,), name="engine", daemon=True
        )
        self._engine_thread.start()

    def check(self) -> None:
        """Raises JobError with the job's own message if one has ended by itself."""
        if self._engine_error is not None:
            raise JobError(f"the action engine ended: {self._engine_error}") from self._engine_error
        for query in self._queries:
            if query.isActive:
                continue
            error = query.exception()
            found = own_error(error) if error is not None else None
            reason = found[1] if found is not None else str(error or "it reports no error").strip()
            raise JobError(f"the query {query.name} ended: {reason}")

    def stop(self) -> None:
        """Ends engine and queries; a started batch is then either complete or absent."""
        if self._engine is not None and self._engine_thread is not None:
            self._engine.stop()
            self._engine_thread.join(_JOIN_S)
        for query in self._queries:
            with suppress(PySparkException):
                query.stop()
        self._queries = []

    def __enter__(self) -> Jobs:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self._fleet.close()
            self._spark.stop()

    def _run_engine(self, engine: ActionJob) -> None:
        try:
            engine.run()
        except BaseException as error:
            self._engine_error = error
