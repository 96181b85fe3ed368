"""Fixtures shared by all suites. `tests` itself is on the path, so suites write `from support.… import …`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))

from support.flight_server import FlightServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# With several workers, each takes the next file. Files that take minutes begin first, so that none of them runs alone
# at the end.
LONG = (
    "spark/test_telemetry_kill.py",
    "spark/test_jobs_run.py",
    "integration/test_rollout_fleet.py",
    "integration/test_fleet_endings.py",
    "integration/test_demo.py",
    "integration/test_notebooks.py",
    "faults/test_torture.py",
    "spark/test_bronze.py",
    "spark/test_silver.py",
    "integration/test_rollout_ota.py",
    "spark/test_source_connect.py",
    "spark/test_telemetry_job.py",
)

# Test machines are shared: the first call of anything may take a second. CI uses the same examples each time, so that a
# failure there is caused by a change; other machines use new examples.
settings.register_profile(
    "shared",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("shared")

# A developer's own contexts are none of the tests' business, nor of the processes that they start.
os.environ["HEADWATER_CONTEXTS"] = str(Path(__file__).parent / "no-contexts.json")


@pytest.fixture
def flight_server() -> Iterator[FlightServer]:
    """The Flight service in memory, on its own port."""
    with FlightServer() as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local Spark with Delta, S3A and the source, one for all suites: a process has a single session, so a suite that
    stopped its own would stop it for the others. Tables without a path are in a folder of this run."""
    from support.s3 import s3a_config

    from pipelines.spark.session import spark_session

    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    session = spark_session("tests", warehouse=warehouse, config=s3a_config())
    yield session
    session.stop()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    turns = {here / name: turn for turn, name in enumerate(LONG)}
    items.sort(key=lambda item: turns.get(item.path, len(turns)))
