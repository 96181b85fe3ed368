"""A log and a device as values in memory: what `broker_edge.device` does with commands, without MQTT and without time.

A device has a session at every broker: it reads each log from where it stopped there.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from actions.engine import Publish

FINAL = frozenset({"SUCCEEDED", "FAILED", "REJECTED", "CANCELLED"})
Key = tuple[str, int]
"""(action, attempt)."""


class Log:
    """The log of one broker, and what the status job has read of it."""

    def __init__(self, id_: str) -> None:
        self.id, self.has_artifact = id_, True
        self.records: list[Publish] = []
        self.places: dict[str, int] = {}
        self.reports: dict[int, list[dict[str, Any]]] = defaultdict(list)
        self.read: Counter[int] = Counter()

    def append(self, publish: Publish) -> int:
        """The offset of the record; a key that is there already keeps its record."""
        if publish.idempotency_key not in self.places:
            self.places[publish.idempotency_key] = len(self.records)
            self.records.append(publish)
        return self.places[publish.idempotency_key]

    def lacks(self) -> str | None:
        return None if self.has_artifact else "nobody has brought it"

    def value(self, key: str) -> bytes | None:
        return self.records[self.places[key]].value if key in self.places else None

    def report(self, partition: int, **row: Any) -> None:
        rows = self.reports[partition]
        rows.append({"log_id": self.id, "partition": partition, "offset": len(rows), **row})


class ModelDevice:
    def __init__(self, id_: str, *, keeps_journal: bool = True) -> None:
        self.id, self._keeps_journal = id_, keeps_journal
        self.log: Log | None = None
        self.version, self.has_lost_journal = "1", False
        self.begun: Counter[Key] = Counter()
        self.acknowledged: dict[Key, set[str]] = defaultdict(set)
        """The logs in which it has read the command: it does not get it from there again."""
        self._journal: dict[Key, str] = {}
        self.running: dict[Key, str] = {}
        """The mode of what it does now."""
        self._versions: dict[Key, str] = {}
        self._untold: list[Key] = []
        self._cursors: dict[str, int] = {}
        self._boot, self._seq, self._is_new = 0, 0, True

    def leave(self, *, interrupted: bool) -> None:
        """Loses its connection, by a restart if interrupted. What it does then fails; it says so when it is back."""
        if interrupted:
            for key in self.running:
                self._journal[key] = "FAILED"
                self._untold.append(key)
            self.running.clear()
            self._boot, self._seq = self._boot + 1, 0
        self.log, self._is_new = None, True

    def lose_journal(self) -> None:
        self._journal.clear()
        self.running.clear()
        self._untold.clear()
        self.has_lost_journal = True

    def connect(self, log: Log, now_us: int) -> None:
        self._cursors.setdefault(log.id, len(log.records))
        self._say(log, ("", 0), "ONLINE", now_us)
        for key in self._untold:
            self._say(log, key, self._journal[key], now_us)
        self._untold, self._is_new = [], False

    def live(self, log: Log, chance: random.Random, now_us: int, *, is_pressed: bool) -> Iterator[Key]:
        """Works a little, then reads some records. Yields what it begins."""
        if self._is_new or log.id not in self._cursors:
            self.connect(log, now_us)
        for key, mode in list(self.running.items()):
            if chance.random() < (0.05 if mode == "soft" else 1.0 if is_pressed else 0.5):
                self._end(log, key, mode, now_us, succeeds=chance.random() < 0.8)
        here = [one for one in log.records[self._cursors[log.id] :] if one.device_id == self.id]
        for publish in here if is_pressed else here[: chance.randint(0, 3)]:
            self._cursors[log.id] = log.places[publish.idempotency_key] + 1
            if self._begins(log, publish, now_us):
                yield publish.action_id, publish.attempt

    def _begins(self, log: Log, publish: Publish, now_us: int) -> bool:
        body = json.loads(publish.value)
        key, known = (publish.action_id, publish.attempt), self._journal.get((publish.action_id, publish.attempt))
        if body["type"] == "force":
            if key in self.running:
                self.running[key] = "forced"
        elif body["type"] == "cancel":
            if known in FINAL:
                self._say(log, key, known, now_us)
            else:
                self._end_as(log, key, "CANCELLED", now_us)
        else:
            self.acknowledged[key].add(log.id)
            place = {"command_partition": 2, "command_offset": log.places[publish.idempotency_key]}
            about = {"source": "receipt", "device_id": self.id, "action_id": key[0], "attempt": key[1]}
            log.report(0, **about, state="DELIVERED", at_us=now_us, **place)
            return known is None and self._starts(log, key, body, now_us)
        return False

    def _starts(self, log: Log, key: Key, body: dict[str, Any], now_us: int) -> bool:
        deadline_us = body.get("deadline_us")
        others = [other for other in self.running if "mode" in body and other[0] != key[0]]
        if (deadline_us is not None and now_us >= deadline_us) or others:
            self._end_as(log, key, "REJECTED", now_us)
            return False
        for lower in [other for other in self.running if other[0] == key[0]]:
            self.running.pop(lower)  # It goes on with the new attempt.
            self._journal[lower] = "FAILED"
        if self._keeps_journal:
            self._journal[key] = "ACCEPTED"
        self.running[key] = body.get("mode") or "forced"
        self._versions[key] = body.get("target_version") or "2"
        self.begun[key] += 1
        self._say(log, key, "ACCEPTED", now_us)
        self._say(log, key, "IN_PROGRESS", now_us)
        return True

    def _end(self, log: Log, key: Key, mode: str, now_us: int, *, succeeds: bool) -> None:
        if succeeds and mode != "download_only":
            self.version = self._versions.get(key, "2")
        self._end_as(log, key, "SUCCEEDED" if succeeds else "FAILED", now_us)

    def _end_as(self, log: Log, key: Key, state: str, now_us: int) -> None:
        self.running.pop(key, None)
        if self._keeps_journal:
            self._journal[key] = state
        self._say(log, key, state, now_us)

    def _say(self, log: Log, key: Key, state: str, now_us: int) -> None:
        self._seq += 1
        about = {"source": "status", "device_id": self.id, "action_id": key[0], "attempt": key[1], "state": state}
        run = {"boot": f"{self.id}-{self._boot}", "seq": self._seq, "version": self.version}
        log.report(5 + int(self.id[-1]) % 2, **about, **run, at_us=now_us)
