"""Records which telemetry messages of a fleet the broker has acknowledged, for comparison with what arrives.

Reading is thread-safe.
"""

from __future__ import annotations

import hashlib
import threading
import time
from array import array
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def payload_hash(payload: bytes) -> int:
    """The first 8 bytes of the sha256 of a payload as a signed integer, big-endian: the hash that `Acked` stores."""
    return int.from_bytes(hashlib.sha256(payload).digest()[:8], "big", signed=True)


class Acked:
    """The acknowledged messages: one line per telemetry message. Reading is thread-safe."""

    def __init__(self, path: Path | None = None) -> None:
        self._lock = threading.Lock()
        self._devices: list[str] = []
        self._index: dict[str, int] = {}
        self._device = array("i")
        self._seq, self._hash, self._acked_us = array("q"), array("q"), array("q")
        self._file: IO[str] | None = path.open("a", buffering=1) if path is not None else None

    def __len__(self) -> int:
        return len(self._seq)

    def add(self, device_id: str, seq: int, hash_: int) -> None:
        acked_us = time.time_ns() // 1_000
        with self._lock:
            if device_id not in self._index:
                self._index[device_id] = len(self._devices)
                self._devices.append(device_id)
            self._device.append(self._index[device_id])
            self._seq.append(seq)
            self._hash.append(hash_)
            self._acked_us.append(acked_us)
            if self._file is not None:
                self._file.write(f"{device_id},{seq},{hash_},{acked_us}\n")

    def to_table(self) -> pa.Table:
        """Columns device_id string, seq int64, payload_hash int64, acked_us int64, in the order of acknowledgement.
        Needs the extra `client`."""
        from broker_edge._arrow import pa  # A device does without it.

        with self._lock:
            codes = pa.array(list(self._device), pa.int32())
            columns = [pa.array(list(column), pa.int64()) for column in (self._seq, self._hash, self._acked_us)]
            devices = pa.DictionaryArray.from_arrays(codes, pa.array(self._devices, pa.string()))
        names = ["device_id", "seq", "payload_hash", "acked_us"]
        return pa.table([devices.cast(pa.string()), *columns], names=names)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
