"""Measures the cost of an ingest into Delta against Spark's Kafka source on a single-node Kafka: same records, same
session.

    python tests/bench/spark_kafka.py [--records 10000000] [--rounds 1] [--batch N] [--compression zstd]
    python tests/bench/spark_kafka.py --alone --only bronze_files [--records 3000000] [--rounds 3]
    python tests/bench/spark_kafka.py --alone --only bronze_files --only bronze_unsynced --rounds 4 --batch 100000
    python tests/bench/spark_kafka.py --latency [--seconds 60] [--triggers 1,0.5]      (see spark_latency.py)

Starts a broker and a Kafka on empty folders, fills the first over Flight with random payloads and the second with the
same records, and runs AvailableNow queries of both in turn on `local[2]`. Prints a table, and one JSON object as the
last line. CPU is that of the JVM and the Python workers; that of the brokers and of the object store is shown
separately. Asserts nothing about times. With `--alone` there is no Kafka and no comparison: use it to see the effect of
a change. `bronze_s3` keeps table and checkpoint in an S3 server of this machine; `bronze_unsynced` is `bronze_files`
with `bronze.sync: false`, and runs only if `--only` names it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "bench"), str(ROOT / "tests")]

from cpu_meter import CpuMeter, cpu_of  # noqa: E402
from kafka_peer import Kafka, source_jars  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql.streaming import StreamingQuery  # noqa: E402
from support.s3 import BUCKET, S3Server, s3_server  # noqa: E402

from broker_edge import Client  # noqa: E402
from broker_edge.torture.process import BrokerProcess  # noqa: E402
from pipelines.settings import BronzeSettings, Settings, StorageSettings, TelemetrySettings  # noqa: E402
from pipelines.spark.jars import delta_jars, s3a_jars  # noqa: E402
from pipelines.spark.session import spark_session  # noqa: E402
from pipelines.telemetry import start_telemetry  # noqa: E402

DEVICES = 1_000
VALUE_BYTES = 256
ROWS_A_CALL = 100_000
FILTER = "devices/+/telemetry"
TOPIC = "telemetry"
KAFKA_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
"""The columns of Kafka's source. Ours has five more, and writing a column costs Spark the same for both sources."""
WARM_UP_RECORDS = 200_000

GOALS: dict[str, tuple[str, float | None, float | None]] = {
    "bronze_files": ("kafka_delta", 4.0, 0.30),
    "bronze_s3": ("kafka_delta", None, None),
    "rows_delta": ("kafka_delta", 1.2, 0.9),
    "rows_delta_7": ("kafka_delta", 1.2, 0.9),
    "rows_noop": ("kafka_noop", 1.5, 0.7),
}
"""Variant -> its peer, the minimum ratio of rows/s, and the maximum ratio of CPU per row; None without a goal."""
UNSYNCED = "bronze_unsynced"
WAYS = ("kafka_noop", "rows_noop", "kafka_delta", "rows_delta", "rows_delta_7", "bronze_files", "bronze_s3", UNSYNCED)


@dataclass(frozen=True, slots=True)
class Figure:
    """One run of one variant."""

    rows_per_s: float
    cpu_us_per_row: float
    broker_us_per_row: float
    store_us_per_row: float


@dataclass(frozen=True, slots=True)
class Bench:
    """What the runs share."""

    spark: SparkSession
    broker: BrokerProcess
    # None with `--alone`.
    kafka: Kafka | None
    # None unless a chosen variant writes there.
    s3: S3Server | None
    folder: Path
    batch: int | None
    compression: str

    @property
    def server(self) -> str:
        return "grpc://{}:{}".format(*self.broker.flight)

    def ways(self) -> dict[str, Callable[[Path], StreamingQuery]]:
        """Starters of AvailableNow queries, each with its own output folder."""
        found: dict[str, Callable[[Path], StreamingQuery]] = {
            "kafka_noop": lambda folder: _start(self.kafka_rows(), "noop", folder),
            "rows_noop": lambda folder: _start(self.our_rows(), "noop", folder),
            "kafka_delta": lambda folder: _start(self.kafka_rows(), "delta", folder),
            "rows_delta": lambda folder: _start(self.our_rows(), "delta", folder),
            "rows_delta_7": lambda folder: _start(self.our_rows().select(*KAFKA_COLUMNS), "delta", folder),
            "bronze_files": lambda folder: self.bronze(str(folder), folder.name),
            "bronze_s3": lambda folder: self.bronze(f"s3://{BUCKET}/{folder.name}", folder.name),
            UNSYNCED: lambda folder: self.bronze(str(folder), folder.name, sync=False),
        }
        return {name: way for name, way in found.items() if self.kafka is not None or not name.startswith("kafka")}

    def kafka_rows(self) -> DataFrame:
        assert self.kafka is not None, "variants that use Kafka need it"
        reader = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.kafka.servers)
        reader = reader.option("subscribe", TOPIC).option("startingOffsets", "earliest")
        return (reader if self.batch is None else reader.option("maxOffsetsPerTrigger", self.batch)).load()

    def our_rows(self) -> DataFrame:
        reader = self.spark.readStream.format("headwater").option("servers", self.server).option("subscribe", FILTER)
        return (reader if self.batch is None else reader.option("maxOffsetsPerTrigger", self.batch)).load()

    def bronze(self, root: str, group: str, *, sync: bool | None = None) -> StreamingQuery:
        """The telemetry job. Each run is a separate reader, with its own `group`."""
        telemetry = TelemetrySettings(
            table_path=f"{root}/table",
            checkpoint=f"{root}/checkpoint",
            consumer_group=group,
            max_offsets_per_trigger=self.batch,
        )
        bronze = BronzeSettings.model_validate({"writer": "files", "compression": self.compression, "sync": sync})
        storage = StorageSettings(options={} if self.s3 is None else self.s3.options())
        settings = Settings(servers=[self.server], telemetry=telemetry, bronze=bronze, storage=storage)
        return start_telemetry(self.spark, settings, available_now=True)

    def measure(self, name: str, records: int) -> Figure:
        """Runs `name` once and removes its output."""
        folder = self.folder / f"{name}-{time.time_ns()}"
        brokers = [self.broker.pid, *([] if self.kafka is None else self.kafka.pids)]
        stores = [] if self.s3 is None else [self.s3.pid]
        own = brokers[0] if not name.startswith("kafka") else brokers[1]
        broker_before, store_before, start = cpu_of(own), sum(map(cpu_of, stores)), time.monotonic()
        with CpuMeter(without=[*brokers, *stores]) as meter:
            self.ways()[name](folder).awaitTermination()
            wall, used = time.monotonic() - start, meter.seconds()
        broker_used, store_used = cpu_of(own) - broker_before, sum(map(cpu_of, stores)) - store_before
        self._remove(folder)
        return Figure(records / wall, *(one / records * 1e6 for one in (used, broker_used, store_used)))

    def _remove(self, folder: Path) -> None:
        written = [folder]
        if self.s3 is not None:
            # Its objects, and what the server keeps beside them.
            written += [root / BUCKET / folder.name for root in (self.s3.folder, self.s3.folder.with_name("sidecar"))]
        for one in written:
            if one.exists():
                shutil.rmtree(one)


def main() -> int:
    options = _options()
    if options.latency:
        from spark_latency import run_latency

        return run_latency(options)
    uses_s3 = _is_chosen("bronze_s3", options.only)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=options.folder) as name:
        folder = Path(name)
        with (
            BrokerProcess(
                data_dir=folder / "log", settings=broker_settings(options.partitions), log_file=folder / "log.txt"
            ) as broker,
            contextlib.nullcontext() if options.alone else Kafka(folder / "kafka") as kafka,
            s3_server(folder / "store") if uses_s3 else contextlib.nullcontext() as s3,
        ):
            broker.start()
            spark = bench_session(has_kafka=kafka is not None, has_s3=uses_s3)
            bench = Bench(spark, broker, kafka, s3, folder, options.batch, options.compression)
            if kafka is not None:
                kafka.make_topic(TOPIC, partitions=options.partitions)
            _say("warming up")
            _fill(bench, WARM_UP_RECORDS)
            figures: dict[str, list[Figure]] = {way: [] for way in bench.ways() if _is_chosen(way, options.only)}
            for way in figures:
                bench.measure(way, WARM_UP_RECORDS)
            _say(f"filling with {options.records - WARM_UP_RECORDS:,} more records")
            _fill(bench, options.records - WARM_UP_RECORDS)
            for turn in range(options.rounds):
                for way in figures:
                    figures[way].append(bench.measure(way, options.records))
                    _say(f"round {turn + 1}: {way}: {_line(figures[way][-1])}")
            spark.stop()
    report(figures, options)
    return 0


def broker_settings(partitions: int) -> dict[str, str]:
    return {
        "log.classes.telemetry.partitions": str(partitions),
        "log.classes.telemetry.retention.bytes": "64GiB",
        "log.classes.telemetry.retention.hard_bytes": "64GiB",
    }


def bench_session(*, has_kafka: bool = True, has_s3: bool = False) -> SparkSession:
    jars = [*delta_jars(), *(source_jars() if has_kafka else []), *(s3a_jars() if has_s3 else [])]
    return spark_session(
        "bench",
        cores="local[2]",
        driver_memory="2g",
        config={"spark.jars": ",".join(str(jar.absolute()) for jar in jars)},
    )


def _start(rows: DataFrame, sink: str, folder: Path) -> StreamingQuery:
    writer = rows.writeStream.format(sink).option("checkpointLocation", str(folder / "checkpoint"))
    if sink == "delta":
        writer = writer.option("path", str(folder / "table"))
    else:
        (folder / "checkpoint").mkdir(parents=True)
    return writer.trigger(availableNow=True).start()


def _is_chosen(way: str, only: list[str] | None) -> bool:
    if way in (only or ()):
        return True
    if only is None:
        return way != UNSYNCED
    return any(way == GOALS[one][0] for one in only if one in GOALS)


def _fill(bench: Bench, records: int) -> None:
    """Writes random payloads to the broker, and copies them to Kafka, if there is one, with the same keys."""
    topics = pa.array([f"devices/d{number:04}/telemetry" for number in range(DEVICES)])
    with Client(bench.server, timeout_s=600) as client:
        bounds = client.offsets(filters=FILTER).partitions
        known = {number: place.high_watermark for number, place in bounds.items()}
        for start in range(0, records, ROWS_A_CALL):
            count = min(ROWS_A_CALL, records - start)
            chosen = topics.take(pa.array([(start + row) % DEVICES for row in range(count)]))
            client.produce(pa.table({"topic": chosen, "value": random_values(count)}))
        log_id = client.offsets(filters=FILTER).log_id
    if bench.kafka is None:
        return
    reader = bench.spark.read.format("headwater").option("servers", bench.server).option("subscribe", FILTER)
    starts = {log_id: {str(number): offset for number, offset in known.items()}}
    rows = reader.option("startingOffsets", json.dumps(starts)).load().select("key", "value")
    sink = rows.write.format("kafka").option("kafka.bootstrap.servers", bench.kafka.servers).option("topic", TOPIC)
    sink.option("kafka.linger.ms", "20").option("kafka.batch.size", "262144").save()


def random_values(count: int) -> pa.Array:
    """`count` incompressible payloads."""
    offsets = pa.array(range(0, (count + 1) * VALUE_BYTES, VALUE_BYTES), pa.int32())
    data = pa.py_buffer(os.urandom(count * VALUE_BYTES))
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets.buffers()[1], data])


def report(figures: dict[str, list[Figure]], options: argparse.Namespace) -> None:
    """The medians, and their ratios to those of the peers."""
    found: dict[str, dict[str, float]] = {}
    for way, runs in figures.items():
        found[way] = {
            "rows_per_s": round(statistics.median(one.rows_per_s for one in runs)),
            "cpu_us_per_row": round(statistics.median(one.cpu_us_per_row for one in runs), 3),
            "broker_us_per_row": round(statistics.median(one.broker_us_per_row for one in runs), 3),
            "store_us_per_row": round(statistics.median(one.store_us_per_row for one in runs), 3),
        }
    print(f"{'':16}{'rows/s':>12}{'CPU µs/row':>12}{'broker µs':>11}{'store µs':>10}{'rate':>9}{'CPU':>9}   goal")
    for way, figure in found.items():
        line = (
            f"{way:16}{figure['rows_per_s']:>12,}{figure['cpu_us_per_row']:>12.2f}{figure['broker_us_per_row']:>11.2f}"
            f"{figure['store_us_per_row']:>10.2f}"
        )
        if way in GOALS and GOALS[way][0] in found:
            peer, rate_goal, cpu_goal = GOALS[way]
            figure["rate_ratio"] = round(figure["rows_per_s"] / found[peer]["rows_per_s"], 2)
            figure["cpu_ratio"] = round(figure["cpu_us_per_row"] / found[peer]["cpu_us_per_row"], 2)
            goal = "no goal" if rate_goal is None else f">= {rate_goal}x, <= {cpu_goal}x of {peer}"
            line += f"{figure['rate_ratio']:>8}x{figure['cpu_ratio']:>8}x   {goal}"
        print(line)
    settings = {
        "records": options.records,
        "value_bytes": VALUE_BYTES,
        "rounds": options.rounds,
        "batch": options.batch,
    }
    print(json.dumps(settings | {"compression": options.compression, "ways": found}))


def _line(figure: Figure) -> str:
    return f"{figure.rows_per_s:,.0f} rows/s, {figure.cpu_us_per_row:.2f} µs of CPU a row"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--batch", type=int, default=None, help="maximum records of a batch (default: all at once)")
    parser.add_argument(
        "--compression", default="zstd", choices=("zstd", "snappy"), help="compression of bronze's files"
    )
    parser.add_argument("--only", action="append", choices=WAYS, help="run this variant and its peer; repeatable")
    parser.add_argument("--alone", action="store_true", help="run without Kafka: print figures, no ratios")
    parser.add_argument("--folder", default=None, help="folder for the logs (default: the system's temporary folder)")
    parser.add_argument("--latency", action="store_true", help="measure publish to commit at a steady rate instead")
    parser.add_argument("--seconds", type=int, default=60, help="with --latency: duration of each run")
    parser.add_argument("--rate", type=int, default=10_000, help="with --latency: messages per second")
    parser.add_argument("--triggers", default="1", help="with --latency: trigger seconds, separated by commas")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
