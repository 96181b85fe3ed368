"""Which broker each log belongs to, as the table `broker_logs` keeps it from one engine to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from broker_edge.log_owners import LogEntry, LogOwners


class OwnerStore(Protocol):
    """Where the owners are kept, by log id."""

    def owners(self) -> Mapping[str, str]: ...

    def keep_owners(self, owners: Mapping[str, str]) -> None: ...


class KeptOwners:
    """`entries` are the brokers of the settings; without them no log has an owner. Reads what earlier engines have
    kept: make it after the tables have been claimed."""

    def __init__(self, store: OwnerStore, entries: Sequence[LogEntry]) -> None:
        self._store = store
        self._kept = store.owners() if entries else {}
        self.owners = LogOwners(entries, self._kept)
        self._seen = self.owners.known

    def keep(self) -> None:
        """Stores what is new, so that it is there before a record is published on a log. Costs nothing otherwise."""
        known = self.owners.known
        if known is not self._seen:
            self._store.keep_owners({log_id: key for log_id, key in known.items() if self._kept.get(log_id) != key})
            self._kept = self._seen = known
