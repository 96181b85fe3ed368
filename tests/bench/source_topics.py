"""Measures what many topics and brokers cost a batch: 10,000 topics on four brokers against one topic on four. Prints
one JSON object; asserts nothing about times.

    python tests/bench/source_topics.py [--topics 10000] [--brokers 4] [--batches 10] [--rows 8000]

Each case has its own brokers, filled over Flight with the same number of records. Runs of the two cases alternate. They
write to Spark's no-op sink, so a batch consists of planning, reading and bookkeeping only. `ratio` is the median over
pairs of neighbouring runs of (median batch with many topics / median batch with one); the first batches of a run are
left out.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from broker_edge import Client, Row  # noqa: E402
from broker_edge.torture.process import BrokerProcess  # noqa: E402
from pipelines.spark.session import spark_session  # noqa: E402

FILTER = "devices/+/telemetry"
ROWS_A_CALL = 20_000
WARM_UP = 4
RUNS = 6


def main() -> int:
    options = _options()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headwater-bench-")))
        servers = {}
        for topics in (1, options.topics):
            servers[topics] = [
                _filled(stack, folder / f"{topics}-{number}", topics, options) for number in range(options.brokers)
            ]
        print(json.dumps(_measured(folder, servers, options)))
    return 0


def _filled(stack: ExitStack, folder: Path, topics: int, options: argparse.Namespace) -> str:
    """A broker with its share of the records, which go to the topics in turn."""
    folder.mkdir()
    process = stack.enter_context(BrokerProcess(data_dir=folder / "log", log_file=folder / "log.txt"))
    process.start()
    address = "grpc://{}:{}".format(*process.flight)
    records = options.rows * options.batches // options.brokers
    with Client(address, timeout_s=600) as client:
        for start in range(0, records, ROWS_A_CALL):
            numbers = range(start, min(start + ROWS_A_CALL, records))
            client.produce([Row(topic=f"devices/d{n % topics}/telemetry", value=b"x" * 64) for n in numbers])
    return address


def _measured(folder: Path, servers: dict[int, list[str]], options: argparse.Namespace) -> dict[str, object]:
    spark = spark_session("bench", cores="local[2]")
    times: dict[int, dict[str, list[int]]] = {topics: {} for topics in servers}
    bytes_of: dict[int, int] = {}
    pairs: list[dict[int, float]] = []
    for number in range(RUNS):
        pairs.append({})
        for topics, addresses in servers.items():
            checkpoint = folder / f"checkpoint-{topics}-{number}"
            records = spark.readStream.format("headwater").options(
                servers=",".join(addresses),
                subscribe=FILTER,
                consumerGroup=f"bench-{number}",
                maxOffsetsPerTrigger=str(options.rows),
            )
            sink = records.load().writeStream.format("noop").option("checkpointLocation", str(checkpoint))
            query = sink.trigger(availableNow=True).start()
            query.awaitTermination()
            batches = [one["durationMs"] for one in query.recentProgress[WARM_UP:] if one["numInputRows"]]
            pairs[-1][topics] = statistics.median(one["triggerExecution"] for one in batches)
            for durations in batches:
                for name, milliseconds in durations.items():
                    times[topics].setdefault(name, []).append(milliseconds)
            sizes = [path.stat().st_size for path in (checkpoint / "offsets").glob("[0-9]*")]
            bytes_of[topics] = max(bytes_of.get(topics, 0), *sizes)
    spark.stop()
    one, many = servers
    ratios = [round(pair[many] / pair[one], 2) for pair in pairs]
    return {
        "brokers": options.brokers,
        "topics": options.topics,
        "rows_a_batch": options.rows,
        "batches": len(times[many]["triggerExecution"]),
        "ratio": round(statistics.median(ratios), 2),
        "ratios": ratios,
        "offset_file_bytes": {str(topics): size for topics, size in bytes_of.items()},
        "median_ms": {
            str(topics): {name: statistics.median(values) for name, values in sorted(of.items())}
            for topics, of in times.items()
        },
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--brokers", type=int, default=4)
    parser.add_argument("--batches", type=int, default=10, help="batches of a run, including the first ones")
    parser.add_argument("--rows", type=int, default=8_000, help="rows of a batch, from all brokers")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
