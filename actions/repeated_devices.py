"""Says which devices are in several rows of the table `devices`. `rows.devices_of` decides which row counts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Set

from sinks.rows import Row

log = logging.getLogger(__name__)

_SHOWN_MAX = 5
_ID_MAX = 100


def repeated_ids(rows: Collection[Row]) -> list[str]:
    """The ids of devices in use that are in several rows, sorted."""
    counts = Counter(row["device_id"] for row in rows if row["device_id"] and row.get("retired_at") is None)
    return sorted(id_ for id_, number in counts.items() if number > 1)


class RepeatedDevices:
    """Warns in the log whenever there are others than at the last look."""

    def __init__(self) -> None:
        self._known: list[str] = []

    def warn(self, found: Collection[str], *, among: Set[str] | None = None) -> None:
        """`found` are the repeated ids among these; None: among all of the table."""
        before = self._known
        self._known = sorted(found if among is None else {*found, *(id_ for id_ in before if id_ not in among)})
        if self._known and self._known != before:
            shown = ", ".join(id_[:_ID_MAX] for id_ in self._known[:_SHOWN_MAX])
            more = ", …" if len(self._known) > _SHOWN_MAX else ""
            what = f"in several rows of the table devices: {shown}{more}"
            log.warning("%d ids are %s; the row that was created first counts", len(self._known), what)
