"""The source over Spark Connect: batch, stream and native sink, from a client without its own JVM."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from support.flight_server import FlightServer

from pipelines.spark.jars import JARS_ENV, default_folder
from pipelines.spark.worker_python import worker_python

PROGRAM = Path(__file__).with_name("connect_program.py")
RUN_S = 800


def test_batch_stream_and_native_sink_work_over_connect(flight_server: FlightServer, tmp_path: Path) -> None:
    for number in range(1_000):
        flight_server.log.append(f"devices/d{number % 20}/telemetry", b"%d" % number)
    root = str(PROGRAM.parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
        "PYSPARK_PYTHON": worker_python(),
        JARS_ENV: str(default_folder().absolute()),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    # The server resolves its tables' folder against its working folder.
    done = subprocess.run(
        [sys.executable, str(PROGRAM), flight_server.location, str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=RUN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {
        "session": "pyspark.sql.connect.session",
        "batch": 1_000,
        "one_topic": 50,
        "streamed": 1_000,
        "places": 1_000,
    }
    assert flight_server.calls["topics"] == 1, "filters are pushed down"
