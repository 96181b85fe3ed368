"""Measures publish to commit in a Delta table at a steady rate, against Spark's Kafka source: `spark_kafka.py
--latency`.

    python tests/bench/spark_kafka.py --latency [--seconds 60] [--triggers 1,0.5]
    python tests/bench/spark_kafka.py --latency --alone --only bronze_files --only bronze_unsynced --rounds 4

Our variant is bronze written as files, fed by `headwater bench` over MQTT at QoS 1; Kafka's variant is its source into
Delta, fed by Kafka's own load program (acks=all). A record's latency is from its timestamp (the append at our broker,
the send with Kafka) to the time at which its commit appeared in the table's folder. Each run is warmed up before it
counts, because a starting query compiles code. CPU is that of the JVM and the Python workers, in cores.
`bronze_unsynced` shows what `bronze.sync` costs: a batch ends after the sync, so compare `batch_p50_s` and `cores`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cpu_meter import CpuMeter
from kafka_peer import Kafka
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from spark_kafka import TOPIC, UNSYNCED, VALUE_BYTES, bench_session, broker_settings

from broker_edge.torture.process import BrokerProcess
from pipelines.settings import BronzeSettings, Settings, TelemetrySettings
from pipelines.telemetry import start_telemetry

WARM_UP_SECONDS = 30
CONNECTIONS = 50


@dataclass(frozen=True, slots=True)
class LatencyFigure:
    """One run. `keeps_up`: hardly any batch took longer than the trigger interval."""

    way: str
    trigger_s: float
    messages: int
    p50_s: float
    p95_s: float
    p99_s: float
    batch_p50_s: float
    batch_p95_s: float
    cores: float
    keeps_up: bool
    # Medians over the batches, by Spark's own clock.
    phases_ms: dict[str, float]


@dataclass(frozen=True, slots=True)
class _Bench:
    """What the runs share."""

    spark: SparkSession
    broker: BrokerProcess
    # None with `--alone`.
    kafka: Kafka | None
    options: argparse.Namespace

    def measure(self, way: str, folder: Path, trigger_s: float) -> LatencyFigure:
        """Starts the query of `way` and its load, and waits for the end of the load."""
        if way == "kafka_delta":
            assert self.kafka is not None, "this variant needs Kafka"
            query = _kafka_delta(self.spark, self.kafka, folder, trigger_s)
            load = self.kafka.start_producer(
                TOPIC,
                records=self.options.rate * (WARM_UP_SECONDS + self.options.seconds),
                size_bytes=VALUE_BYTES,
                per_second=self.options.rate,
            )
        else:
            query = _bronze(self.spark, self.broker, folder, trigger_s, sync=False if way == UNSYNCED else None)
            load = _mqtt_load(self.broker, self.options)
        brokers = [self.broker.pid, *([] if self.kafka is None else self.kafka.pids)]
        return _measure(way, query, load, [*brokers, load.pid], folder, trigger_s)


def run_latency(options: argparse.Namespace) -> int:
    figures = []
    runs = _runs(options)
    if not runs:
        sys.exit(f"error: --latency measures bronze_files, {UNSYNCED} and, without --alone, kafka_delta")
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=options.folder) as name:
        folder = Path(name)
        settings = broker_settings(options.partitions)
        with (
            BrokerProcess(data_dir=folder / "log", settings=settings, log_file=folder / "log.txt") as broker,
            contextlib.nullcontext() if options.alone else Kafka(folder / "kafka") as kafka,
        ):
            broker.start()
            if kafka is not None:
                kafka.make_topic(TOPIC, partitions=options.partitions)
            bench = _Bench(bench_session(has_kafka=kafka is not None), broker, kafka, options)
            for turn in range(options.rounds):
                for number, (way, trigger_s) in enumerate(runs):
                    figures.append(bench.measure(way, folder / f"{way}-{turn}-{number}", trigger_s))
                    print(_line(figures[-1]), flush=True)
            bench.spark.stop()
    _report_medians(figures)
    print(json.dumps({"rate": options.rate, "value_bytes": VALUE_BYTES, "runs": [asdict(one) for one in figures]}))
    return 0


def _runs(options: argparse.Namespace) -> list[tuple[str, float]]:
    """The variants of a round with their triggers. Kafka's is measured with the first trigger only."""
    triggers = [float(text) for text in options.triggers.split(",")]
    chosen = options.only or ["bronze_files", "kafka_delta"]
    ours = [(way, trigger_s) for trigger_s in triggers for way in ("bronze_files", UNSYNCED) if way in chosen]
    has_kafka = not options.alone and "kafka_delta" in chosen
    return [*ours, *([("kafka_delta", triggers[0])] if has_kafka else [])]


def _report_medians(figures: list[LatencyFigure]) -> None:
    """Prints the medians over the rounds, if there were several."""
    runs: dict[tuple[str, float], list[LatencyFigure]] = {}
    for one in figures:
        runs.setdefault((one.way, one.trigger_s), []).append(one)
    for (way, trigger_s), found in runs.items():
        if len(found) > 1:
            batch, cores, p50 = (
                statistics.median(getattr(one, name) for one in found) for name in ("batch_p50_s", "cores", "p50_s")
            )
            print(
                f"{way:16} trigger {trigger_s} s, {len(found)} rounds: batch p50 {batch:.3f} s, {cores:.2f} cores, "
                f"p50 {p50:.2f} s"
            )


def _bronze(
    spark: SparkSession, broker: BrokerProcess, folder: Path, trigger_s: float, *, sync: bool | None
) -> StreamingQuery:
    telemetry = TelemetrySettings(
        subscribe=["#"],
        table_path=str(folder / "table"),
        checkpoint=str(folder / "checkpoint"),
        consumer_group=folder.name,
        trigger=f"{trigger_s} seconds",
    )
    bronze = BronzeSettings.model_validate({"writer": "files", "sync": sync})
    server = "grpc://{}:{}".format(*broker.flight)
    return start_telemetry(spark, Settings(servers=[server], telemetry=telemetry, bronze=bronze))


def _kafka_delta(spark: SparkSession, kafka: Kafka, folder: Path, trigger_s: float) -> StreamingQuery:
    rows = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.servers).option("subscribe", TOPIC)
    rows = rows.option("startingOffsets", "earliest").load()
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.trigger(processingTime=f"{trigger_s} seconds").start(str(folder / "table"))


def _mqtt_load(broker: BrokerProcess, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    program = "import sys; from headwater_cli import main; sys.exit(main())"
    mqtt, lasts_s = "{}:{}".format(*broker.mqtt), str(WARM_UP_SECONDS + options.seconds)
    return subprocess.Popen(
        [
            *(sys.executable, "-c", program, "bench", "pub", "--mqtt", mqtt, "-c", str(CONNECTIONS)),
            *("-r", str(options.rate), "-d", lasts_s, "--size", str(VALUE_BYTES), "--json"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _measure(
    way: str,
    query: StreamingQuery,
    load: subprocess.Popen[bytes],
    others: Sequence[int],
    folder: Path,
    trigger_s: float,
) -> LatencyFigure:
    """`others` are processes whose CPU does not count."""
    time.sleep(WARM_UP_SECONDS)
    start, counted_from = time.monotonic(), time.time()
    batches: dict[int, dict[str, int]] = {}
    seen = {one["batchId"] for one in query.recentProgress}
    with CpuMeter(without=others) as meter:
        while load.poll() is None:
            for one in query.recentProgress:
                if one["batchId"] not in seen and one["numInputRows"]:
                    batches[one["batchId"]] = one["durationMs"]
            time.sleep(0.5)
        cores = meter.seconds() / (time.monotonic() - start)
    counted_to = time.time()
    if load.returncode:
        raise RuntimeError(f"the load of {way} ended with {load.returncode}")
    query.processAllAvailable()
    query.stop()
    latencies = _latencies(folder / "table", counted_from, counted_to)
    durations = sorted(one["triggerExecution"] / 1_000 for one in batches.values()) or [float("nan")]
    phases = sorted({name for one in batches.values() for name in one})
    p50, p95, p99 = (float(np.percentile(latencies, percent)) for percent in (50, 95, 99))
    batch_p95 = durations[min(len(durations) - 1, int(len(durations) * 0.95))]
    return LatencyFigure(
        way=way,
        trigger_s=trigger_s,
        messages=len(latencies),
        p50_s=round(p50, 3),
        p95_s=round(p95, 3),
        p99_s=round(p99, 3),
        batch_p50_s=round(statistics.median(durations), 3),
        batch_p95_s=round(batch_p95, 3),
        cores=round(cores, 2),
        keeps_up=batch_p95 <= trigger_s,
        phases_ms={name: statistics.median(one.get(name, 0) for one in batches.values()) for name in phases},
    )


def _latencies(table: Path, begin: float, end: float) -> Any:
    """Seconds from timestamp to commit, for each record that arrived in `[begin, end)`."""
    found = []
    for commit in sorted((table / "_delta_log").glob("*.json")):
        committed_us = commit.stat().st_mtime_ns // 1_000
        for line in commit.read_text().splitlines():
            add = json.loads(line).get("add")
            if add is None:
                continue
            times = pq.read_table(table / add["path"], columns=["timestamp"], partitioning=None).column(0)
            times_us = times.cast(pa.timestamp("us", tz="UTC")).cast("int64").to_numpy()
            times_us = times_us[(times_us >= begin * 1e6) & (times_us < end * 1e6)]
            found.append((committed_us - times_us) / 1e6)
    return np.concatenate(found)


def _line(figure: LatencyFigure) -> str:
    return (
        f"{figure.way:16} trigger {figure.trigger_s} s: p50 {figure.p50_s:.2f} s, p95 {figure.p95_s:.2f}, "
        f"p99 {figure.p99_s:.2f}; batch p50 {figure.batch_p50_s:.2f}, p95 {figure.batch_p95_s:.2f}; "
        f"{figure.cores:.2f} cores; {'keeps up' if figure.keeps_up else 'does not keep up'}"
    )
