"""How fast the log is read: Flight alone, Spark into nothing, Spark into Delta. Prints one JSON object; asserts
nothing on a time.

    python tests/bench/spark_source.py [--records 4000000] [--partitions 4] [--delta]

Starts a broker of its own on an empty folder, fills it over Flight, and reads it with two cores of Spark. Figures are
rows per second of wall time, and CPU seconds per million rows of reader and broker together. On a busy machine they
say little.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from broker_edge import Client  # noqa: E402
from broker_edge.torture.process import BrokerProcess  # noqa: E402
from pipelines.session import spark_session  # noqa: E402
from sources.flight import LogServer  # noqa: E402

DEVICES = 1_000
VALUE_BYTES = 256
ROWS_A_CALL = 100_000
FILTER = "devices/+/telemetry"
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    options = _options()
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=options.folder) as folder:
        settings = {"log.classes.telemetry.partitions": str(options.partitions)}
        with BrokerProcess(
            data_dir=Path(folder) / "log", settings=settings, log_file=Path(folder) / "log.txt"
        ) as broker:
            broker.start()
            server = "grpc://{}:{}".format(*broker.flight)
            result = {"records": options.records, "value_bytes": VALUE_BYTES, "partitions": options.partitions}
            result["fill"] = _measured(options.records, lambda: _fill(server, options.records))
            result["flight"] = _measured(options.records, lambda: _read_flight(server))
            result |= _spark_figures(server, Path(folder), options.records, delta=options.delta)
            print(json.dumps(result))
    return 0


def _spark_figures(server: str, folder: Path, records: int, *, delta: bool) -> dict[str, object]:
    spark = spark_session("bench", cores="local[2]")
    rows = spark.read.format("headwater").option("servers", server).option("subscribe", FILTER)
    # The first read compiles; a job that runs for days does not.
    rows.load().limit(1_000_000).write.format("noop").mode("overwrite").save()
    found: dict[str, object] = {}

    def noop() -> None:
        rows.load().write.format("noop").mode("overwrite").save()

    found["spark_noop"] = _measured(records, noop)

    def stream(sink: str) -> None:
        source = spark.readStream.format("headwater").option("servers", server).option("subscribe", FILTER)
        source = source.option("maxOffsetsPerTrigger", "1000000").load()
        writer = source.writeStream.format(sink).option("checkpointLocation", str(folder / f"{sink}-checkpoint"))
        if sink == "delta":
            writer = writer.option("path", str(folder / "delta"))
        writer.trigger(availableNow=True).start().awaitTermination()

    found["spark_stream_noop"] = _measured(records, lambda: stream("noop"))
    if delta:
        found["spark_stream_delta"] = _measured(records, lambda: stream("delta"))
    spark.stop()
    return found


def _fill(server: str, records: int) -> None:
    topics = pa.array([f"devices/d{number:04}/telemetry" for number in range(DEVICES)])
    value = os.urandom(VALUE_BYTES)
    with Client(server, timeout_s=600) as client:
        for start in range(0, records, ROWS_A_CALL):
            count = min(ROWS_A_CALL, records - start)
            chosen = topics.take(pa.array([(start + row) % DEVICES for row in range(count)]))
            values = pa.array([value] * count, type=pa.binary())
            client.produce(pa.table({"topic": chosen, "value": values}))


def _read_flight(server: str) -> None:
    """All partitions at once, a thread each, counted by columns."""
    with Client(server) as client:
        bounds = client.offsets(filters=FILTER)
    counts: list[int] = []

    def read(partition: int, start: int, end: int) -> None:
        with_log = LogServer(server)
        batches = with_log.get(partition, start, end, filters=[FILTER], timeout_seconds=600)
        counts.append(sum(batch.num_rows for batch, _ in batches))
        with_log.close()

    threads = [
        threading.Thread(target=read, args=(number, place.log_start, place.high_watermark))
        for number, place in bounds.partitions.items()
        if place.log_start < place.high_watermark
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _measured(rows: int, action: Callable[[], None]) -> dict[str, object]:
    before, wall = _cpu_seconds(), time.monotonic()
    action()
    wall, after = time.monotonic() - wall, _cpu_seconds()
    cpu = {name: round((seconds - before.get(name, 0.0)) / rows * 1e6, 2) for name, seconds in after.items()}
    return {
        "rows_per_s": round(rows / wall),
        "seconds": round(wall, 2),
        "cpu_s_per_million": round(sum(cpu.values()), 2),
        "by_program": {name: seconds for name, seconds in sorted(cpu.items()) if seconds},
    }


def _cpu_seconds() -> dict[str, float]:
    """CPU by program of this process and its descendants that live, with the children they have buried."""
    children: dict[int, list[int]] = {}
    used: dict[int, tuple[str, int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        fields = tail.split()
        children.setdefault(int(fields[1]), []).append(int(entry.name))
        used[int(entry.name)] = (head.partition("(")[2], sum(int(field) for field in fields[11:15]))
    wanted, total = [os.getpid()], dict[str, float]()
    while wanted:
        pid = wanted.pop()
        name, ticks = used.get(pid, ("gone", 0))
        total[name] = total.get(name, 0.0) + ticks / _TICKS
        wanted += children.get(pid, [])
    return total


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--folder", default=None, help="where the log goes (default: the system's temporary folder)")
    parser.add_argument("--delta", action="store_true", help="also into Delta")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
