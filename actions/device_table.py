"""Reads the table `devices` by what has changed in it: ten new rows of a million do not read the other ones again.

The change data say only which ids have changed. The rows of these ids are then read from the table itself, so that
several rows with one id, or a change during the read, give what a look at the whole table gives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from actions.engine.action import DeviceTable
from actions.repeated_devices import RepeatedDevices
from actions.rows import devices_of
from sinks.sql_text import literal

log = logging.getLogger(__name__)

_IDS_MAX = 1_000
"""With more changed ids the whole table is read: DataFusion recurses over the ids of a statement."""


class ReadDevices:
    """The devices as they were read last. A row that has not changed stays the same object, see `engine.tick`."""

    def __init__(self) -> None:
        self._devices: DeviceTable | None = None
        self._repeated = RepeatedDevices()
        self.version = -1

    def changed(self, table: DeltaTable, query: Callable[[str], list[dict[str, Any]]]) -> DeviceTable | None:
        """The whole table, or None if nothing has changed. `query` asks the table."""
        version = table.version()
        if version == self.version:
            return None
        before = self._devices
        ids = None if before is None else _changed_ids(table, self.version + 1, version)
        if before is None or ids is None:
            self._devices = self._whole(before, query)
        elif ids:
            self._devices = self._some(before, ids, query)
        self.version = version
        return None if self._devices is before else self._devices

    def _whole(self, before: DeviceTable | None, query: Callable[[str], list[dict[str, Any]]]) -> DeviceTable:
        rows = query("SELECT * FROM devices")
        self._repeated.warn(rows)
        found = devices_of(rows)
        for id_, device in (before or {}).items():
            if found.get(id_) == device:
                found[id_] = device
        return found

    def _some(
        self, before: DeviceTable, ids: frozenset[str], query: Callable[[str], list[dict[str, Any]]]
    ) -> DeviceTable:
        asked = ", ".join(literal(id_) for id_ in sorted(ids))
        rows = query(f"SELECT * FROM devices WHERE device_id IN ({asked})")
        self._repeated.warn(rows, among=ids)
        new = devices_of(rows)
        found = DeviceTable(before, retired=(before.retired - ids) | new.retired)
        for id_ in ids - new.keys():
            found.pop(id_, None)
        found.update(new)
        return found


def _changed_ids(table: DeltaTable, first: int, last: int) -> frozenset[str] | None:
    """The ids whose rows changed in these versions; None if there are many, or nobody can say."""
    try:
        feed = pa.table(table.load_cdf(starting_version=first, ending_version=last, columns=["device_id"]).read_all())
        ids = frozenset(id_ for id_ in feed.column("device_id").to_pylist() if id_)
    except (MemoryError, ImportError):
        raise
    except Exception as error:  # A missing file raises no specific class.
        log.warning("cannot read the history of devices from version %d on: reading the whole table: %s", first, error)
        return None
    return ids if len(ids) <= _IDS_MAX else None
