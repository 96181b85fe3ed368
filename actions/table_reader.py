"""The read half of the engine's store: queries and changes of its tables, with one sentence for what cannot be read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
from deltalake import DeltaTable

from actions.columns import INSERT, targets_in
from actions.engine import Target
from actions.rows import tenant_of
from broker_edge.errors import TableStoreError
from sinks.rows import now_us, rows_of
from sinks.sql_text import literal
from sinks.table_query import Take, queried, streamed

log = logging.getLogger(__name__)

T = TypeVar("T")

_VERSIONS_AT_ONCE_MAX = 8


class TableReader:
    """Reads the tables under `root`. `current` gives the newest version of one, `same_id` one object for equal ids.

    Raises TableStoreError if a table cannot be read.
    """

    def __init__(self, root: Path | str, current: Callable[[str], DeltaTable], same_id: Callable[[str], str]) -> None:
        self._root, self._current, self._same_id = root, current, same_id

    def query(self, name: str, sql: str) -> list[dict[str, Any]]:
        return self.select({name: self._current(name)}, sql)

    def select(self, tables: Mapping[str, DeltaTable], sql: str) -> list[dict[str, Any]]:
        return list(self._rows(tables, sql))

    def streamed(self, name: str, sql: str) -> Iterator[dict[str, Any]]:
        """The rows one after another: a million of them as dictionaries need gigabytes."""
        return self._rows({name: self._current(name)}, sql)

    def _rows(self, tables: Mapping[str, DeltaTable], sql: str) -> Iterator[dict[str, Any]]:
        try:
            yield from rows_of(queried(tables, sql))
        except (MemoryError, ImportError, GeneratorExit):
            raise
        except Exception as error:  # A missing or unreachable file does not raise DeltaError here.
            raise self._unreadable(tables, error) from error

    def values(
        self, name: str, read: Callable[[pa.RecordBatch, Callable[[str], str]], Iterator[T]], *, where: str
    ) -> list[T]:
        def take(batches: Iterable[pa.RecordBatch]) -> list[T]:
            return [value for batch in batches for value in read(batch, self._same_id)]

        return self.in_batches(name, f"SELECT * FROM {name} WHERE {where}", take)

    def targets(self, name: str, where: str) -> list[Target]:
        return self.values(name, targets_in, where=where)

    def _table(self, name: str, sql: str) -> pa.Table:
        tables = {name: self._current(name)}
        try:
            return queried(tables, sql)
        except (MemoryError, ImportError):
            raise
        except Exception as error:
            raise self._unreadable(tables, error) from error

    def in_batches(self, name: str, sql: str, take: Take[T]) -> T:
        tables = {name: self._current(name)}
        try:
            return streamed(tables, sql, take)
        except (MemoryError, ImportError):
            raise
        except Exception as error:
            raise self._unreadable(tables, error) from error

    def _unreadable(self, tables: Iterable[str], error: Exception) -> TableStoreError:
        names = " and ".join(tables)
        return TableStoreError(f"the table {names} under {self._root} cannot be read: {error}")

    def changes(self, name: str, after: int) -> tuple[list[dict[str, Any]], int]:
        """The rows inserted after version `after`, in the order of their commits, and the newest version."""
        feeds, version = self.feeds(name, after)
        rows = [row for feed in feeds for row in rows_of(feed) if row["_change_type"] == INSERT]
        return sorted(rows, key=lambda row: row["_commit_version"]), version

    def feeds(self, name: str, after: int, *, rows_max: int | None = None) -> tuple[list[pa.Table], int]:
        """The changes after version `after`, and the version that they reach: the newest, or the one at which
        there are about `rows_max` rows."""
        table = self._current(name)
        version = table.version()
        if version <= after:
            return [], after
        # Version 0 creates the table and has no rows.
        start = max(after + 1, 1)
        if start > version:
            return [], version
        try:
            feeds, count = [], 0
            end, at_once = start - 1, 1 if rows_max is not None else version
            while end < version and (rows_max is None or count < rows_max):
                first, end = end + 1, min(end + at_once, version)
                feed = pa.table(table.load_cdf(starting_version=first, ending_version=end).read_all())
                feeds.append(feed)
                count += feed.column("_change_type").to_pylist().count(INSERT)
                is_little = rows_max is not None and feed.num_rows < rows_max // _VERSIONS_AT_ONCE_MAX
                at_once = min(2 * at_once, _VERSIONS_AT_ONCE_MAX) if is_little else at_once
            version = end
        except (MemoryError, ImportError):
            raise
        except Exception:  # A missing file raises no specific class.
            # The log of those versions is gone, or a VACUUM removed their files. The remaining rows have no commit
            # order. Started actions are recognized by their digest, and applied reports are dropped as repeats.
            log.warning("cannot read the history of %s from version %d on: reading the whole table", name, start)
            rows = self._table(name, f"SELECT * FROM {name}")
            for stamp, value in (
                ("_commit_version", version),
                ("_commit_timestamp", now_us()),
                ("_change_type", INSERT),
            ):
                rows = rows.append_column(stamp, pa.array([value] * rows.num_rows))
            feeds = [rows]
        return feeds, version

    def first_tenants(self, ids: Collection[str]) -> dict[str, str]:
        """The tenants of the rows of `devices` that were committed first for these ids. Without those of which the
        history is gone, or of which one commit has rows of several tenants."""
        table, first = self._current("devices"), dict[str, tuple[int, set[str]]]()
        where = f"device_id IN ({', '.join(map(literal, sorted(ids)))})"
        try:
            columns = ["device_id", "tenant", "_change_type", "_commit_version"]
            feed = table.load_cdf(starting_version=0, ending_version=table.version(), columns=columns, predicate=where)
            rows = list(rows_of(pa.table(feed.read_all())))
        except (MemoryError, ImportError):
            raise
        except Exception as error:  # A missing file raises no specific class.
            log.warning("cannot read from the history of devices which tenants had them first: %s", error)
            return {}
        for row in rows:
            version, tenants = first.get(row["device_id"], (row["_commit_version"], set()))
            if row["_change_type"] == INSERT and row["_commit_version"] <= version:
                is_same = row["_commit_version"] == version
                first[row["device_id"]] = (row["_commit_version"], {*(tenants if is_same else ()), tenant_of(row)})
        return {id_: tenants.pop() for id_, (_, tenants) in first.items() if len(tenants) == 1}


class DeviceRows:
    """What may be asked about the devices."""

    def __init__(self, reader: TableReader) -> None:
        self._reader = reader

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return self._reader.query("devices", sql)

    def streamed(self, sql: str, take: Take[None]) -> None:
        self._reader.in_batches("devices", sql, take)

    def kept_tenants(self, ids: Collection[str]) -> Mapping[str, str]:
        where = f"device_id IN ({', '.join(map(literal, sorted(ids)))})"
        rows = self._reader.query("device_state", f"SELECT device_id, tenant FROM device_state WHERE {where}")
        return {row["device_id"]: tenant_of(row) for row in rows}

    def first_tenants(self, ids: Collection[str]) -> Mapping[str, str]:
        return self._reader.first_tenants(ids)
