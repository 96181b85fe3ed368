"""A folder on a local disk or in an object store: the only module that knows how to write files to both.

Supports local folders, `file://`, `s3://` (and `s3a://`), `gs://`, `abfss://`, and `dbfs:/Volumes/…`, which is a local
folder on a cluster. `sinks.store` knows how a store is reached; no secret is kept here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable
from pyarrow import fs

from broker_edge.draft import open_draft
from broker_edge.sync import sync_file, sync_folders
from sinks.store import StoreAccess, is_remote


@dataclass(frozen=True, slots=True)
class TableFolder:
    """A small value that is sent to tasks; connections are opened where it is used."""

    uri: str
    access: StoreAccess = field(default_factory=StoreAccess)

    @classmethod
    def of(cls, path: str, access: StoreAccess | None = None) -> TableFolder:
        """Makes it from the path of a table; raises `SinkError` for an unknown kind of store."""
        text = path.rstrip("/")
        if text.startswith("dbfs:/Volumes/"):
            text = text.removeprefix("dbfs:")
        elif text.startswith("s3a://"):
            text = "s3://" + text.removeprefix("s3a://")
        elif "://" not in text:
            text = str(Path(text).absolute())
        folder = cls(text, access or StoreAccess.of({}))
        folder._resolved()
        return folder

    @property
    def local(self) -> Path | None:
        """The folder, if it is one of this machine."""
        return None if is_remote(self.uri) else Path(self.uri.removeprefix("file://"))

    def open(self, name: str) -> pa.NativeFile:
        """Opens a new file for writing. `name` is relative to this folder and may contain slashes; missing folders are
        created."""
        filesystem, base = self._resolved()
        whole = f"{base}/{name}"
        if isinstance(filesystem, fs.LocalFileSystem):
            # Object stores have no folders to create.
            filesystem.create_dir(whole.rpartition("/")[0], recursive=True)
        return filesystem.open_output_stream(whole, compression=None)

    def sync_content(self, name: str) -> None:
        """Returns when the content of a closed file is on disk. An object store has stored a file once it is closed."""
        if self.local is not None:
            sync_file(self.local / name)

    def read(self, name: str) -> bytes | None:
        """The content of a file, or None if it does not exist."""
        filesystem, base = self._resolved()
        try:
            with filesystem.open_input_file(f"{base}/{name}") as file:
                return bytes(file.readall())
        except FileNotFoundError:
            return None

    def replace(self, name: str, content: bytes) -> None:
        """Writes a small file. Returns when it is durable; a reader sees the old content or the new one, whole."""
        if self.local is None:
            with self.open(name) as file:
                file.write(content)
            return
        path = self.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(".new")
        with open_draft(scratch) as file:
            file.write(content)
        sync_file(scratch)
        os.replace(scratch, path)
        sync_folders(path.parent, up_to=self.local)

    def open_to_read(self, name: str) -> pa.NativeFile:
        """Opens a file of which parts are read. Raises FileNotFoundError."""
        filesystem, base = self._resolved()
        return filesystem.open_input_file(f"{base}/{name}")

    def folders(self) -> list[str]:
        """The names of the folders in this folder, sorted; none if there is no such folder."""
        filesystem, base = self._resolved()
        found = filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True))
        return sorted(one.base_name for one in found if one.type == fs.FileType.Directory)

    def names(self, folder: str = "") -> list[str]:
        """The names of the files in a folder of this folder, without path, sorted; none if there is no such folder."""
        filesystem, base = self._resolved()
        selector = fs.FileSelector(f"{base}/{folder}".rstrip("/"), allow_not_found=True)
        return sorted(one.base_name for one in filesystem.get_file_info(selector) if one.is_file)

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
        return DeltaTable(self.uri, storage_options=self.access.deltalake())

    def _resolved(self) -> tuple[fs.FileSystem, str]:
        return self.access.filesystem(self.uri)
