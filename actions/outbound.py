"""Sends owed records to the brokers: one line per broker, each with its own thread, pace and failures.

A broker that is away or slow delays only the records for its own log. What happens to a target when its record is in a
log is decided by the engine; this module keeps nothing that a restart would need. A broker that says the log of another
one (`broker_edge.log_owners`) counts as away and gets nothing.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from actions.engine import Place, Publish, Served
from actions.halving import said
from broker_edge import BrokerError, ConnectError, HeadwaterError, NotFoundError, RefusedError, Row
from broker_edge import Place as LogPlace
from broker_edge.errors import ConfigError
from broker_edge.log_owners import LogEntry, LogOwners

log = logging.getLogger(__name__)

_BACKOFF_MAX_S = 30.0
_ASK_EVERY_S = 30.0
"""A broker with nothing to send is asked for its log this often: a box may be replaced, and then serves another log."""
_STOP_S = 0.2
"""How often a wait without a limit looks whether it should end."""
_RECORD_FIELDS = ("topic", "key", "value", "headers", "idempotency_key")
"""The fields of a record for which a broker may refuse it, whoever sends it."""
_REFUSED_MAX = 64
"""Maximum number of records that one batch gives up: finding each takes several calls."""


Claim = Callable[[str], str | None]
"""Why a broker may not have the log that it says; None: it may."""


class Publisher(Protocol):
    """One broker. May be called from another thread than the one that made it."""

    @property
    def name(self) -> str | None:
        """What people call the broker."""

    def log_id(self) -> str:
        """The log that the broker serves now; asks it. Raises HeadwaterError."""

    def publish(self, rows: Sequence[Row]) -> list[LogPlace]: ...


@dataclass(slots=True)
class Sent:
    """The results of a batch: what the log has, what the broker refuses, and what went wrong with the rest."""

    places: dict[Publish, Place] = field(default_factory=dict)
    refused: dict[Publish, str] = field(default_factory=dict)


def asked(
    publishers: Sequence[Publisher],
    seconds: float,
    *,
    entries: Sequence[LogEntry] = (),
    owners: LogOwners | None = None,
) -> tuple[Served, ...]:
    """Which logs these brokers serve, after at most that long. Raises ConfigError as `Outbound.meet` does."""
    outbound = Outbound(publishers, wake=lambda: None, entries=entries, owners=owners)
    outbound.meet(seconds)
    found = outbound.brokers()
    outbound.close()
    return tuple(replace(one, away=True) if one.log_id is None else one for one in found)


class Outbound:
    """Use from one thread. `wake` is called from any when a line has news. `entries` are the publishers in the
    settings, in their order, and `owners` say which logs they may have; without `entries` each has the log that it
    says."""

    def __init__(
        self,
        publishers: Sequence[Publisher],
        *,
        wake: Callable[[], None],
        entries: Sequence[LogEntry] = (),
        owners: LogOwners | None = None,
    ) -> None:
        self._entries = tuple(entries)
        self._owners = LogOwners(entries) if owners is None else owners
        self._known_before = self._owners.known
        claims: list[Claim] = [partial(self._owners.claim, entry) for entry in entries]
        claims = claims or [_granted] * len(publishers)
        self._lines = [_Line(publisher, wake, claim) for publisher, claim in zip(publishers, claims, strict=True)]
        self._is_stopping = False

    def meet(self, seconds: float) -> None:
        """Asks every broker for its log, and waits at most that long for the answers. Raises ConfigError if two say the
        same one, and it belonged to neither."""
        for line in self._lines:
            line.ask()
        self._wait(self._lines, seconds)
        said = [(entry, line.said) for entry, line in zip(self._entries, self._lines, strict=False)]
        try:
            claims = [(entry, log_id) for entry, log_id in said if log_id is not None]
            self._owners.require_apart(claims, self._known_before)
        except ConfigError:
            self.close()
            raise

    def brokers(self) -> tuple[Served, ...]:
        """The brokers as they answered last. Asks those that were silent for a while."""
        for line in self._lines:
            if line.is_idle and time.monotonic() >= line.ask_from:
                line.ask()
        return tuple(line.served() for line in self._lines)

    def send(self, publishes: Sequence[Publish], *, seconds: float | None) -> None:
        """Gives each broker the records for its log, unless it is busy or has just failed.

        Waits until the healthy ones are done, at most `seconds`. None waits for all of them, until `stop`.
        """
        given = []
        chosen = {log_id: self._line_of(log_id) for log_id in {one.log_id for one in publishes}}
        for line in self._lines:
            mine = [one for one in publishes if chosen[one.log_id] is line]
            if mine and seconds is None:
                self._wait([line], None)  # It may be asking for its log.
            if mine and line.is_idle and time.monotonic() >= line.send_from:
                if seconds is None or not line.is_failing:
                    given.append(line)
                line.send(mine)
            elif mine:
                line.is_wanted = True
        self._wait(given, seconds)

    def _line_of(self, log_id: str | None) -> _Line | None:
        """The broker of that log; of several addresses of one log, one that answers."""
        if log_id is None:
            return self._lines[0]
        found = [line for line in self._lines if line.log_id == log_id]
        return next((line for line in found if not line.is_failing), found[0] if found else None)

    def require_answer(self, seconds: float) -> None:
        """Raises the error of a broker if none answers. Asks those that were not asked yet, and waits at most that
        long."""
        strange = [line for line in self._lines if line.log_id is None and line.error is None and line.is_idle]
        for line in strange:
            line.ask()
        self._wait(strange, seconds)
        if not any(line.log_id is not None and line.error is None for line in self._lines):
            error = next((line.error for line in self._lines if line.error is not None), None)
            raise error or ConnectError(f"no broker has answered within {seconds:g} s")

    def stop(self) -> None:
        """Ends a `send` that waits without a limit; later ones do not wait. From any thread."""
        self._is_stopping = True

    def settle(self, seconds: float) -> None:
        """Waits at most that long for the batches that are on their way."""
        self._wait(self._lines, seconds)

    @property
    def has_news(self) -> bool:
        return any(line.has_news for line in self._lines)

    def collected(self) -> Sent:
        """The results since the last call."""
        all_ = Sent()
        for line in self._lines:
            sent = line.collect()
            all_.places |= sent.places
            all_.refused |= sent.refused
        return all_

    def close(self) -> None:
        for line in self._lines:
            line.close()

    def _wait(self, lines: Sequence[_Line], seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        for line in lines:
            if until is not None:
                line.done.wait(max(0.0, until - time.monotonic()))
                continue
            while not self._is_stopping and not line.done.wait(_STOP_S):
                pass


class _Line:
    """The records for one broker: at most one batch at a time is on its way."""

    def __init__(self, publisher: Publisher, wake: Callable[[], None], claim: Claim) -> None:
        self._publisher, self._wake, self._claim = publisher, wake, claim
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._sent: Sent | None = None
        self._broken: BaseException | None = None
        self.done = threading.Event()
        self.done.set()
        self.log_id: str | None = None
        self.said: str | None = None
        """The log that it said last. If that belongs to another broker, `log_id` is not this one."""
        self.failures = 0
        """Attempts in a row that failed: the broker is away until it says its log."""
        self.failed_batches = 0
        """Batches in a row that failed although the broker had said its log. A batch that succeeds ends the row."""
        self.error: HeadwaterError | None = None
        """Why the last attempt failed; None if it did not."""
        self.send_from = 0.0
        self.ask_from = 0.0
        self.is_wanted = False
        """Records came while it was asking for its log, or in a pause after a failure."""
        self._changed = False
        self._has_records = False
        """Whether the work on its way has records."""

    @property
    def is_idle(self) -> bool:
        """Whether it takes a batch: a finished one must be collected first, or it would be sent again."""
        return self.done.is_set() and self._sent is None and self._broken is None

    @property
    def is_failing(self) -> bool:
        return self.failures > 0 or self.failed_batches > 0

    @property
    def has_news(self) -> bool:
        is_free = self.is_wanted and self.is_idle and time.monotonic() >= self.send_from
        return self.done.is_set() and (self._sent is not None or self._broken is not None or self._changed or is_free)

    def served(self) -> Served:
        self._changed = False
        return Served(self._publisher.name, self.log_id, away=self.failures > 0, refuses=self.refuses)

    def ask(self) -> None:
        self._has_records = False
        self._start(self._ask)

    def send(self, publishes: Sequence[Publish]) -> None:
        self.is_wanted, self._has_records = False, True
        self._start(lambda: self._send(publishes))

    def collect(self) -> Sent:
        if self.done.is_set() and self._broken is not None:
            error, self._broken, self._sent = self._broken, None, None
            raise error
        if not self.done.is_set() or self._sent is None:
            return Sent()
        sent, self._sent = self._sent, None
        return sent

    def close(self) -> None:
        if self._thread is not None:
            self._work.put(None)

    def _start(self, work: Callable[[], None]) -> None:
        self.done.clear()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="actions-broker", daemon=True)
            self._thread.start()
        self._work.put(work)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            before = self._known
            try:
                work()
                self.failures, self.error = 0, None
                if not self.failed_batches:
                    self.send_from = 0.0
            except HeadwaterError as error:
                self._failed(error)
            except BaseException as error:  # Raised again where the results are collected.
                self._broken = error
            self.ask_from = max(self.send_from, time.monotonic() + _ASK_EVERY_S * (self.failures == 0))
            self._changed = self._changed or before != self._known
            self.done.set()
            self._wake()

    @property
    def refuses(self) -> bool:
        return self.error is not None and _is_about_credentials(self.error)

    @property
    def _known(self) -> tuple[str | None, bool, bool]:
        return (self.log_id, self.failures > 0, self.refuses)

    def _failed(self, error: HeadwaterError) -> None:
        self.failures += 1
        self.error = error
        wait_s = min(_BACKOFF_MAX_S, 0.5 * 2 ** min(max(self.failures, self.failed_batches), 10))
        self.send_from = time.monotonic() + wait_s
        who = self._publisher.name or self.log_id or "the broker"
        what = f"{who} is left alone" if self.said != self.log_id else f"{who} did not say its log"
        if self._has_records:
            what = f"records for devices of {who} are waiting"
        if self.refuses:
            what = f"{who} refuses the credentials of this job"
        log.warning("%s, next attempt in %.1f s: %s", what, wait_s, error)

    def _ask(self) -> None:
        self.said = self._publisher.log_id()
        refusal = self._claim(self.said)
        if refusal is not None:
            raise BrokerError(refusal)
        self.log_id = self.said

    def _send(self, publishes: Sequence[Publish]) -> None:
        """Publishes, if the broker still serves the log that the records are for."""
        before = self.log_id
        self._ask()
        self.failed_batches += 1  # Until it has succeeded.
        if before is not None and before != self.log_id:
            log.warning("%s now serves the log %s, not %s", self._publisher.name or "the broker", self.log_id, before)
        sent = Sent()
        # Records without a log go to whichever log this broker serves.
        mine = [one for one in publishes if one.log_id in (None, self.log_id)]
        failed: HeadwaterError | None = None
        try:
            if mine:
                self._place(mine, sent)
        except HeadwaterError as error:
            failed = error
        served = self.log_id
        self._ask()
        if served == self.log_id:
            self._sent = sent  # Otherwise the places may be those of the other log, and all records are sent again.
        if failed is not None:
            raise failed
        self.failed_batches = 0

    def _place(self, publishes: Sequence[Publish], sent: Sent) -> None:
        """Publishes. If the broker refuses a record because of its content, finds that record and publishes the others.
        Raises the errors of publishing; `sent` then holds what was published so far."""
        rows = [Row(topic=p.topic, value=p.value, idempotency_key=p.idempotency_key) for p in publishes]
        try:
            places = self._publisher.publish(rows)
        except RefusedError as error:
            if error.field not in _RECORD_FIELDS or len(sent.refused) >= _REFUSED_MAX:
                raise
            if len(publishes) == 1:
                log.warning("giving up record %s: %s", publishes[0].idempotency_key, error)
                sent.refused[publishes[0]] = said(error)
                return
            middle = len(publishes) // 2
            self._place(publishes[:middle], sent)
            self._place(publishes[middle:], sent)
            return
        for publish, at in zip(publishes, places, strict=True):
            sent.places[publish] = Place(at.partition, at.offset, self.log_id)


def _granted(log_id: str) -> None:
    """The claim of a broker that has the log that it says."""


def _is_about_credentials(error: HeadwaterError) -> bool:
    """Whether the broker refuses whoever asks, and not what is asked."""
    if not isinstance(error, RefusedError) or isinstance(error, NotFoundError) or error.field is not None:
        return False
    return error.code in (None, "unauthenticated", "permission_denied")
