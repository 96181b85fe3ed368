"""Syncs files of local folders: after a call here returns, a power cut does not lose what it names.

On Linux a file that was written, closed or renamed may be missing or empty after a power cut until the file and every
folder that names it are synced. Object stores do this themselves.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from broker_edge.errors import SinkError


def sync_file(path: Path) -> None:
    """Syncs the content of a file. Raises SinkError if the disk fails: the file may then be lost, whatever comes
    after."""
    _sync(path, os.O_RDONLY)


def sync_folders(folder: Path, *, up_to: Path) -> None:
    """Syncs the names in `folder` and in every folder above it, up to the folder that holds `up_to`."""
    last = up_to.parent
    while True:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
        if folder in (last, folder.parent):
            return
        folder = folder.parent


def sync_file_system(folder: Path) -> None:
    """Syncs everything on the file system of a folder: what earlier processes may have left unsynced. Takes as long as
    the disk needs for all that waits."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if libc.syncfs(descriptor) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise SinkError(f"cannot sync the file system of {folder} ({reason}): what was written may be lost")
    finally:
        os.close(descriptor)


def sync_checkpoint(checkpoint: Path, batch_id: int | None = None) -> None:
    """Syncs a streaming checkpoint of Spark: the offsets of a batch before the table has it, and without `batch_id` the
    newest offsets and commits, before anybody is told that they are finished.

    If a batch is in the table and its offsets are lost, the next run plans another batch with the same number, and the
    table takes it for the batch that it has.
    """
    names = {"offsets": batch_id} if batch_id is not None else {"offsets": None, "commits": None}
    for name, number in names.items():
        folder = checkpoint / name
        if not folder.is_dir():
            continue
        newest = number if number is not None else _newest(folder)
        if newest is not None:
            _sync_with_checksum(folder / str(newest))
        sync_folders(folder, up_to=checkpoint)
    if (checkpoint / "metadata").exists():
        _sync_with_checksum(checkpoint / "metadata")


def _sync_with_checksum(path: Path) -> None:
    """Hadoop refuses a file whose checksum file is damaged."""
    sync_file(path)
    checksum = path.with_name(f".{path.name}.crc")
    if checksum.exists():
        sync_file(checksum)


def _newest(folder: Path) -> int | None:
    return max((int(name) for name in os.listdir(folder) if name.isdigit()), default=None)


def _sync(path: Path, flags: int) -> None:
    try:
        descriptor = os.open(path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SinkError(f"cannot sync {path} ({error.strerror}): what was written there may be lost") from error
