"""A power cut under silver and its checkpoint: afterwards every row of bronze is in silver once.

The JVM lives on, so it is told to forget the tables. In the control only the checkpoint reaches the disk.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.after_power_cut import forget_files
from support.bronze_rows import BronzeTable

from broker_edge.sync import sync_file, sync_file_system, sync_folders
from broker_edge.torture.loop_image import LoopImage
from broker_edge.torture.waiting import wait_until
from pipelines.settings import Settings
from pipelines.silver.job import start_silver

pytestmark = pytest.mark.usefixtures("machine_starts_again")
CUTS = max(1, int(os.environ.get("HEADWATER_POWER_CUTS", "1")))
COMMITS, ROWS = 4, 20
SCHEMA = {"name": "pump", "topics": ["devices/+/telemetry"], "fields": [{"name": "seq", "type": "bigint"}]}


class World:
    """Bronze on disk in an image, and a silver job that takes one commit of it at a time."""

    def __init__(self, image: LoopImage, folder: Path, *, sync: bool | None) -> None:
        self._image = image
        self.silver = image.mount_point / "tables" / "silver_pump"
        self.checkpoint = image.mount_point / "checkpoint"
        bronze = BronzeTable(image.mount_point / "bronze")
        for commit in range(COMMITS):
            bronze.append({"seq": commit * ROWS + row} for row in range(ROWS))
        sync_file_system(bronze.path)
        (folder / "schemas").mkdir()
        (folder / "schemas" / "pump.yaml").write_text(yaml.safe_dump(SCHEMA))
        silver = {
            "schemas": str(folder / "schemas"),
            "rules": None,
            "root": str(self.silver.parent),
            "checkpoint": str(self.checkpoint),
            "trigger": "0 seconds",
            "max_bytes_per_trigger": "1b",
        }
        self.settings = Settings.model_validate(
            {"silver": silver, "telemetry": {"table_path": str(bronze.path)}, "bronze": {"sync": sync}}
        )

    def run_and_cut(self, spark: SparkSession, before_cut: Callable[[], None]) -> None:
        query = start_silver(spark, self.settings)
        try:
            wait_until(
                lambda: (self.checkpoint / "commits" / "1").exists() or not query.isActive,
                seconds=300,
                what="two batches of silver",
            )
            assert query.isActive, query.exception()
            before_cut()
            self._image.cut_power()
        finally:
            with contextlib.suppress(PySparkException):
                query.stop()
        forget_files(spark)
        self._image.power_on()

    def run_to_the_end(self, spark: SparkSession) -> None:
        query = start_silver(spark, self.settings, available_now=True)
        assert query.awaitTermination(300)

    def rows(self) -> list[int]:
        """The rows of silver; a table that nobody can read has none."""
        try:
            return sorted(DeltaTable(str(self.silver)).to_pyarrow_table(columns=["seq"]).column("seq").to_pylist())
        except (DeltaError, OSError, pa.ArrowException):
            return []


@pytest.mark.parametrize("cut", range(CUTS))
def test_every_row_is_in_silver_once(
    spark: SparkSession, loop_image: Callable[[int], LoopImage], tmp_path: Path, cut: int
) -> None:
    moments = random.Random(cut)
    image = loop_image(48)
    world = World(image, tmp_path, sync=None)

    def before_cut() -> None:
        # At any moment of a batch.
        threading.Event().wait(moments.uniform(0.0, 0.6))
        image.write_some_back(moments, share=0.3)

    world.run_and_cut(spark, before_cut)
    world.run_to_the_end(spark)
    assert world.rows() == list(range(COMMITS * ROWS))


def test_control_without_sync_rows_are_missing(
    spark: SparkSession, loop_image: Callable[[int], LoopImage], tmp_path: Path
) -> None:
    world = World(loop_image(48), tmp_path, sync=False)

    def before_cut() -> None:
        for path in world.checkpoint.rglob("*"):
            with contextlib.suppress(Exception):  # A batch may be replacing it.
                sync_file(path)
        for kind in ("offsets", "commits"):
            sync_folders(world.checkpoint / kind, up_to=world.checkpoint)

    world.run_and_cut(spark, before_cut)
    with contextlib.suppress(PySparkException):
        world.run_to_the_end(spark)
    assert world.rows() != list(range(COMMITS * ROWS))
