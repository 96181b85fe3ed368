"""Checks the demo's promise: every acknowledged publish is in bronze exactly once. Also measures the latency.

Reads the data files that the Delta log of bronze names, and the devices' own list of acknowledgements. It never writes,
and it does not follow files that a later commit replaces: nothing compacts bronze while the demo runs.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq

MICROS_PER_MS = 1_000
NANOS_PER_MICRO = 1_000

_PLACE = ["log_id", "partition", "offset"]
_MESSAGE = ["device_id", "payload_hash"]
_ACKED_TYPES = {"device_id": pa.string(), "seq": pa.int64(), "payload_hash": pa.int64(), "acked_us": pa.int64()}


@dataclass(frozen=True, slots=True)
class Account:
    """`bronze_rows`: rows published by the devices of this run. `missing`: acknowledged payloads that are not in bronze
    byte for byte. `duplicates`: rows beyond the first with the same (log_id, partition, offset), or beyond the first
    with the same device and payload. `resent` are the latter at a broker that was restarted: a device sends again what
    was not acknowledged, and at QoS 1 the broker may store it twice. Latencies are from the publish, by the device's
    clock, to the Delta commit."""

    bronze_rows: int
    missing: int
    duplicates: int
    p50_ms: float
    p99_ms: float
    resent: int = 0


def read_acked(path: Path) -> pa.Table:
    """The devices' list with the columns device_id, seq, payload_hash, acked_us, one row per acknowledgement.

    An incomplete last line, which a killed process leaves behind, is skipped.
    """
    text = path.read_bytes() if path.exists() else b""
    whole = text[: text.rfind(b"\n") + 1]
    if not whole:
        return pa.table({name: pa.array([], kind) for name, kind in _ACKED_TYPES.items()})
    return csv.read_csv(
        pa.BufferReader(whole),
        read_options=csv.ReadOptions(column_names=list(_ACKED_TYPES)),
        convert_options=csv.ConvertOptions(column_types=_ACKED_TYPES),
    )


def take_account(
    bronze: Path, acked: pa.Table, *, devices: Collection[str], since_us: int = 0, restarted: Collection[str] = ()
) -> Account:
    """Compares the bronze table at `bronze` with `acked` (columns device_id, payload_hash).

    Counts only rows that one of `devices` stamped at `since_us` or later: other clients may publish too, and a kept
    data folder holds the rows of earlier runs. `restarted` are the devices of brokers that were restarted.
    """
    places: list[pa.Table] = []
    messages = _Messages(frozenset(devices), since_us)
    for file, committed_us in committed_files(bronze):
        rows = pq.read_table(file, columns=[*_PLACE, "client_id", "value"], partitioning=None)
        places.append(rows.select(_PLACE))
        messages.add(rows, committed_us)
    seen = messages.table()
    # A second acknowledgement of the same message adds no promise.
    promised = acked.select(_MESSAGE).group_by(_MESSAGE).aggregate([])
    may_resend = pc.is_in(seen["device_id"], pa.array(sorted(restarted), pa.string()))
    resent = _beyond_first(seen.filter(may_resend), _MESSAGE)
    twice = _beyond_first(seen, _MESSAGE) - resent
    return Account(
        bronze_rows=seen.num_rows,
        missing=promised.join(seen, keys=_MESSAGE, join_type="left anti").num_rows,
        duplicates=max(_beyond_first(pa.concat_tables(places), _PLACE) if places else 0, twice),
        p50_ms=messages.latency_ms(0.50),
        p99_ms=messages.latency_ms(0.99),
        resent=resent,
    )


def committed_files(table: Path, *, after: int = -1) -> Iterator[tuple[Path, int]]:
    """Every data file that commits above version `after` added, with the time of the commit in µs.

    That time is the modification time of the commit's file, as Delta itself defines it.
    """
    for version in commit_versions(table, after=after):
        commit = commit_path(table, version)
        committed_us = commit.stat().st_mtime_ns // NANOS_PER_MICRO
        for add in added_files(commit):
            yield table / unquote(add["path"]), committed_us


def commit_versions(table: Path, *, after: int = -1) -> list[int]:
    """The versions above `after`, in order."""
    names = (entry.stem for entry in (table / "_delta_log").glob("*.json"))
    return sorted(version for name in names if name.isdigit() and (version := int(name)) > after)


def commit_path(table: Path, version: int) -> Path:
    return table / "_delta_log" / f"{version:020}.json"


def added_files(commit: Path) -> Iterator[dict[str, Any]]:
    for line in commit.read_text().splitlines():
        action = json.loads(line) if line else {}
        if "add" in action:
            yield action["add"]


class _Messages:
    """The rows that devices published, added file by file: device, payload, latency."""

    def __init__(self, devices: frozenset[str], since_us: int) -> None:
        self._devices, self._since_us = devices, since_us
        self._ids: list[str] = []
        self._hashes, self._latencies_us = array("q"), array("q")

    def add(self, rows: pa.Table, committed_us: int) -> None:
        for client_id, value in zip(rows["client_id"].to_pylist(), rows["value"].to_pylist(), strict=True):
            stamped_us = _stamp(value) if client_id in self._devices else None
            if stamped_us is None or stamped_us < self._since_us:
                continue
            self._ids.append(client_id)
            self._hashes.append(_payload_hash(value))
            self._latencies_us.append(committed_us - stamped_us)

    def table(self) -> pa.Table:
        hashes = pa.array(self._hashes.tolist(), pa.int64())
        return pa.table({"device_id": pa.array(self._ids, pa.string()), "payload_hash": hashes})

    def latency_ms(self, share: float) -> float:
        """The latency that this `share` of the rows does not exceed; 0 without rows."""
        if not self._latencies_us:
            return 0.0
        found = pc.quantile(pa.array(self._latencies_us.tolist()), q=share, interpolation="lower")
        return round(float(found[0].as_py()) / MICROS_PER_MS, 1)


def _stamp(value: bytes) -> int | None:
    """The device's time in µs, or None if this is not a payload of a simulated device."""
    try:
        stamp = json.loads(value)["ts"]
    except (ValueError, KeyError, TypeError):
        return None
    return stamp if isinstance(stamp, int) else None


def _payload_hash(payload: bytes) -> int:
    """The same hash that the fleet records: the first 8 bytes of the sha256, big-endian, signed."""
    return int.from_bytes(hashlib.sha256(payload).digest()[:8], "big", signed=True)


def _beyond_first(rows: pa.Table, key: list[str]) -> int:
    return int(rows.num_rows - rows.select(key).group_by(key).aggregate([]).num_rows)
