"""Counts what the demo promises: every acknowledged publish is in bronze, once, and how long it took.

Reads the tables and the devices' own list of acknowledgements. It never writes.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

import pyarrow.parquet as pq

MICROS_PER_MS = 1_000


@dataclass(frozen=True, slots=True)
class Account:
    """`missing`: acknowledged, but not in bronze. `duplicates`: rows beyond the first with one (log_id, partition, offset), or
    with one (device, sequence number) that was sent once. Latencies are from publish to Delta commit."""

    bronze_rows: int
    missing: int
    duplicates: int
    p50_ms: float
    p99_ms: float


def take_account(bronze: Path, acked: Iterable[tuple[str, int]]) -> Account:
    """Compares the bronze table at `bronze` with the `(device id, sequence number)` pairs that devices saw acknowledged."""
    places: Counter[tuple[str, int, int]] = Counter()
    messages: Counter[tuple[str, int]] = Counter()
    latencies: list[int] = []
    for file, committed_us in _committed_files(bronze):
        table = pq.read_table(file, columns=["log_id", "partition", "offset", "client_id", "value"], partitioning=None)
        for log_id, partition, offset, client_id, value in zip(*(c.to_pylist() for c in table.columns), strict=True):
            body = json.loads(value)
            places[log_id, partition, offset] += 1
            messages[client_id, body["seq"]] += 1
            latencies.append(committed_us - body["ts"])
    latencies.sort()
    return Account(
        bronze_rows=places.total(),
        missing=sum(1 for message in set(acked) if message not in messages),
        duplicates=max(_beyond_first(places), _beyond_first(messages)),
        p50_ms=_percentile_ms(latencies, 0.50),
        p99_ms=_percentile_ms(latencies, 0.99),
    )


def _beyond_first(counts: Counter[tuple[str, int, int]] | Counter[tuple[str, int]]) -> int:
    return sum(n - 1 for n in counts.values())


def _percentile_ms(sorted_us: list[int], share: float) -> float:
    if not sorted_us:
        return 0.0
    return round(sorted_us[int(share * (len(sorted_us) - 1))] / MICROS_PER_MS, 1)


def _committed_files(table: Path) -> Iterator[tuple[Path, int]]:
    """Every data file that the Delta log names, with the time of its commit in µs."""
    for commit in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in commit.read_text().splitlines() if line]
        committed_ms = next((a["commitInfo"]["timestamp"] for a in actions if "commitInfo" in a), 0)
        for action in actions:
            if "add" in action:
                yield table / unquote(action["add"]["path"]), committed_ms * MICROS_PER_MS
