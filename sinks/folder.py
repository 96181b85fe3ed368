"""The folder of a table that is written by path: the one place that knows how files are put on local disks and stores.

Local folders, `file://`, `s3://` (and `s3a://`), `gs://`, `abfss://`, and `dbfs:/Volumes/…`, which is a local folder on
a cluster. Credentials of stores come from the environment, as their own libraries read them; none is kept here.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs

from sinks.errors import SinkError


@dataclass(frozen=True, slots=True)
class TableFolder:
    """A small value that goes to tasks; connections are made where it is used."""

    uri: str

    @classmethod
    def of(cls, path: str) -> TableFolder:
        """From the path of a table; `SinkError` when no store is known for it."""
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
        """A new file to write, `name` with slashes below this folder; missing folders are made."""
        filesystem, base = self._resolved()
        whole = f"{base}/{name}"
        if isinstance(filesystem, fs.LocalFileSystem):
            # Stores have no folders to make.
            filesystem.create_dir(whole.rpartition("/")[0], recursive=True)
        return filesystem.open_output_stream(whole, compression=None)

    def remove(self, name: str) -> None:
        """Removes a file; one that is not there is no error."""
        filesystem, base = self._resolved()
        try:
            filesystem.delete_file(f"{base}/{name}")
        except FileNotFoundError:
            return

    def modified_s(self, name: str) -> float | None:
        """When the file was last written, in seconds since 1970, or None when it is not there."""
        filesystem, base = self._resolved()
        found = filesystem.get_file_info(f"{base}/{name}")
        return None if found.type == fs.FileType.NotFound else float(found.mtime_ns) / 1e9

    def table(self) -> DeltaTable:
        """The Delta table in this folder, as of now."""
        return DeltaTable(self.uri)

    def _resolved(self) -> tuple[fs.FileSystem, str]:
        try:
            filesystem, base = fs.FileSystem.from_uri(self.uri)
        except (pa.ArrowException, ValueError) as error:
            raise SinkError(
                f"no way to write files to {self.uri} is known ({error}): use a folder, s3://, gs:// or abfss://, "
                "or bronze.writer: spark"
            ) from error
        return filesystem, base.rstrip("/")
