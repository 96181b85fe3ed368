"""A device's record of its commands: the last status of each (action, attempt), so that no command is executed twice.

Kept in memory, or in a small JSON file that is replaced atomically. Keeps only the newest entries.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from broker_edge.device.files import write_json
from broker_edge.errors import ConfigError

FINAL = frozenset({"SUCCEEDED", "FAILED", "REJECTED", "CANCELLED"})


@dataclass(frozen=True, slots=True)
class Entry:
    action_id: str
    attempt: int
    state: str
    message: str | None = None
    result: Any = None
    told: bool = False
    """Whether the broker has acknowledged the status with this state."""


class Journal:
    """Keeps at most `entries_max` commands; the oldest ones are removed first. Raises ConfigError for a damaged
    file."""

    def __init__(self, path: Path | None = None, *, entries_max: int = 1_000) -> None:
        self._path = path
        self._entries_max = entries_max
        self._entries: OrderedDict[tuple[str, int], Entry] = OrderedDict()
        # A link that leads nowhere is no new journal either.
        if path is not None and os.path.lexists(path):
            self._load(path)

    def _load(self, path: Path) -> None:
        try:
            rows = json.loads(path.read_text())
            if not isinstance(rows, list):
                raise TypeError("it is not a list")
            for row in rows:
                entry = Entry(**row)
                if not (
                    isinstance(entry.action_id, str) and isinstance(entry.state, str) and type(entry.attempt) is int
                ):
                    raise TypeError("an entry has a field of another type")
                self._entries[(entry.action_id, entry.attempt)] = entry
        except (OSError, TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path} is damaged ({error}): put the file of a backup there; without it the device would carry out "
                "again what it has done"
            ) from error

    def get(self, action_id: str, attempt: int) -> Entry | None:
        return self._entries.get((action_id, attempt))

    def newest(self, action_id: str) -> Entry | None:
        """The highest attempt of an action."""
        found = [entry for entry in self._entries.values() if entry.action_id == action_id]
        return max(found, key=lambda entry: entry.attempt, default=None)

    def succeeded(self, action_id: str) -> Entry | None:
        """The highest attempt of an action that has succeeded."""
        all_ = self._entries.values()
        found = [entry for entry in all_ if entry.action_id == action_id and entry.state == "SUCCEEDED"]
        return max(found, key=lambda entry: entry.attempt, default=None)

    def put(self, entry: Entry) -> None:
        """Raises OSError if the disk does not take it; the journal then stays as it was."""
        before = self._entries.copy() if self._path is not None else self._entries
        self._entries[(entry.action_id, entry.attempt)] = entry
        while len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
        try:
            self._save()
        except OSError:
            self._entries = before
            raise

    def untold(self) -> Iterator[Entry]:
        """Entries whose status the broker may not know, oldest first."""
        return iter([entry for entry in self._entries.values() if not entry.told])

    def _save(self) -> None:
        if self._path is None:
            return
        rows: list[Mapping[str, Any]] = [
            {name: getattr(entry, name) for name in Entry.__slots__} for entry in self._entries.values()
        ]
        write_json(self._path, rows)
