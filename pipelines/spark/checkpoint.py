"""The checkpoint of a streaming query, which Spark writes to a folder or an object store, and the folders to sync."""

from __future__ import annotations

import logging
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from broker_edge.errors import SettingsError, SinkError
from sinks.connect import is_connect
from sinks.folder import TableFolder
from sinks.store import StoreAccess

log = logging.getLogger(__name__)


def has_finished_a_batch(checkpoint: str, access: StoreAccess) -> bool:
    """Whether a checkpoint is past its first batch. False if unknown, which only costs a read of the table."""
    try:
        return any(name.isdigit() for name in TableFolder.of(checkpoint, access).names("commits"))
    except (SinkError, OSError, pa.ArrowException):
        return False


def repair_checkpoint(checkpoint: str) -> None:
    """Removes the newest file of offsets and of commits if a power cut has left it empty, because Spark would refuse to
    start. Such a batch is planned again: with offsets that are not on disk it is in no table, as jobs sync them first.
    """
    try:
        folder = TableFolder.of(checkpoint).local
    except SinkError:
        return
    for kind in ("offsets", "commits"):
        numbers = [int(one.name) for one in (folder / kind).glob("[0-9]*") if one.name.isdigit()] if folder else []
        if not numbers or folder is None:
            continue
        newest = folder / kind / str(max(numbers))
        if newest.stat().st_size == 0:
            log.warning("%s is empty after a power cut and is removed: the batch is planned again", newest)
            newest.unlink()
            newest.with_name(f".{newest.name}.crc").unlink(missing_ok=True)


def is_server_side(spark: SparkSession, sync: bool | None) -> bool:
    """Whether local folders are those of a Spark Connect server, whose commits this process cannot sync. Raises
    SettingsError if the setting wants it nevertheless."""
    if not is_connect(spark):
        return False
    if sync:
        raise SettingsError("bronze.sync does not work over Spark Connect: set it to null, or use spark-submit")
    return True


def folder_to_sync(path: str | None, access: StoreAccess, *, sync: bool | None) -> Path | None:
    """The folder of a table, root or checkpoint that a job syncs: None in an object store, and with `bronze.sync:
    false`."""
    if path is None or sync is False:
        return None
    try:
        return TableFolder.of(path, access).local
    except SinkError:
        return None


def synced_checkpoint(checkpoint: str) -> dict[str, str]:
    """The options of a source that waits until the checkpoint is on disk before the group learns of a batch. Empty for
    a checkpoint in an object store."""
    try:
        folder = TableFolder.of(checkpoint).local
    except SinkError:
        return {}
    return {} if folder is None else {"syncCheckpoint": str(folder)}
