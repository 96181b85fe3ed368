"""Tables for notebooks: opened by address, without a JVM, in DuckDB, Polars or Arrow; and labelled charts.

Needs the extras `spark` and `notebooks`. Reads only. Where the tables are comes from the environment (`TABLES`,
`BRONZE`), from a settings file of the jobs, or from the caller; how a store is reached from the environment or from
`storage.options`, as in the jobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaError, TableNotFoundError
from pyarrow import fs

from broker_edge.errors import SettingsError
from pipelines.settings import load_settings
from sinks.store import StoreAccess, is_remote
from sinks.tables import uri_of
from sinks.tables.views import VIEWS

if TYPE_CHECKING:
    import duckdb
    import polars as pl

BRONZE = "bronze_telemetry"

__all__ = ["BRONZE", "Commit", "Tables", "chart"]


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit that added rows: its version, when its file was there to read, and its data files."""

    version: int
    at: datetime
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables under `root`, a folder or `s3://…`. `bronze` is the address of bronze where that is elsewhere
    (default: `bronze_telemetry` under the root)."""

    root: str
    bronze: str | None = None
    access: StoreAccess = field(default_factory=lambda: StoreAccess.of({}))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Tables | None:
        """`TABLES` is the root, `BRONZE` the address of bronze. None without `TABLES`."""
        root = environ.get("TABLES")
        return cls(_absolute(root), _absolute(environ.get("BRONZE") or None)) if root else None

    @classmethod
    def of_settings(cls, path: Path) -> Tables:
        """Where the jobs with this settings file write. Raises SettingsError for tables by name: only Spark knows
        where these are."""
        settings = load_settings(path)
        if settings.silver.root is None or settings.telemetry.table_path is None:
            raise SettingsError(f"{path} has tables by name (catalog.schema): read these in Spark, spark.table(…)")
        access = StoreAccess.of(settings.storage.options)
        return cls(_absolute(settings.silver.root), _absolute(settings.telemetry.table_path), access)

    def address(self, name: str) -> str:
        """The address of a table, for Spark and other programs."""
        return self.bronze if name == BRONZE and self.bronze is not None else uri_of(self.root, name)

    def delta(self, name: str) -> DeltaTable:
        """The table in deltalake. Raises SettingsError if there is none."""
        address = self.address(name)
        try:
            return DeltaTable(address, storage_options=self.access.deltalake())
        except TableNotFoundError as error:
            raise SettingsError(
                f"there is no table at {address}: set TABLES to the folder or address with the tables, and BRONZE to "
                f"the address of {BRONZE} if that is elsewhere"
            ) from error
        except (DeltaError, OSError) as error:
            raise SettingsError(f"cannot open the table at {address}: {error}") from error

    def names(self) -> list[str]:
        """The tables that are there."""
        filesystem, base = self._filesystem(self.root)
        found = filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True))
        there = {info.base_name for info in found if info.type is fs.FileType.Directory}
        has_log = [one for one in there if self._is_table(filesystem, f"{base}/{one}")]
        return sorted({*has_log, *([BRONZE] if self.bronze is not None else [])})

    def dataset(self, name: str) -> ds.Dataset:
        """The table as Arrow's dataset: a query reads only the columns and files that it needs."""
        table = self.delta(name)
        filesystem, base = self._filesystem(self.address(name))
        # deltalake's own filesystem can hang Python at its end (docs/tables.md).
        return table.to_pyarrow_dataset(filesystem=fs.SubTreeFileSystem(base, filesystem))

    def duckdb(self, *names: str) -> duckdb.DuckDBPyConnection:
        """DuckDB with the tables (default: all that are there) as views of their names, and with the views of
        `sinks.tables.views` whose tables are among them. Times are shown in UTC."""
        import duckdb

        wanted = names or tuple(self.names())
        if not wanted:
            raise SettingsError(f"there are no tables under {self.root}: set TABLES to the folder that has them")
        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        for name in wanted:
            streamed = name == BRONZE or name.startswith("silver_")
            # Files that a MERGE of deltalake wrote cannot be filtered by Arrow (string_view); those tables are small.
            connection.register(name, self.dataset(name) if streamed else self.dataset(name).to_table())
        places = {name: name for name in wanted}
        for view in VIEWS:
            if all(table.name in places for table in view.over):
                connection.execute(f"CREATE TEMP VIEW {view.name} AS {view.select(places, dialect='duckdb')}")
        return connection

    def polars(self, name: str) -> pl.LazyFrame:
        """The table as a lazy frame of Polars."""
        import polars as pl

        self.delta(name)
        return pl.scan_delta(self.address(name), storage_options=self.access.object_store() or None)

    def device_names(self) -> dict[str, str]:
        """Device id to the label `name` of the table `devices`, or to the id where a device has no such label."""
        rows = QueryBuilder().register("devices", self.delta("devices"))
        found = pa.table(rows.execute("SELECT device_id, labels FROM devices").read_all()).to_pylist()
        return {row["device_id"]: dict(row["labels"] or ()).get("name", row["device_id"]) for row in found}

    def commits(self, name: str, *, since: datetime | None = None) -> list[Commit]:
        """The commits that added rows, in order, as far back as the table's log goes. Compaction adds none."""
        filesystem, base = self._filesystem(self.address(name))
        self.delta(name)
        logs = filesystem.get_file_info(fs.FileSelector(f"{base}/_delta_log"))
        found = []
        for info in sorted(logs, key=lambda info: info.base_name):
            stem, _, ending = info.base_name.partition(".")
            if ending != "json" or not stem.isdigit() or (since is not None and info.mtime < since):
                continue
            with filesystem.open_input_stream(info.path) as stream:
                files = tuple(_added(stream.read()))
            if files:
                found.append(Commit(int(stem), info.mtime.astimezone(UTC), files))
        return found

    def committed_rows(self, name: str, columns: list[str], *, since: datetime | None = None) -> pa.Table:
        """These columns of the rows that commits added, with `committed_at`: when the row could be read first.

        In an object store that time has whole seconds. Rows whose first files are removed (by vacuum) are left out.
        """
        filesystem, base = self._filesystem(self.address(name))
        parts = []
        for commit in self.commits(name, since=since):
            for file in commit.files:
                path = f"{base}/{file}"
                if filesystem.get_file_info(path).type is fs.FileType.NotFound:
                    continue
                rows = pq.read_table(path, filesystem=filesystem, columns=columns, partitioning=None)
                rows = rows.cast(pa.schema([_in_utc(one) for one in rows.schema]))
                at = pa.array([commit.at] * rows.num_rows, pa.timestamp("us", "UTC"))
                parts.append(rows.append_column("committed_at", at))
        if not parts:
            raise SettingsError(f"no commit of {self.address(name)} has files with rows: choose an earlier `since`")
        return pa.concat_tables(parts, promote_options="permissive")

    def _filesystem(self, address: str) -> tuple[fs.FileSystem, str]:
        if is_remote(address):
            return self.access.filesystem(address)
        return fs.LocalFileSystem(), address.removeprefix("file://").rstrip("/")

    @staticmethod
    def _is_table(filesystem: fs.FileSystem, path: str) -> bool:
        return bool(filesystem.get_file_info(f"{path}/_delta_log").type is fs.FileType.Directory)


def chart(title: str, x: str, y: str, *, height: float = 3.5) -> Any:
    """Matplotlib's axes with a title and a label with its unit on each axis. Raises ValueError for an empty label."""
    import matplotlib.pyplot as plt

    if not (title and x and y):
        raise ValueError("a chart needs a title and a label on both axes")
    _, axes = plt.subplots(figsize=(9, height), layout="constrained")
    axes.set_title(title)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(axis="both", alpha=0.3)
    axes.set_axisbelow(True)
    return axes


def _in_utc(column: pa.Field) -> pa.Field:
    """Spark's files have times as INT96, which Arrow reads without their zone; Delta's are in UTC."""
    return column.with_type(pa.timestamp("us", "UTC")) if pa.types.is_timestamp(column.type) else column


def _absolute(address: str | None) -> Any:
    """Spark and notebooks have other current folders."""
    return address if address is None or "://" in address else str(Path(address).absolute())


def _added(commit: bytes) -> Iterator[str]:
    """The files that a commit added with new rows; compaction says `dataChange: false`."""
    for line in commit.splitlines():
        add = json.loads(line).get("add") if line else None
        if add is not None and add.get("dataChange", True):
            yield unquote(add["path"])
