"""Brings artifacts to the logs whose devices will need them, before their commands are sent. In the background.

The engine says what is wanted where. A log that lacks an artifact gets it from a broker that has the same bytes. Each
broker gets one artifact at a time, and only a few brokers at once; until then the targets wait with the reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from actions.engine import Served
from broker_edge import Client, HeadwaterError
from broker_edge.artifacts import ArtifactStore, copy

log = logging.getLogger(__name__)

AT_ONCE_MAX = 4
"""Brokers that get an artifact at once: each copy holds a few chunks in memory and reads from another broker."""
COPY_S = 600.0
"""A copy that takes longer no longer counts for AT_ONCE_MAX, so that the brokers that hang do not stop the others. Its
own broker gets nothing else until it ends."""
_LOOK_AGAIN_S = 30.0
_TRUST_S = 600.0
"""How long an artifact that was found counts as present without another look."""

FOUND_MAX = 10_000
"""Answers that are kept. Beyond that, answers that nobody wants are forgotten, the oldest first."""

Wanted = tuple[str, str, str, str]
"""(log id, name, version, sha256): a version of the table `artifacts` may be corrected, and tenants may differ."""


class Depot(Protocol):
    """The artifacts of one broker. Called from other threads; every method raises HeadwaterError."""

    def digest(self, name: str, version: str) -> str | None:
        """The sha256 of an artifact, or None if the broker does not have it."""

    def copy_to(self, other: Depot, name: str, version: str) -> None:
        """Stores the artifact at the other broker. Repeatable; an interrupted copy continues."""


class BrokerDepot:
    """The artifacts in the log of a client's broker."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def digest(self, name: str, version: str) -> str | None:
        manifest = ArtifactStore(self.client).find(name, version)
        return None if manifest is None else manifest.artifact.sha256

    def copy_to(self, other: Depot, name: str, version: str) -> None:
        if not isinstance(other, BrokerDepot):
            raise TypeError(f"{other!r} is not a broker")
        copy(self.client, other.client, name, version)


class Stock:
    """Use from one thread. `wake` is called from any when an answer has changed. `depots` belong to the brokers, in
    the order of the brokers."""

    def __init__(self, depots: Sequence[Depot], *, wake: Callable[[], None]) -> None:
        self._depots, self._wake = depots, wake
        self._lock = threading.Lock()
        self._found: dict[Wanted, str | None] = {}
        self._look_from: dict[Wanted, float] = {}
        self._busy: dict[int, tuple[Wanted, float]] = {}
        """By the number of the broker: what is looked for or copied there, and since when."""

    def known(self) -> Mapping[Wanted, str | None]:
        """(log id, name, version, sha256) → None if the log has the artifact, otherwise why it does not have it yet."""
        with self._lock:
            return dict(self._found)

    def bring(self, wanted: Collection[Wanted], brokers: Sequence[Served]) -> None:
        """Begins to look for what is wanted, and to copy what is missing, as far as brokers are free. Returns at
        once."""
        there = {one.log_id: number for number, one in enumerate(brokers) if one.log_id is not None and not one.away}
        self._forget(wanted)
        self._tell_slow()
        for key in sorted(wanted):
            number, now_s = there.get(key[0]), time.monotonic()
            with self._lock:
                running = sum(1 for _, since_s in self._busy.values() if now_s - since_s < COPY_S)
                is_free = number not in self._busy and running < AT_ONCE_MAX
                if number is None or not is_free or now_s < self._look_from.get(key, 0.0):
                    continue
                self._busy[number] = (key, now_s)
            work = (number, [one for one in there.values() if one != number], key)
            threading.Thread(target=self._look, args=work, name="actions-artifacts", daemon=True).start()

    def _forget(self, wanted: Collection[Wanted]) -> None:
        """Drops answers that nobody wants beyond the limit."""
        with self._lock:
            too_many = max(0, len(self._found) - FOUND_MAX)
            for key in [key for key in self._found if key not in wanted][:too_many]:
                del self._found[key]
                self._look_from.pop(key, None)

    def _tell_slow(self) -> None:
        """Says of each copy that takes too long that it does."""
        said = f"it has been looked for and copied for more than {COPY_S:g} s"
        # Under one lock, because a copy that ends meanwhile has the last word.
        with self._lock:
            slow = [key for key, since_s in self._busy.values() if time.monotonic() - since_s >= COPY_S]
            is_new = any(self._found.get(key) != said for key in slow)
            self._found.update(dict.fromkeys(slow, said))
        if is_new:
            self._wake()

    def _look(self, number: int, sources: Sequence[int], key: Wanted) -> None:
        reason: str | None = "the look at its broker failed, see the log of the job"
        try:
            reason = self._provided(number, sources, key)
        except HeadwaterError as error:
            reason = str(error)
        except Exception:
            log.exception("cannot look for the artifact %s %s", key[1], key[2])
        finally:
            with self._lock:
                del self._busy[number]
                self._look_from[key] = time.monotonic() + (_TRUST_S if reason is None else _LOOK_AGAIN_S)
            self._note(key, reason)

    def _provided(self, number: int, sources: Sequence[int], key: Wanted) -> str | None:
        """None once the log has the artifact, otherwise why it does not."""
        log_id, name, version, sha256 = key
        found = self._depots[number].digest(name, version)
        if found is not None:
            return None if found == sha256 else _differs(found, sha256)
        said = "no broker that answers has it; push it with `headwater artifacts push`"
        for source in sources:
            try:
                there = self._depots[source].digest(name, version)
                if there == sha256:
                    self._note(key, "it is being copied there")
                    log.info("copying the artifact %s %s into the log %s", name, version, log_id)
                    self._depots[source].copy_to(self._depots[number], name, version)
                    return None
            except HeadwaterError as error:
                said = f"it could not be copied: {error}"
                continue
            if there is not None:
                said = _differs(there, sha256)
        return said

    def _note(self, key: Wanted, reason: str | None) -> None:
        with self._lock:
            is_new = key not in self._found or self._found[key] != reason
            self._found[key] = reason
        if is_new:
            self._wake()


def _differs(found: str, sha256: str) -> str:
    return f"other bytes have this version (sha256 {found[:12]}…, not {sha256[:12]}… as in the table artifacts)"
