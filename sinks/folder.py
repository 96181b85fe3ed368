"""The folder of a table that is written by path: the only module that knows how to write files to local disks and
object stores.

Supports local folders, `file://`, `s3://` (and `s3a://`), `gs://`, `abfss://`, and `dbfs:/Volumes/…`, which is a local
folder on a cluster. The stores' libraries read their credentials from the environment; none is kept here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs

from broker_edge.errors import SinkError


@dataclass(frozen=True, slots=True)
class TableFolder:
    """A small value that is sent to tasks; connections are opened where it is used."""

    uri: str

    @classmethod
    def of(cls, path: str) -> TableFolder:
        """Makes it from the path of a table; raises `SinkError` for an unknown kind of store."""
        text = path.rstrip("/")
        if text.startswith("dbfs:/Volumes/"):
            text = text.removeprefix("dbfs:")
        elif text.startswith("s3a://"):
            text = "s3://" + text.removeprefix("s3a://")
        elif "://" not in text:
            text = str(Path(text).absolute())
        folder = cls(text)
        folder._resolved()
        return folder

    def open(self, name: str) -> pa.NativeFile:
        """Opens a new file for writing. `name` is relative to this folder and may contain slashes; missing folders are
        created."""
        filesystem, base = self._resolved()
        whole = f"{base}/{name}"
        if isinstance(filesystem, fs.LocalFileSystem):
            # Object stores have no folders to create.
            filesystem.create_dir(whole.rpartition("/")[0], recursive=True)
        return filesystem.open_output_stream(whole, compression=None)

    def remove(self, name: str) -> None:
        """Removes a file. A missing file is not an error."""
        filesystem, base = self._resolved()
        try:
            filesystem.delete_file(f"{base}/{name}")
        except FileNotFoundError:
            return

    def modified_s(self, name: str) -> float | None:
        """When the file was last written, in seconds since 1970, or None if it does not exist."""
        filesystem, base = self._resolved()
        found = filesystem.get_file_info(f"{base}/{name}")
        return None if found.type == fs.FileType.NotFound else float(found.mtime_ns) / 1e9

    def table(self) -> DeltaTable:
        """The newest version of the Delta table in this folder."""
        return DeltaTable(self.uri)

    def _resolved(self) -> tuple[fs.FileSystem, str]:
        try:
            filesystem, base = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowException, ValueError) as error:
            raise SinkError(
                f"cannot write files to {self.uri} ({error}): use a folder, s3://, gs:// or abfss://, "
                "or bronze.writer: spark"
            ) from error
        return filesystem, base.rstrip("/")
