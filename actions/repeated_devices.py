"""Says which devices are in several rows of the table `devices`. `rows.devices_of` decides which row counts.

A device whose rows are of several tenants is *contested*: it stays with the tenant that had it first, whatever the
rows say about when they were created, so that nobody takes over the device of another tenant with a row.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Set

from actions.rows import tenant_of
from sinks.rows import Row

log = logging.getLogger(__name__)

_SHOWN_MAX = 5
_ID_MAX = 100


def repeated_ids(rows: Collection[Row]) -> list[str]:
    """The ids of devices in use that are in several rows, sorted."""
    counts = Counter(row["device_id"] for row in rows if row["device_id"] and row.get("retired_at") is None)
    return sorted(id_ for id_, number in counts.items() if number > 1)


def contested(rows: Collection[Row]) -> dict[str, frozenset[str]]:
    """The tenants by device id, of devices in use that have several."""
    found: dict[str, set[str]] = {}
    for row in rows:
        if row["device_id"] and row.get("retired_at") is None:
            found.setdefault(row["device_id"], set()).add(tenant_of(row))
    return {id_: frozenset(tenants) for id_, tenants in found.items() if len(tenants) > 1}


class RepeatedDevices:
    """Warns in the log whenever there are others than at the last look."""

    def __init__(self) -> None:
        self._known: list[str] = []
        self._told: set[tuple[str, str]] = set()

    def tell(self, owners: Mapping[str, str]) -> None:
        """`owners` are contested devices and their tenants. Each is told once."""
        new = sorted(set(owners.items()) - self._told)
        self._told = {one for one in self._told if owners.get(one[0], one[1]) == one[1]} | set(new)
        if new:
            shown = ", ".join(f"{id_[:_ID_MAX]} stays with {tenant[:_ID_MAX]}" for id_, tenant in new[:_SHOWN_MAX])
            more = ", …" if len(new) > _SHOWN_MAX else ""
            what = "rows of several tenants in the table devices, and the first one keeps them"
            how = "delete or retire the rows of that tenant to move a device"
            log.warning("%d ids have %s: %s%s; %s", len(new), what, shown, more, how)

    def warn(self, found: Collection[str], *, among: Set[str] | None = None) -> None:
        """`found` are the repeated ids among these; None: among all of the table."""
        before = self._known
        self._known = sorted(found if among is None else {*found, *(id_ for id_ in before if id_ not in among)})
        if self._known and self._known != before:
            shown = ", ".join(id_[:_ID_MAX] for id_ in self._known[:_SHOWN_MAX])
            more = ", …" if len(self._known) > _SHOWN_MAX else ""
            what = f"in several rows of the table devices: {shown}{more}"
            log.warning("%d ids are %s; the row that was created first counts", len(self._known), what)
