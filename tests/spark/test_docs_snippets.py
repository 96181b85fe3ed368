"""The examples of docs/spark.md run unchanged, except for the addresses of the brokers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQueryListener, StreamingQueryManager
from support.doc_snippets import snippets
from support.flight_server import FlightServer

ADDRESSES = ("grpc://edge-1:8815,grpc://edge-2:8815", "grpc://edge-1:8815")
PROMETHEUS = "/var/lib/node_exporter"
AFTER_US = int(datetime(2026, 11, 22, tzinfo=UTC).timestamp()) * 1_000_000
"""Later than the start time of the page."""


@pytest.fixture
def own_listeners(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Removes listeners that the examples add to the session, which other tests share."""
    added: list[StreamingQueryListener] = []
    add = StreamingQueryManager.addListener

    def add_and_note(manager: StreamingQueryManager, listener: StreamingQueryListener) -> None:
        add(manager, listener)
        added.append(listener)

    monkeypatch.setattr(StreamingQueryManager, "addListener", add_and_note)
    yield
    for listener in added:
        spark.streams.removeListener(listener)
    spark.catalog.dropTempView("telemetry")
    assert added, "the page no longer has an example of a listener"


@pytest.mark.usefixtures("own_listeners")
def test_the_examples_of_the_page_run(
    spark: SparkSession, flight_server: FlightServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        flight_server.log.append(f"devices/pump-{number % 10}/telemetry", b"x", timestamp_us=AFTER_US + number)
    monkeypatch.setattr("pipelines.spark.session.spark_session", lambda name: spark)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for text in snippets("spark.md", "python"):
        exec(here(text, flight_server, tmp_path), names)
    query = names["rows"].writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    running = query.trigger(availableNow=True).start(str(tmp_path / "rows"))
    running.awaitTermination()
    assert spark.read.parquet(str(tmp_path / "rows")).count() == 20
    statements = [one for text in snippets("spark.md", "sql") for one in here(text, flight_server, tmp_path).split(";")]
    counts = [spark.sql(one).collect() for one in statements if one.strip()]
    assert counts[-1][0][0] == 2
    # Spark calls listeners from its own thread, and reports the end of a query after all its batches.
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
    lags = [json.loads(line) for line in (tmp_path / "lag.jsonl").read_text().splitlines()]
    assert lags[-1]["records"] == 0
    assert "headwater_query_lag_records" in (tmp_path / "headwater.prom").read_text()


def here(text: str, server: FlightServer, folder: Path) -> str:
    for address in ADDRESSES:
        text = text.replace(address, server.location)
    return text.replace(PROMETHEUS, str(folder))
