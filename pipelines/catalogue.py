"""The jobs by name, created from the settings: what each needs, and which can run at the same time.

Wiring only. With `available_now` every job does the available work and ends; then the order matters, as `STAGES`
defines it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from pyspark.sql import SparkSession

from broker_edge.errors import SettingsError, StoreError, StoreRefusedError
from pipelines.actions import run_engine
from pipelines.gaps import GapCopier, copy_until
from pipelines.job_names import JOBS, STAGES
from pipelines.jobs.kinds import Job, LoopJob, StreamJob
from pipelines.maintenance import tend_until
from pipelines.quality.job import QualityJob, check_until
from pipelines.settings import Settings
from pipelines.settings.places import TablePlace
from pipelines.silver.job import start_silver
from pipelines.spark.decision import DATABRICKS_ENV
from pipelines.status import StatusSettings, start_status
from pipelines.telemetry import start_telemetry
from sinks import tables
from sinks.probe import require_safe_commits
from sinks.store import is_s3

JOB_NAMES = tuple(JOBS)
_STREAMS = ("telemetry", "status", "silver")

SparkOf = Callable[[], SparkSession]


def names_of(wanted: Sequence[str]) -> list[str]:
    """The names of the requested jobs, in start order; `all` means all of them."""
    unknown = next((name for name in wanted if name not in (*JOB_NAMES, "all")), None)
    if unknown is not None:
        raise SettingsError(f"there is no job {unknown}: {', '.join(JOB_NAMES)}, or all")
    return [name for name in JOB_NAMES if name in wanted or "all" in wanted]


def needs_spark(names: Sequence[str], settings: Settings) -> bool:
    """Whether any of the jobs needs a Spark session: streams do, and other jobs if tables are given by name."""
    named = settings.silver.root is None or settings.telemetry.table is not None
    return any(name in _STREAMS or (named and name != "actions") for name in names)


def refuse_stores(names: Sequence[str], settings: Settings) -> None:
    """Asks the stores of these jobs before a Spark session is started, which takes long. Raises StoreRefusedError. A
    store that does not answer is left to the jobs, which ask again."""
    tables_and_checkpoints = {
        "telemetry": (settings.telemetry.table_path, settings.telemetry.checkpoint),
        "status": (settings.actions.root, settings.status.checkpoint),
        "actions": (settings.actions.root,),
        "silver": (settings.silver.root, settings.silver.checkpoint),
    }
    paths = [path for name in names for path in tables_and_checkpoints.get(name, ())]
    try:
        for path in paths:
            # Other stores are asked by the job that writes there, and the platform knows its own.
            if path is not None and is_s3(path) and DATABRICKS_ENV not in os.environ:
                require_safe_commits(path, settings.storage.access())
    except StoreRefusedError:
        raise
    except StoreError:
        return


def stages(names: Sequence[str], *, available_now: bool) -> list[list[str]]:
    """Groups of jobs that run at the same time, in order."""
    if not available_now:
        return [list(names)]
    return [found for stage in STAGES if (found := [name for name in stage if name in names])]


def make_job(name: str, settings: Settings, spark: SparkOf, *, available_now: bool, beside: Sequence[str] = ()) -> Job:
    """A job that has not been started. `spark` is called when a job that needs it starts. `beside` names the jobs of
    this process."""
    match name:
        case "telemetry":
            writer, by_path = settings.bronze.writer, settings.telemetry.table is None
            return StreamJob(
                name,
                lambda: start_telemetry(spark(), settings, available_now=available_now),
                has_splits=writer == "files" or (writer == "auto" and by_path),
            )
        case "status":
            # Few records match, and many others are in the same partitions, so its lag says nothing.
            return StreamJob(name, lambda: _start_status(spark(), settings, available_now), is_watched=False)
        case "silver":
            return StreamJob(name, lambda: start_silver(spark(), settings, available_now=available_now))
        case "actions":
            return LoopJob(name, lambda stop: _run_engine(settings, stop, available_now))
        case _:
            # Silver's tables in S3 may be maintained by the process that writes them, through the same session.
            is_with_silver = name == "maintenance" and "silver" in beside
            session = spark if is_with_silver or needs_spark([name], settings) else None
            return LoopJob(name, _loop(name, settings, session, available_now, is_with_silver=is_with_silver))


def _start_status(spark: SparkSession, settings: Settings, available_now: bool) -> object:
    make_action_tables(settings)
    chosen = StatusSettings(
        servers=settings.fleet(),
        root=settings.actions.root,
        checkpoint=settings.status.checkpoint,
        tenant=settings.tenant,
        consumer_group=settings.status.consumer_group,
        trigger=settings.status.trigger,
        max_offsets_per_trigger=settings.status.max_offsets_per_trigger,
        fail_on_data_loss=settings.status.fail_on_data_loss,
        uplink_topic=settings.status.uplink_topic,
        access=settings.storage.access(),
        sync=settings.bronze.sync,
    )
    return start_status(spark, chosen, available_now=available_now)


def make_action_tables(settings: Settings) -> None:
    """Makes the missing tables of actions; refuses a store that cannot commit safely."""
    root, access = settings.actions.root, settings.storage.access()
    require_safe_commits(root, access)
    tables.create_by_path(root, storage_options=access.deltalake())


def _run_engine(settings: Settings, stop: Callable[[float], bool], available_now: bool) -> None:
    make_action_tables(settings)
    run_engine(settings, stop, once=available_now)


def _loop(
    name: str, settings: Settings, spark: SparkOf | None, available_now: bool, *, is_with_silver: bool
) -> Callable[[Callable[[float], bool]], None]:
    def work(stop: Callable[[float], bool]) -> None:
        def end(seconds: float) -> bool:
            return available_now or stop(seconds)

        session = None if spark is None else spark()
        if name == "gaps":
            place = TablePlace.of(settings.silver, settings.storage.access())
            copier = GapCopier(settings.fleet(), place, tenant=settings.tenant, spark=session)
            copy_until(copier, end, every_s=settings.gaps.every_s)
        elif name == "quality":
            check_until(QualityJob(settings, spark=session), end, every_s=settings.quality.every_s)
        else:
            tend_until(settings, end, spark=session, is_with_silver=is_with_silver)

    return work
