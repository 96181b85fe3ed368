"""The program of `test_source_connect`: the source, a native sink and a batch read over Spark Connect. Runs in its own
process, because a process has only one kind of session. Prints one JSON object.

    python tests/spark/connect_program.py SERVER FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from pipelines.spark.jars import delta_jars
from sources import register

FILTER = "devices/+/telemetry"


def main(server: str, folder: Path) -> int:
    builder = SparkSession.builder.remote("local[2]")
    settings = {
        "spark.jars": ",".join(str(jar.absolute()) for jar in delta_jars(None)),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    options = {"servers": server, "subscribe": FILTER}
    batch = spark.read.format("headwater").options(**options).load()
    records = spark.readStream.format("headwater").options(**options, maxOffsetsPerTrigger="400").load()
    sink = records.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    query = sink.option("path", str(folder / "table")).trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.read.format("delta").load(str(folder / "table"))
    found = {
        "session": type(spark).__module__,
        "batch": batch.count(),
        "one_topic": batch.where("topic = 'devices/d3/telemetry'").count(),
        "streamed": rows.count(),
        "places": rows.select("log_id", "partition", "offset").distinct().count(),
    }
    spark.stop()
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
