"""One Spark session for the whole suite: starting it costs more than most tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from support.s3 import s3a_config

from pipelines.spark.session import spark_session

# Everything here runs for seconds, too short for the optimizing compiler and a parallel collector to pay off. Set in
# the environment, so that jobs started by tests have it too.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Local Spark with Delta, S3A and the source; tables without a path are in a folder of this run."""
    warehouse: Path = tmp_path_factory.mktemp("warehouse")
    session = spark_session("tests", warehouse=warehouse, config=s3a_config())
    yield session
    session.stop()
