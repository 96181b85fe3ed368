"""Measures publish to commit in a Delta table at a steady rate, against Spark's Kafka source: `spark_kafka.py
--latency`.

Our variant is bronze written as files, fed by `headwater bench` over MQTT at QoS 1; Kafka's variant is its source into
Delta, fed by Kafka's own load program (acks=all). A record's latency is from its timestamp (the append at our broker,
the send with Kafka) to the time at which its commit appeared in the table's folder. Each run is warmed up before it
counts, because a starting query compiles code. CPU is that of the JVM and the Python workers, in cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
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
from spark_kafka import TOPIC, VALUE_BYTES, bench_session, broker_settings

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


def run_latency(options: argparse.Namespace) -> int:
    figures = []
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=options.folder) as name:
        folder = Path(name)
        settings = broker_settings(options.partitions)
        with BrokerProcess(data_dir=folder / "log", settings=settings, log_file=folder / "log.txt") as broker:
            broker.start()
            with Kafka(folder / "kafka") as kafka:
                kafka.make_topic(TOPIC, partitions=options.partitions)
                spark = bench_session()
                for number, trigger in enumerate(float(text) for text in options.triggers.split(",")):
                    ours = _bronze(spark, broker, folder / f"bronze-{number}", trigger)
                    figures.append(
                        _measure(
                            "bronze_files",
                            ours,
                            _mqtt_load(broker, options),
                            broker,
                            kafka,
                            folder / f"bronze-{number}",
                            trigger,
                            options,
                        )
                    )
                    print(_line(figures[-1]), flush=True)
                    if number == 0 and not options.only:
                        peer = _kafka_delta(spark, kafka, folder / "kafka-delta", trigger)
                        load = kafka.start_producer(
                            TOPIC,
                            records=options.rate * (WARM_UP_SECONDS + options.seconds),
                            size_bytes=VALUE_BYTES,
                            per_second=options.rate,
                        )
                        figures.append(
                            _measure("kafka_delta", peer, load, broker, kafka, folder / "kafka-delta", trigger, options)
                        )
                        print(_line(figures[-1]), flush=True)
                spark.stop()
    print(json.dumps({"rate": options.rate, "value_bytes": VALUE_BYTES, "runs": [asdict(one) for one in figures]}))
    return 0


def _bronze(spark: SparkSession, broker: BrokerProcess, folder: Path, trigger_s: float) -> StreamingQuery:
    telemetry = TelemetrySettings(
        subscribe=["#"],
        table_path=str(folder / "table"),
        checkpoint=str(folder / "checkpoint"),
        consumer_group=folder.name,
        trigger=f"{trigger_s} seconds",
    )
    bronze = BronzeSettings.model_validate({"writer": "files"})
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
    broker: BrokerProcess,
    kafka: Kafka,
    folder: Path,
    trigger_s: float,
    options: argparse.Namespace,
) -> LatencyFigure:
    others = (broker.pid, kafka.pid, load.pid)
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
        f"{figure.way:14} trigger {figure.trigger_s} s: p50 {figure.p50_s:.2f} s, p95 {figure.p95_s:.2f}, "
        f"p99 {figure.p99_s:.2f}; batch p50 {figure.batch_p50_s:.2f}, p95 {figure.batch_p95_s:.2f}; "
        f"{figure.cores:.2f} cores; {'keeps up' if figure.keeps_up else 'does not keep up'}"
    )
