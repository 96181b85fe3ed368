"""The checkpoint of a streaming query, in a local folder or an object store. Spark writes it, nothing here does."""

from __future__ import annotations

import pyarrow as pa

from broker_edge.errors import SinkError
from sinks.folder import TableFolder
from sinks.store import StoreAccess


def has_finished_a_batch(checkpoint: str, access: StoreAccess) -> bool:
    """Whether a checkpoint is past its first batch. False if unknown, which only costs a read of the table."""
    try:
        return any(name.isdigit() for name in TableFolder.of(checkpoint, access).names("commits"))
    except (SinkError, OSError, pa.ArrowException):
        return False


def synced_checkpoint(checkpoint: str) -> dict[str, str]:
    """The options of a source that waits until the checkpoint is on disk before the group learns of a batch. Empty for
    a checkpoint in an object store."""
    try:
        folder = TableFolder.of(checkpoint).local
    except SinkError:
        return {}
    return {} if folder is None else {"syncCheckpoint": str(folder)}
