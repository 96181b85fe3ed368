"""One Spark session for the whole suite: starting it costs more than most tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipelines.session import spark_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local Spark with Delta and the source; tables without a path live in a folder of this run."""
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    session = spark_session("tests", warehouse=warehouse)
    yield session
    session.stop()
