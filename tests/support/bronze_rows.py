"""Rows of bronze without a broker: payloads under topics at consecutive offsets, as the telemetry job writes them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

LOG_ID = "0f0e0d0c-0b0a-0908-0706-050403020100"
START = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)

_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", "UTC")),
        ("timestampType", pa.int32()),
        ("log_id", pa.string()),
        ("epoch", pa.int64()),
        ("qos", pa.int8()),
        ("retain", pa.bool_()),
        ("client_id", pa.string()),
        ("tenant", pa.string()),
        ("ingest_date", pa.date32()),
    ]
)


class BronzeTable:
    """A bronze table at `path`; each `append` is one commit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offset = 0

    def append(self, payloads: Iterable[Any], *, topic: str = "devices/d1/telemetry") -> None:
        """Payloads other than bytes are written as JSON."""
        rows = []
        for payload in payloads:
            value = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
            at = START + datetime.timedelta(seconds=self.offset)
            rows.append(
                {
                    "key": topic.split("/")[1].encode(),
                    "value": value,
                    "topic": topic,
                    "partition": 3,
                    "offset": self.offset,
                    "timestamp": at,
                    "timestampType": 1,
                    "log_id": LOG_ID,
                    "epoch": 1,
                    "qos": 1,
                    "retain": False,
                    "client_id": "c1",
                    "tenant": "t1",
                    "ingest_date": at.date(),
                }
            )
            self.offset += 1
        table = pa.Table.from_pylist(rows, schema=_SCHEMA)
        write_deltalake(self.path, table, mode="append", partition_by=["ingest_date"])
