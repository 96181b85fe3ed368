"""README.md as a newcomer copies it: the commands in one shell, the Python in one folder, against a real broker.

Only the two jobs of its last section run inside this process, on the session of the suite instead of one of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from support.doc_blocks import blocks
from support.doc_shell import DocShell

from actions.job import ActionJob, Pace
from actions.store import DeltalakeStore
from pipelines.status import StatusSettings, start_status
from sinks import tables
from sinks.devices import DevicePublisher

JOBS = "headwater jobs run actions status"


@contextmanager
def running_jobs(spark: SparkSession, folder: Path, server: str) -> Iterator[None]:
    """What `headwater jobs run actions status` does, with the tables where it has them."""
    root = str(folder / "data/tables")
    tables.create_by_path(root)
    query = start_status(spark, StatusSettings((server,), root, str(folder / "data/checkpoints/status")))
    publisher = DevicePublisher(server)
    job = ActionJob(DeltalakeStore(root), publisher, pace=Pace())
    thread = threading.Thread(target=job.run, name="engine", daemon=True)
    thread.start()
    try:
        yield
        assert query.exception() is None
    finally:
        job.stop()
        thread.join(120)
        query.stop()
        publisher.close()


def test_the_blocks_of_readme_work_as_they_stand(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipelines.spark.session.spark_session", lambda name: spark)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    todo = [block for block in blocks("README.md", "sh", "python") if block.reason is None]
    first = next(index for index, block in enumerate(todo) if block.text.startswith(JOBS))
    with DocShell(tmp_path) as shell:

        def run(number: int) -> None:
            block = todo[number]
            if block.language == "sh":
                shell.run(block)
            else:
                # Spark resolves paths against the folder in which its JVM was started.
                exec(shell.here(block.text).replace('"data/', f'"{tmp_path}/data/'), names)

        for number in range(first):
            run(number)
        assert names["query"].lastProgress["numInputRows"] == 1
        with running_jobs(spark, tmp_path, f"grpc://127.0.0.1:{shell.ports[8815]}"):
            for number in range(first + 1, len(todo)):
                run(number)
