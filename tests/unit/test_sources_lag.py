"""Lag and gaps: how far a query lags in records, bytes and seconds, and the gaps that it skipped."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.flight_server import FlightServer
from support.source_driver import FILTER, Json, Query

from sources.gaps import reported_gaps
from sources.listener import JsonLines, Lag, LagListener, PrometheusFile, ask_behind
from sources.offsets import SourceOffset
from sources.options import parse_options

pytestmark = pytest.mark.usefixtures("without_idle_memory")


def fill(server: FlightServer, count: int, *, timestamp_us: int | None = None) -> None:
    for number in range(count):
        server.log.append(f"devices/d{number % 20}/telemetry", b"x" * 10, timestamp_us=timestamp_us)


def progressed(end: Json | None, latest: Json | None, *, name: str | None = "q") -> Any:
    """A progress event as Spark passes it to a listener."""
    source = SimpleNamespace(endOffset=end and json.dumps(end), latestOffset=latest and json.dumps(latest))
    progress = SimpleNamespace(
        id="6f1c",
        name=name,
        batchId=7,
        timestamp="2026-11-21T00:00:00.000Z",
        sources=[SimpleNamespace(endOffset="12", latestOffset="15"), source],
        numInputRows=40,
        processedRowsPerSecond=12.34,
    )
    return SimpleNamespace(progress=progress, id="6f1c")


def test_a_query_is_behind_by_what_it_has_not_read(flight_server: FlightServer) -> None:
    fill(flight_server, 100)
    query = Query(flight_server)
    query.batch(40)
    # Spark's order: the next end, then the latest offset.
    lags: list[Lag] = []
    LagListener([lags.append]).onQueryProgress(progressed(query.ends[-1], query.reader.reportLatestOffset()))
    assert [(lag.query, lag.batch_id, lag.records, lag.by_log) for lag in lags] == [
        ("q", 7, 60, {flight_server.log.log_id: 60})
    ]
    assert (lags[0].bytes, lags[0].seconds, lags[0].rows_per_second) == (None, None, 12.3)


def test_bytes_and_seconds_come_from_the_brokers(flight_server: FlightServer, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(flight_server, 50, timestamp_us=1_000_000_000)
    fill(flight_server, 50, timestamp_us=1_005_000_000)
    query = Query(flight_server)
    query.batch(40)
    monkeypatch.setattr("sources.listener.time.time", lambda: 1_010.0)
    options = parse_options({"servers": flight_server.location, "subscribe": FILTER})
    lags: list[Lag] = []
    listener = LagListener([lags.append], options=options)
    for _ in range(2):
        listener.onQueryProgress(progressed(query.ends[-1], query.reader.reportLatestOffset()))
    assert lags[0].seconds == 10.0
    assert lags[0].bytes == pytest.approx(600, rel=0.1)
    assert lags[1].seconds is None, "brokers are not asked after every batch"
    query.drain()
    caught_up = ask_behind(options, SourceOffset.from_json(query.ends[-1]))
    assert caught_up is not None
    assert (caught_up.bytes, caught_up.seconds) == (0, 0.0)
    flight_server.down()
    assert ask_behind(options, SourceOffset.from_json(query.ends[-1])) is None


def test_what_cannot_be_told_ends_no_query(caplog: pytest.LogCaptureFixture) -> None:
    def fail(lag: Lag) -> None:
        raise OSError("full")

    listener = LagListener([fail])
    with caplog.at_level(logging.WARNING, "sources"):
        listener.onQueryProgress(progressed({"v": 9, "logs": {}}, {"v": 1, "logs": {}}))
        listener.onQueryProgress(progressed(None, None))
        listener.onQueryProgress(
            progressed({"v": 1, "logs": {"x": {"3": [4, 1]}}}, {"v": 1, "logs": {"x": {"3": [9, None]}}})
        )
    assert "cannot parse the progress" in caplog.text
    assert "was not published: full" in caplog.text


def test_lag_is_published_as_lines_and_as_metrics(tmp_path: Path) -> None:
    lag = Lag('a"b', "6f1c", 7, "2026-11-21T00:00:00.000Z", 60, {"x": 60}, 1_000, 2.5, 40, 12.3)
    lines, metrics = JsonLines(tmp_path / "lag.jsonl"), PrometheusFile(tmp_path / "lag.prom")
    later = Lag('a"b', "6f1c", 8, "2026-11-21T00:00:01.000Z", 10, {"x": 10}, None, None, 40, 12.3)
    for one in (lag, later):
        lines(one)
        metrics(one)
    written = [json.loads(line) for line in (tmp_path / "lag.jsonl").read_text().splitlines()]
    assert [(one["batch_id"], one["records"], one["by_log"]) for one in written] == [
        (7, 60, {"x": 60}),
        (8, 10, {"x": 10}),
    ]
    text = (tmp_path / "lag.prom").read_text()
    assert 'headwater_query_lag_records{query="a\\"b"} 10\n' in text
    assert 'headwater_query_lag_bytes{query="a\\"b"} 1000\n' in text, "the last known value"
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["lag.jsonl", "lag.prom"]


def test_reported_gaps_are_listed_with_whose_they_are() -> None:
    with FlightServer() as one, FlightServer() as other:
        fill(one, 100)
        fill(other, 10)
        query = Query(one, other, failOnDataLoss="false", consumerGroup="g")
        query.batch(20)
        one.log.expire(3, 40)
        query.drain()
        other.log.append(
            "$gaps",
            json.dumps(
                {
                    "log_id": "dead",
                    "partition": 5,
                    "start": 7,
                    "end": None,
                    "name": None,
                    "reason": "retired",
                    "group": None,
                    "time_us": 1_000_000,
                }
            ).encode(),
        )
        gaps = reported_gaps([one.location, other.location])
    by_log = {gap.log_id: gap for gap in gaps}
    assert set(by_log) == {one.log.log_id, "dead"}
    lost = by_log[one.log.log_id]
    assert (lost.partition, lost.end, lost.group, lost.report_log_id) == (3, 40, "g", one.log.log_id)
    dead = by_log["dead"]
    assert (dead.partition, dead.start, dead.end, dead.report_log_id) == (5, 7, None, other.log.log_id)
    assert dead.reported_at.isoformat() == "1970-01-01T00:00:01+00:00"
