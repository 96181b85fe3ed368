"""What a notebook looks at: the tables that the environment names, or the sample, which is made once.

| variable | meaning |
|---|---|
| `TABLES` | folder or `s3://…` with the tables; without it, the sample |
| `BRONZE` | address of bronze, if it is not `bronze_telemetry` under `TABLES` |
| `BROKER` | Flight address of a broker with the records, such as `grpc://127.0.0.1:8815` |
| `JOBS_LINES` | file with the JSON lines of `headwater jobs run … --json` |
| `SAMPLE_FOLDER` | where the sample is or will be (default: `sample-data` in the current folder) |
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_edge import Broker, Client
from broker_edge.errors import SettingsError
from pipelines.analysis import Tables
from pipelines.demo.layout import Layout
from pipelines.demo.sample import make_sample

SAMPLE = "sample-data"


@dataclass(frozen=True, slots=True)
class Place:
    """`sample` is the folder of the sample, None for tables of one's own."""

    tables: Tables
    sample: Path | None
    server: str | None
    lines: Path | None

    @property
    def has_broker(self) -> bool:
        return self.server is not None or self.sample is not None

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A client of the broker. The broker of the sample is started for it, and stopped afterwards."""
        if self.server is not None:
            with Client(self.server) as client:
                yield client
        elif self.sample is not None:
            with Broker(Layout(self.sample).broker) as broker, broker.client() as client:
                yield client
        else:
            raise SettingsError("no broker is known: set BROKER to the Flight address of the broker with the records")

    def job_lines(self) -> list[dict[str, Any]]:
        """The JSON lines of the jobs, in order; none if nobody kept them."""
        if self.lines is None:
            return []
        found = []
        for line in self.lines.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # a line that was cut off
                continue
        return [line for line in found if "job" in line]


def open_place(environ: Mapping[str, str] = os.environ) -> Place:
    """The place that the environment names. Without `TABLES` the sample, which takes about a minute the first time."""
    own = Tables.from_environment(environ)
    if own is not None:
        lines = environ.get("JOBS_LINES")
        return Place(own, None, environ.get("BROKER") or None, Path(lines) if lines else None)
    folder = Path(environ.get("SAMPLE_FOLDER") or SAMPLE).absolute()
    make_sample(folder)
    return Place(Tables(str(Layout(folder).tables)), folder, None, folder / "jobs.jsonl")


def remove_sample(environ: Mapping[str, str] = os.environ) -> None:
    """Removes the sample, if there is one."""
    shutil.rmtree(Path(environ.get("SAMPLE_FOLDER") or SAMPLE).absolute(), ignore_errors=True)
