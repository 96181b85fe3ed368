"""Announces to a receiver that an action waits for approval, was stopped, has ended or was refused.

The source is the history of `action_state`, so an announcement is derived from what is committed and survives a
restart. The mark, up to which the receiver has accepted all, is a Delta transaction of `action_events`. An announcement
is repeated until it is accepted: the receiver may get it twice, with the same id. Works in its own thread and keeps no
queue; the engine never waits for it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction

from sinks.conflicts import committed
from sinks.rows import now_us, rows_of
from sinks.tables import ACTION_EVENTS, ACTION_STATE, uri_of

log = logging.getLogger(__name__)

MARK = "headwater-actions:webhook"
_VERSIONS_AT_ONCE_MAX = 64
_VERSIONS_UNMARKED_MAX = 1_000
"""Versions without an announcement after which the mark moves anyway, so that a start does not read them again."""
_CLOSE_S = 5.0
_DAY_US = 24 * 3600 * 1_000_000


@dataclass(frozen=True, slots=True)
class Announcement:
    """The fields of the JSON body, see docs/actions.md. `wave`, from 1, is the one that waits for approval."""

    id: str
    event: str
    action_id: str
    tenant: str
    message: str
    wave: int | None
    waves: int | None
    targets: int
    open: int
    counts: Mapping[str, int]
    at_us: int

    def body(self) -> bytes:
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None}).encode()


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait. A failed announcement is repeated after `retry_first_s`, doubled up to `retry_max_s`."""

    look_s: float = 1.0
    retry_first_s: float = 1.0
    retry_max_s: float = 60.0
    tell_after_s: float = 60.0
    """Failing for this long is logged, once."""
    skip_after_s: float = 300.0
    """After failing for this long, a part of the history that cannot be read is skipped: a VACUUM may have taken it."""
    give_up_us: int = _DAY_US
    """An older announcement that fails is dropped with a line in the log, so that it does not hold up all others."""


def announced(rows: Iterable[Mapping[str, Any]]) -> list[Announcement]:
    """What these rows of the change data feed of `action_state` announce, in the order of their commits."""
    ordered = sorted(rows, key=lambda row: (row["_commit_version"], row["action_id"]))
    before = {_key(row): row for row in ordered if row["_change_type"] == "update_preimage"}
    found: list[Announcement] = []
    for row in ordered:
        if row["_change_type"] in ("insert", "update_postimage"):
            found += [_announcement(event, row) for event in _events(before.get(_key(row)), row)]
    return found


def _key(row: Mapping[str, Any]) -> tuple[int, str]:
    return row["_commit_version"], row["action_id"]


def _events(before: Mapping[str, Any] | None, row: Mapping[str, Any]) -> list[str]:
    events = []
    if row["stopped"] is not None and (before is None or before["stopped"] is None):
        events.append("aborted" if row["stopped"].startswith("aborted") else "cancelled")
    known = {"WAITING_APPROVAL": "waiting_approval", "ENDED": "ended", "REFUSED": "refused"}
    if row["phase"] in known and (before is None or (before["phase"], before["wave"]) != (row["phase"], row["wave"])):
        events.append(known[row["phase"]])
    return events


def _announcement(event: str, row: Mapping[str, Any]) -> Announcement:
    return Announcement(
        id=f"{row['action_id']}/{event}/{row['_commit_version']}",
        event=event,
        action_id=row["action_id"],
        tenant=row["tenant"],
        message=(row["stopped"] if event in ("aborted", "cancelled") else row["message"]) or "",
        wave=row["wave"] + 2 if event == "waiting_approval" and row["wave"] is not None else None,
        waves=row["waves"],
        targets=row["targets"] or 0,
        open=row["open"] or 0,
        counts=dict(row["counts"] or {}),
        at_us=row["updated_at"] or row["_commit_timestamp"],
    )


class Announcer:
    """Announces what happens in the tables under `root` from its first start on. `post` sends a body, and raises
    OSError or ValueError if the receiver does not accept it in time. Its errors must not contain secrets."""

    def __init__(
        self,
        root: Path | str,
        post: Callable[[bytes], None],
        *,
        storage_options: Mapping[str, str] | None = None,
        patience: Patience | None = None,
        clock_us: Callable[[], int] = now_us,
    ) -> None:
        options = dict(storage_options) if storage_options else None
        self._states = DeltaTable(uri_of(root, ACTION_STATE.name), storage_options=options)
        self._marks = DeltaTable(uri_of(root, ACTION_EVENTS.name), storage_options=options)
        self._post, self._patience, self._clock_us = post, patience or Patience(), clock_us
        self._stop = threading.Event()
        self._accepted: set[str] = set()
        """Ids of the versions that are read now and not marked yet."""
        self._retry_s = 0.0
        self._failing_from: float | None = None
        self._is_told = False
        mark = self._marks.transaction_version(MARK)
        self._read = self._states.version() if mark is None else min(mark, self._states.version())
        """The version of `action_state` up to which everything is announced."""
        self._marked = self._read
        if mark is None:
            self._mark()
        self._thread = threading.Thread(target=self._run, name="actions-webhook", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Announces what is left if the receiver accepts it; otherwise the next start does. Returns within seconds."""
        self._stop.set()
        self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._stop.wait(self._retry_s or self._patience.look_s)
            try:
                self._announce_new()
            except Exception as error:
                self._failed(error)
            else:
                self._recovered()

    def _announce_new(self) -> None:
        self._states.update_incremental()
        newest = self._states.version()
        while self._read < newest:
            end = min(self._read + _VERSIONS_AT_ONCE_MAX, newest)
            for one in self._between(self._read + 1, end):
                if one.id not in self._accepted:
                    self._announce(one)
                    self._accepted.add(one.id)
            self._read = end
            if self._accepted or end - self._marked >= _VERSIONS_UNMARKED_MAX:
                self._mark()
                self._accepted.clear()

    def _between(self, first: int, last: int) -> list[Announcement]:
        try:
            feed = self._states.load_cdf(starting_version=first, ending_version=last)
            return announced(list(rows_of(pa.table(feed.read_all()))))
        except (MemoryError, ImportError):
            raise
        except Exception as error:  # A missing file raises no specific class.
            if self._failing_s() < self._patience.skip_after_s:
                raise
            what = "webhook: versions %d to %d of action_state cannot be read and are not announced: %s"
            log.error(what, first, last, error)
            return []

    def _announce(self, one: Announcement) -> None:
        try:
            self._post(one.body())
        except (OSError, ValueError) as error:
            if self._clock_us() - one.at_us < self._patience.give_up_us:
                raise
            log.warning("webhook: %s of action %s was not accepted within a day: %s", one.event, one.action_id, error)

    def _mark(self) -> None:
        """Notes in the table how far the receiver is."""

        def write() -> None:
            self._marks.update_incremental()
            properties = CommitProperties(app_transactions=[Transaction(MARK, self._read)])
            self._marks.create_write_transaction([], "append", self._marks.schema(), commit_properties=properties)

        committed(write, "the mark of the webhook")
        self._marked = self._read

    # -- trouble -----------------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        patience = self._patience
        self._retry_s = min(2 * self._retry_s or patience.retry_first_s, patience.retry_max_s)
        self._failing_from = self._failing_from or time.monotonic()
        if not self._is_told and self._failing_s() >= patience.tell_after_s:
            self._is_told = True
            log.warning("webhook: announcements wait, the last try failed: %s", error)

    def _recovered(self) -> None:
        if self._is_told:
            log.info("webhook: announcements are accepted again")
        self._retry_s, self._failing_from, self._is_told = 0.0, None, False

    def _failing_s(self) -> float:
        return 0.0 if self._failing_from is None else time.monotonic() - self._failing_from
