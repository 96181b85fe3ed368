"""The job of the action engine: its settings, its tables, its publisher. `actions.job` is the loop."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from actions.announcements import Announcer
from actions.engine import Limits
from actions.job import ActionJob, Pace
from actions.reading import GroupReader
from actions.signing import signing
from actions.stock import BrokerDepot
from actions.store import DeltalakeStore
from actions.uplink_status import UplinkTopic
from broker_edge.moved import old_names
from pipelines.jobs.kinds import LoopJob
from pipelines.jobs.posting import address_of, post
from pipelines.jobs.process import StopSignal, run_job
from pipelines.jobs.runner import run_alone
from pipelines.settings import ActionsSection, Settings, load_settings
from pipelines.settings.job_options import add_broker_options, with_brokers
from pipelines.spark.checkpoint import folder_to_sync
from sinks.devices import Fleet
from sinks.torn_commits import repair_tables

log = logging.getLogger(__name__)

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


def limits_of(given: ActionsSection) -> Limits:
    """The engine's limits from the settings."""
    return given.limits()


def announcer_of(settings: Settings, storage_options: Mapping[str, str]) -> Announcer | None:
    """What posts to `actions.webhook`, running; None without one. Raises ConfigError."""
    given = settings.actions
    if given.webhook is None:
        return None
    url = address_of(given.webhook, what="actions.webhook")
    return Announcer(given.root, partial(post, url), storage_options=storage_options)


def run_engine(settings: Settings, stop: Callable[[float], bool], *, once: bool = False) -> None:
    """Runs the engine until `stop(seconds)`, which waits at most that long, returns True; `once` ends when everything
    is read, with an error if no broker answers."""
    given = settings.actions
    brokers = settings.fleet()
    entries = [broker.entry for broker in brokers]
    with closing(Fleet(brokers)) as fleet:
        publishers = signing(fleet.publishers, given.signing_key, valid_s=given.signature_s)
        keep_s = None if given.keep_days is None else given.keep_days * 86_400.0
        pace = Pace(tick_s=given.tick_s, poll_s=given.poll_s, device_state_s=given.device_state_s, keep_s=keep_s)
        depots = [BrokerDepot(publisher.client) for publisher in fleet.publishers]
        uplink = None if settings.status.uplink_topic is None else UplinkTopic(settings.status.uplink_topic).filter
        group = settings.status.consumer_group
        readers = [GroupReader(publisher.client, group, uplink_filter=uplink) for publisher in fleet.publishers]
        access = settings.storage.access()
        repair_tables(given.root)
        synced = folder_to_sync(given.root, access, sync=settings.bronze.sync)
        store = DeltalakeStore(given.root, storage_options=access.deltalake(), synced=synced)
        job = ActionJob(
            store,
            publishers,
            depots=depots,
            readers=readers,
            entries=entries,
            limits=limits_of(given),
            pace=pace,
        )
        servers = ", ".join(publisher.server for publisher in fleet.publishers)
        log.info("the action engine reads %s and publishes on %s", given.root, servers)
        ended = threading.Event()

        def watch() -> None:
            while not ended.is_set() and not stop(given.poll_s):
                pass
            job.stop()

        watcher = threading.Thread(target=watch, name="actions-stop", daemon=True)
        announcer = announcer_of(settings, access.deltalake())
        watcher.start()
        try:
            if once:
                job.run_through()
            else:
                job.run()
        finally:
            ended.set()
            watcher.join()
            if announcer is not None:
                announcer.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs until SIGINT or SIGTERM; survives temporary errors of the tables. Exit codes: 0 stopped, 1 failed, 5 a
    setting is wrong."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.actions", description="Runs the action engine.")
    parser.add_argument("--config", type=Path, help="settings file (default: the defaults of conf/pipelines.yaml)")
    parser.add_argument("--root", help="folder or object store address of the action tables")
    add_broker_options(parser)
    options = parser.parse_args(arguments)

    def work() -> None:
        file = load_settings(options.config)
        actions = file.actions.model_copy(update={"root": options.root or file.actions.root})
        settings = with_brokers(file, options).model_copy(update={"actions": actions})
        stop = StopSignal()
        run_alone(LoopJob("actions", lambda end: run_engine(settings, end)), settings.jobs, stop.wait)

    return run_job(work)


if __name__ == "__main__":
    sys.exit(main())
