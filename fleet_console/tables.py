"""Which version each table has, and answers that are made anew only when one of their tables has another.

A look at a local table is one question to the file system; in an object store it is a request, so it is rarer.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from actions.fleet_desk import FleetDesk
from actions.history import History
from actions.kept_overlay import KeptTables
from broker_edge.errors import HeadwaterError, TableStoreError
from fleet_console.memory import give_back
from fleet_console.settings import TablesSection
from sinks.sql_text import literal
from sinks.store import is_remote
from sinks.tables import (
    ACTION_EVENTS,
    ACTION_JOURNAL,
    ACTION_REQUESTS,
    ACTION_STATE,
    ACTION_TARGETS,
    ACTIONS,
    BESIDE_SILVER,
    DEFAULT_TENANT,
    DEVICE_STATE,
    DEVICES,
    uri_of,
)
from sinks.torn_commits import repair_tables

log = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_LOCAL_S = 0.25
LOOK_REMOTE_S = 5.0
_WHOLE_LOOK_S = 30.0
"""How often a local table is opened all the same: somebody may have made it anew."""
_AT_ONCE = 2
"""Queries at the same time. Each uses all cores, and some memory."""
_KEPT_BYTES = 16 << 20
_ENTRY_BYTES = 500
"""What an answer takes beside its text."""
_PARTS_MAX = 64
_FORGET_AGAIN_S = 10.0

_OF_ACTIONS = (
    *(ACTIONS, ACTION_REQUESTS, ACTION_STATE, ACTION_TARGETS, ACTION_JOURNAL, ACTION_EVENTS),
    *(DEVICES, DEVICE_STATE),
)


@dataclass(slots=True)
class _Known:
    uri: str
    version: int | None = None
    table_id: str | None = None
    whole_s: float = float("-inf")
    """When it was last opened."""
    looked_s: float = float("-inf")


class Versions:
    """The newest versions of the tables by name; None for one that does not exist."""

    def __init__(self, settings: TablesSection, made_anew: Callable[[], None] = lambda: None) -> None:
        """`made_anew` is called when another table stands where one was."""
        self._made_anew = made_anew
        self._options = settings.access().deltalake
        root, silver = settings.root, settings.silver_root or settings.root
        places = {table.name: root for table in _OF_ACTIONS} | {table.name: silver for table in BESIDE_SILVER}
        self._known = {name: _Known(uri_of(place, name)) for name, place in places.items()}
        self._lock = threading.Lock()

    def of(self, *names: str) -> dict[str, int | None]:
        """Raises TableStoreError for a table that is there and cannot be read."""
        with self._lock:
            for name in names or self._known:
                self._look(name, self._known[name])
            return {name: self._known[name].version for name in names or self._known}

    def identities(self, *names: str) -> tuple[tuple[int | None, str | None], ...]:
        """What changes with the content of these tables, also when one was made anew."""
        with self._lock:
            for name in names:
                self._look(name, self._known[name])
            return tuple((self._known[name].version, self._known[name].table_id) for name in names)

    def _look(self, name: str, known: _Known) -> None:
        now_s, is_far = time.monotonic(), is_remote(known.uri)
        if now_s - known.looked_s < (LOOK_REMOTE_S if is_far else LOOK_LOCAL_S):
            return
        if is_far or now_s - known.whole_s >= _WHOLE_LOOK_S or _has_next(known):
            try:
                table = DeltaTable(known.uri, storage_options=self._options(), without_files=True)
                before, known.version, known.table_id = known.table_id, table.version(), str(table.metadata().id)
                if before not in (None, known.table_id):
                    self._made_anew()
            except TableNotFoundError:
                known.version = known.table_id = None
            except (DeltaError, OSError) as error:
                raise TableStoreError(f"the table {name} at {known.uri} cannot be opened: {error}") from error
            known.whole_s = now_s
        known.looked_s = now_s


def _has_next(known: _Known) -> bool:
    next_version = 0 if known.version is None else known.version + 1
    folder = Path(known.uri.removeprefix("file://"))
    return os.path.exists(folder / "_delta_log" / f"{next_version:020}.json")


class Tables:
    """The tables of one tenant, as `settings` name them."""

    def __init__(self, settings: TablesSection) -> None:
        self.settings = settings
        access = settings.access()
        repair_tables(settings.root)
        self._kept_tables = KeptTables(settings.root, access.deltalake)
        self.versions = Versions(settings, self._kept_tables.forget)
        self.history = History(settings.root, access, self._kept_tables)
        self.silver = History(settings.silver_root or settings.root, settings.access())
        self._answers = OrderedDict[str, tuple[object, bytes]]()
        self._parts = OrderedDict[str, tuple[object, Any]]()
        self._bytes, self._forgot_s = 0, float("-inf")
        self._lock = threading.Lock()
        self._turn = threading.BoundedSemaphore(_AT_ONCE)

    @property
    def of_tenant(self) -> str:
        """The condition in SQL that a row is of this tenant."""
        return f"coalesce(tenant, {literal(DEFAULT_TENANT)}) = {literal(self.settings.tenant)}"

    def desk_of(self, user: str, confirmed_by: str | None) -> FleetDesk:
        """The desk at which this user inserts rows."""
        settings = self.settings
        return FleetDesk(
            settings.root, by=user, confirmed_by=confirmed_by, tenant=settings.tenant, access=settings.access()
        )

    def answer(self, question: str, names: Sequence[str], make: Callable[[], Any]) -> bytes:
        """What `make` returns as JSON: kept under `question` until one of these tables has another version."""
        versions = self.versions.identities(*names)
        kept = self._kept(question, versions)
        if kept is not None:
            return kept
        with self._turn:
            kept = self._kept(question, versions)
            if kept is not None:
                return kept
            found = json.dumps(self.read(make), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
            give_back()
        body = found.encode(errors="replace")
        with self._lock:
            self._drop(question)
            self._answers[question] = (versions, body)
            self._bytes += _size(question, body)
            while self._bytes > _KEPT_BYTES and self._answers:
                self._drop(next(iter(self._answers)))
        return body

    def part(self, question: str, names: Sequence[str], make: Callable[[], T]) -> T:
        """What `make` returns, within an answer: kept as an answer is, so that a part is not made again because of a
        table that it does not read."""
        versions = self.versions.identities(*names)
        with self._lock:
            kept = self._parts.get(question)
        if kept is not None and kept[0] == versions:
            return cast(T, kept[1])
        found = make()
        with self._lock:
            self._parts[question] = (versions, found)
            self._parts.move_to_end(question)
            while len(self._parts) > _PARTS_MAX:
                self._parts.popitem(last=False)
        return found

    def once(self, make: Callable[[], T]) -> T:
        """What `make` returns, which reads tables; nothing is kept. Raises TableStoreError if they cannot be read."""
        with self._turn:
            found = self.read(make)
            give_back()
        return found

    def read(self, make: Callable[[], T]) -> T:
        """What `make` returns, which reads tables. Raises TableStoreError if they cannot be read, also from the
        beginning."""
        try:
            return make()
        except (HeadwaterError, MemoryError):
            raise
        except Exception as first:  # A missing file has no class of its own.
            failed: Exception = first
        now_s = time.monotonic()
        if now_s - self._forgot_s >= _FORGET_AGAIN_S:
            self._forgot_s = now_s
            log.warning("the tables under %s are read from the beginning: %s", self.settings.root, failed)
            self._kept_tables.forget()
            try:
                return make()
            except (HeadwaterError, MemoryError):
                raise
            except Exception as error:
                failed = error
        log.error("the tables under %s cannot be read: %s", self.settings.root, failed)
        raise TableStoreError("the tables cannot be read; the log of the console says why") from failed

    def _kept(self, question: str, versions: object) -> bytes | None:
        with self._lock:
            kept = self._answers.get(question)
            if kept is None or kept[0] != versions:
                return None
            self._answers.move_to_end(question)
            return kept[1]

    def _drop(self, question: str) -> None:
        kept = self._answers.pop(question, None)
        self._bytes -= 0 if kept is None else _size(question, kept[1])


def _size(question: str, body: bytes) -> int:
    return len(question) + len(body) + _ENTRY_BYTES
