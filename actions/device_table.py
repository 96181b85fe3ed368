"""Reads the table `devices` by what has changed in it: ten new rows of a million do not read the other ones again.

The change data say only which ids have changed. The rows of these ids are then read from the table itself, so that
several rows with one id, or a change during the read, give what a look at the whole table gives.

The whole table is read in batches: the rows of a million devices as dictionaries take a gigabyte.

A device with rows of several tenants stays with the first one: the tenant that it had at the last look, otherwise the
one in its row of `device_state`, otherwise that of the row that was committed first. `unkept` says which of them have
no such row there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable

from actions.columns import DEVICE_COLUMNS, devices_in
from actions.engine.action import DeviceTable
from actions.repeated_devices import RepeatedDevices, contested, repeated_ids
from actions.rows import devices_of
from sinks.sql_text import literal
from sinks.table_query import Take

log = logging.getLogger(__name__)

_IDS_MAX = 1_000
"""With more changed ids the whole table is read: DataFusion recurses over the ids of a statement."""


class Asking(Protocol):
    """Asks the newest version of the table."""

    def rows(self, sql: str) -> list[dict[str, Any]]: ...

    def kept_tenants(self, ids: Collection[str]) -> Mapping[str, str]:
        """The tenants of these devices in `device_state`."""

    def first_tenants(self, ids: Collection[str]) -> Mapping[str, str]:
        """The tenants of the first rows that were committed for these devices, as far as anybody can say."""

    def streamed(self, sql: str, take: Take[None]) -> None: ...


class ReadDevices:
    """The devices as they were read last. A row that has not changed stays the same object, see `engine.tick`."""

    def __init__(self) -> None:
        self._devices: DeviceTable | None = None
        self._given: DeviceTable | None = None
        self._repeated = RepeatedDevices()
        self.unkept: dict[str, str] = {}
        """The tenants of contested devices that `device_state` does not say: store them and clear this."""
        self.version = -1

    def same_id(self, device_id: str) -> str:
        """The object of this id in the devices that were read, so that a target has no copy of it."""
        known = None if self._devices is None else self._devices.get(device_id)
        return device_id if known is None else known.device_id

    def changed(self, table: DeltaTable, asking: Asking) -> DeviceTable | None:
        """The whole table, or None if nothing has changed since the last call."""
        self.read(table, asking)
        before, self._given = self._given, self._devices
        return None if self._devices is before else self._devices

    def read(self, table: DeltaTable, asking: Asking) -> None:
        """Reads what has changed, for the next call of `changed`."""
        version = table.version()
        if version == self.version:
            return
        before = self._devices
        ids = None if before is None else _changed_ids(table, self.version + 1, version)
        if before is None or ids is None:
            self._devices = self._whole(before or DeviceTable({}), table, asking)
        elif ids:
            self._devices = self._some(before, ids, asking)
        self.version = version

    def _whole(self, before: DeviceTable, table: DeltaTable, asking: Asking) -> DeviceTable:
        found, retired, repeated = DeviceTable({}), set[str](), set[str]()

        def take(batches: Iterable[pa.RecordBatch]) -> None:
            found.clear()
            retired.clear()
            repeated.clear()
            for device, is_retired in (one for batch in batches for one in devices_in(batch)):
                id_ = device.device_id
                if is_retired:
                    retired.add(id_)
                elif id_ in found:
                    repeated.add(id_)
                else:
                    known = before.get(id_)
                    found[id_] = device if known is None or known != device else known

        there = {field.name for field in table.schema().fields}
        asking.streamed(f"SELECT {', '.join(one for one in DEVICE_COLUMNS if one in there)} FROM devices", take)
        self._repeated.warn(repeated)
        for ids in _parts(sorted(repeated)):
            new = self._chosen(before, asking.rows(_of(ids)), asking)
            for id_ in ids:
                del found[id_]
            found.update({id_: before[id_] if before.get(id_) == device else device for id_, device in new.items()})
        found.retired = frozenset(retired - found.keys())
        return found

    def _some(self, before: DeviceTable, ids: frozenset[str], asking: Asking) -> DeviceTable:
        rows = asking.rows(_of(sorted(ids)))
        self._repeated.warn(repeated_ids(rows), among=ids)
        new = self._chosen(before, rows, asking)
        found = DeviceTable(before, retired=(before.retired - ids) | new.retired)
        for id_ in ids - new.keys():
            found.pop(id_, None)
        found.update(new)
        return found

    def _chosen(self, before: DeviceTable, rows: list[dict[str, Any]], asking: Asking) -> DeviceTable:
        """The devices of these rows, of which some may have several."""
        tenants = contested(rows)
        if not tenants:
            return devices_of(rows)
        kept = asking.kept_tenants(tenants)
        owners = {}
        for id_, there in tenants.items():
            known = before.get(id_)
            said = (None if known is None else known.tenant, kept.get(id_))
            owner = next((one for one in said if one in there), None)
            if owner is not None:
                owners[id_] = owner
        if left := tenants.keys() - owners.keys():
            first = asking.first_tenants(left)
            owners |= {id_: tenant for id_, tenant in first.items() if tenant in tenants[id_]}
        new = devices_of(rows, owners)
        owners = {id_: new[id_].tenant for id_ in tenants}
        self.unkept |= {id_: tenant for id_, tenant in owners.items() if kept.get(id_) != tenant}
        self._repeated.tell(owners)
        return new


def _of(ids: Iterable[str]) -> str:
    return f"SELECT * FROM devices WHERE device_id IN ({', '.join(map(literal, ids))})"


def _parts(ids: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(ids), _IDS_MAX):
        yield ids[start : start + _IDS_MAX]


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
