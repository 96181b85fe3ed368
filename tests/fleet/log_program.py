"""Copies the telemetry of every broker of the settings into a Parquet file: what the tables must hold.

python log_program.py pipelines.yaml logged.parquet
"""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.settings import load_settings

COLUMNS = ["log_id", "partition", "offset", "epoch", "topic", "value"]


def main(config: Path, to: Path) -> None:
    settings = load_settings(config)
    filters = settings.telemetry.subscribe
    found = []
    for broker in settings.fleet():
        with broker.client() as client:
            for number, bounds in client.offsets(filters=filters).partitions.items():
                rows = client.fetch(number, bounds.log_start, bounds.high_watermark, filters=filters).to_table()
                found.append(rows.select(COLUMNS))
    pq.write_table(pa.concat_tables(found), to)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
