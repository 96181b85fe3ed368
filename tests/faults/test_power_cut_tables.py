"""A power cut under bronze and its checkpoint: what the consumer group has finished, and a broker may delete, is there.

The tables and checkpoints of each round are in a folder of their own on an image whose power is cut; the broker and the
JVM are not. Afterwards the table is read without Spark. Without `bronze.sync` rows are lost: the control.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from support.after_power_cut import forget_files
from support.flight_server import FlightServer

from broker_edge.torture.loop_image import LoopImage
from broker_edge.torture.waiting import wait_until
from pipelines.settings import BronzeSettings, Settings, TelemetrySettings
from pipelines.telemetry import start_telemetry

pytestmark = pytest.mark.usefixtures("machine_starts_again")
CUTS = int(os.environ.get("HEADWATER_POWER_CUTS", "2"))
GROUP = "telemetry"
BATCHES = 3
"""Of them the group has finished at least one less when the power is cut."""

Place = tuple[int, int]


class Round:
    """One query on an image, with devices that publish all the time."""

    def __init__(self, image: LoopImage, server: FlightServer, name: str, *, sync: bool | None) -> None:
        self._image, self._server = image, server
        self.table = image.mount_point / name / "bronze"
        self.settings = Settings(
            servers=[server.location],
            bronze=BronzeSettings(sync=sync),
            telemetry=TelemetrySettings(
                table_path=str(self.table),
                checkpoint=str(image.mount_point / name / "checkpoint"),
                trigger="0 seconds",
                consumer_group=GROUP,
                max_offsets_per_trigger=200,
            ),
        )

    def run_and_cut(self, spark: SparkSession, moments: random.Random) -> set[Place]:
        """Returns the places that the group had finished when the power was cut."""
        stop = threading.Event()
        devices = threading.Thread(target=self._publish, args=(stop,))
        devices.start()
        query = start_telemetry(spark, self.settings)
        try:
            wait_until(
                lambda: len(self.finished()) >= (BATCHES - 1) * 100 or not query.isActive,
                seconds=120,
                what="the group to finish some batches",
            )
            assert query.isActive, query.exception()
            # Anywhere in a batch.
            threading.Event().wait(moments.uniform(0.0, 0.6))
            finished = self.finished()
            self._image.write_some_back(moments, share=0.3)
            self._image.cut_power()
        finally:
            stop.set()
            devices.join()
            with contextlib.suppress(PySparkException):
                query.stop()
        forget_files(spark)
        self._image.power_on()
        return finished

    def _publish(self, stop: threading.Event) -> None:
        number = 0
        while not stop.wait(0.002):
            self._server.log.append(f"devices/d{number % 20}/telemetry", b"%d" % number, client_id="c")
            number += 1

    def finished(self) -> set[Place]:
        group = self._server.log.groups.get(GROUP)
        if group is None:
            return set()
        return {(partition, at) for partition, end in list(group.committed.items()) for at in range(end)}

    def stored(self) -> list[Place]:
        """The places in the table; a table that nobody can read has none."""
        try:
            rows = DeltaTable(str(self.table)).to_pyarrow_table(columns=["partition", "offset"])
        except (DeltaError, OSError):
            return []
        return [(row["partition"], row["offset"]) for row in rows.to_pylist()]


@pytest.mark.parametrize("cut", range(CUTS))
def test_no_row_is_missing_that_the_group_has_finished(spark: SparkSession, tmp_path: Path, cut: int) -> None:
    moments = random.Random(cut)
    with FlightServer() as server, LoopImage(tmp_path, size_bytes=48 << 20) as image:
        one = Round(image, server, "synced", sync=None)
        finished = one.run_and_cut(spark, moments)
        assert len(finished) >= 100
        assert sorted(finished - set(one.stored())) == []

        # The next start goes on where the checkpoint is: nothing is missing, nothing twice.
        query = start_telemetry(spark, one.settings, available_now=True)
        assert query.awaitTermination(120)
        stored = one.stored()
        heads = {number: partition.high_watermark for number, partition in server.log.partitions.items()}
        assert sorted(stored) == [(partition, at) for partition, end in heads.items() for at in range(end)]


def test_control_without_sync_rows_are_missing(spark: SparkSession, tmp_path: Path) -> None:
    with FlightServer() as server, LoopImage(tmp_path, size_bytes=48 << 20) as image:
        one = Round(image, server, "unsynced", sync=False)
        finished = one.run_and_cut(spark, random.Random(0))
        assert finished - set(one.stored())
