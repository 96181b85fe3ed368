"""Which entry of the settings each log belongs to. A broker says its log id itself, so one could say that of another.

The first entry that says a log id keeps it: the owner is stored beside the positions of whoever reads or publishes
(the checkpoint of a stream, the table `broker_logs` of the action engine), and no other entry gets that log, also while
its owner is away or no longer in the settings. `log_id` in an entry counts before that. The only entry of the settings
may get another name or address: it takes over, if it has held no other log before.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from broker_edge.errors import ConfigError
from broker_edge.server_address import nodes_of

LOGS_MAX = 32
"""Logs that one entry may bring by itself. A replaced disk is a new log; a broker that invents them fills no table."""
ID_LENGTH_MAX = 100


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of the settings: its address, its name, and the log that it must hold (None: whichever it says)."""

    server: str
    name: str | None = None
    log_id: str | None = None

    @property
    def key(self) -> str:
        """The text that stands for this entry where owners are stored."""
        return self.name or self.server

    def is_called(self, key: str) -> bool:
        """Whether the stored text means this entry; one that has got a name later was stored by its address, and one
        that has got more nodes by one of them."""
        return key == self.name or not set(nodes_of(key)).isdisjoint(nodes_of(self.server))


class LogOwners:
    """`entries` are all of the settings; `known` are owners by log id from an earlier run. May be shared by threads.

    Raises ConfigError if two entries have the same `log_id`.
    """

    def __init__(self, entries: Iterable[LogEntry], known: Mapping[str, str] | None = None) -> None:
        self._lock = threading.Lock()
        self._known: Mapping[str, str] = dict(known or {})
        self._named: dict[str, LogEntry] = {}
        all_ = tuple(entries)
        self._is_alone = len(all_) == 1
        for entry in all_:
            if entry.log_id is None:
                continue
            other = self._named.setdefault(entry.log_id, entry)
            if other != entry:
                raise ConfigError(
                    f"{other.key} and {entry.key} have the same log_id {entry.log_id}: a log belongs to one entry of "
                    "`brokers`, correct one of them"
                )

    @property
    def known(self) -> Mapping[str, str]:
        """Log id → key of its owner. The mapping does not change; a later call may return another one."""
        return self._known

    def learn(self, stored: Mapping[str, str]) -> None:
        """Adds owners that an earlier run has stored. They count before those that this run has seen."""
        with self._lock:
            if any(self._known.get(log_id) != key for log_id, key in stored.items()):
                self._known = {**self._known, **stored}

    def claim(self, entry: LogEntry, log_id: str) -> str | None:
        """Gives the log to an entry that says it, unless it belongs to another one. Returns why not, or None."""
        with self._lock:
            refusal = self._refusal(entry, log_id)
            if refusal is None and self._known.get(log_id) != entry.key:
                self._known = {**self._known, log_id: entry.key}
            return refusal

    def require_apart(self, claims: Iterable[tuple[LogEntry, str]], known: Mapping[str, str] | None = None) -> None:
        """Raises ConfigError if two entries say the same log and neither is its owner, by `known` (default: the owners
        as they are now) or by the settings: which one lies cannot be seen."""
        owners = self._known if known is None else known
        first: dict[str, LogEntry] = {}
        for entry, log_id in claims:
            if log_id in owners or log_id in self._named:
                continue
            other = first.setdefault(log_id, entry)
            if other != entry:
                raise ConfigError(
                    f"{other.key} and {entry.key} say that they hold the same log {log_id:.100}, and a log belongs to "
                    "one entry of `brokers`: remove one of the two, or set log_id in the entry that has this log; the "
                    "nodes of a cluster are one entry, grpc://HOST:PORT/HOST:PORT/HOST:PORT"
                )

    def _refusal(self, entry: LogEntry, log_id: str) -> str | None:
        says = f"{entry.key} says that it holds log {log_id:.100}"
        if not 0 < len(log_id) <= ID_LENGTH_MAX:
            return f"{says}, which is not a log id"
        if entry.log_id is not None and entry.log_id != log_id:
            return f"{says}, and its log_id in the settings is {entry.log_id}: correct it if the box was replaced"
        named, owner = self._named.get(log_id), self._known.get(log_id)
        if named is not None:
            return None if named == entry else f"{says}, and the settings give that log to {named.key}"
        if owner is None:
            if sum(1 for key in self._known.values() if entry.is_called(key)) < LOGS_MAX:
                return None
            return f"{says}, and it has said {LOGS_MAX} others before: set log_id in its entry of `brokers`"
        is_moved = self._is_alone and not any(entry.is_called(key) for key in self._known.values())
        if entry.is_called(owner) or is_moved:
            return None
        return (
            f"{says}, which belongs to {owner}: correct `brokers`, or, if that log is now at {entry.key}, set its "
            f"log_id: {log_id}"
        )
