"""Random histories of a query: records of its topics and of others, retention, crashes, replays, runs that end.

Each record of its topics is read once, or is in a gap that was reported after it had come; no gap is reported twice,
and a query that has caught up rests. Where retention waits for the group, nothing is lost. Retention also acts between
two questions of a plan, and between the plan and the read.
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Callable

import pytest
from support.flight_server import FlightServer
from support.source_driver import Query, read_rows

SEEDS = range(40)
GROUP = "g"
PARTITIONS = (3, 4)
_BATCHES_MAX = 400


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sources.stream.IDLE_SECONDS", 0.0)
    monkeypatch.setattr("sources.group.SHOWN_EVERY_S", 0.0)
    monkeypatch.setattr("sources.passing.PASSED_BYTES_MIN", 64)


class History:
    """A log and a query on it. With `waits`, retention removes only what the group has finished."""

    def __init__(self, server: FlightServer, chance: random.Random, options: dict[str, str], *, waits: bool) -> None:
        self._server, self._log, self._chance, self._waits = server, server.log, chance, waits
        self.came: dict[bytes, tuple[int, int, int]] = {}
        self.query = Query(server, **options)
        self.query.start()
        # Without a group or a first batch, a query that starts again begins at what is the oldest record then.
        self._may_restart = "consumerGroup" in options
        self._between: Callable[[], None] | None = None
        self._asked = ""
        server.before = self._interrupt

    def _interrupt(self, name: str) -> None:
        if self._between is not None and name == self._asked:
            act, self._between = self._between, None
            act()

    def wanted(self) -> None:
        for _ in range(self._chance.choice([1, 1, 2, 5])):
            value = b"%d" % len(self.came)
            number, offset = self._log.append("devices/d1/telemetry", value, partition=self._partition())
            # How many gaps had been reported before.
            self.came[value] = (number, offset, len(self._log.reported_gaps()))

    def others(self) -> None:
        number = self._partition()
        for _ in range(self._chance.choice([1, 5, 20, 60])):
            self._log.append("devices/d1/status", bytes(self._chance.choice([1, 10, 30])), partition=number)

    def retention(self) -> None:
        place = self._log.partitions[self._partition()]
        end = place.high_watermark
        if self._waits:
            group = self._log.groups[GROUP]
            end = min(end, group.committed.get(place.number, group.initial.get(place.number, 0)))
        if end > place.log_start:
            self._log.expire(place.number, self._chance.randint(place.log_start, end))

    def act(self) -> None:
        self._chance.choice([self.wanted, self.others, self.others, self.retention])()

    def batch(self, *, is_calm: bool = False) -> bool:
        """Whether there was one. Not calm: something may happen while it is planned, and the query may crash."""
        if not is_calm and self._chance.random() < 0.4:
            self._asked = self._chance.choice(["offsets", "plan", "DoGet"])
            self._between = self.act
        start, end = self.query.plan(self._chance.choice([None, None, 1, 3]))
        if json.dumps(start) == json.dumps(end):
            return False
        if not is_calm and self._chance.random() < 0.15:
            self.restart()
            start = self.query.start()
        self.query.rows += read_rows(self.query.reader, start, end)
        self.query.ends.append(end)
        return True

    def restart(self) -> None:
        if self._may_restart or self.query.ends:
            self.query.restart()
            if self._chance.random() < 0.5:
                self.query.reader.prepareForTriggerAvailableNow()

    def catch_up(self) -> None:
        """In a run that ends: it waits for no further records."""
        self._between = None
        self.restart()
        self.query.reader.prepareForTriggerAvailableNow()
        for _ in range(_BATCHES_MAX):
            if not self.batch(is_calm=True):
                return
        raise AssertionError("the query does not rest")

    def _partition(self) -> int:
        return self._chance.choice(PARTITIONS)


def live(history: History, chance: random.Random) -> None:
    for _ in range(60):
        what = chance.random()
        if what < 0.55:
            history.act()
        elif what < 0.93:
            history.batch()
        else:
            history.restart()
    history.catch_up()


def limits(chance: random.Random) -> dict[str, str]:
    found = {}
    if chance.random() < 0.3:
        found |= {"minOffsetsPerTrigger": "4", "maxTriggerDelay": "1h"}
    if chance.random() < 0.3:
        found |= {"maxBytesPerTrigger": "5"}
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_where_retention_waits_for_the_group_all_is_read_once(flight_server: FlightServer, seed: int) -> None:
    chance = random.Random(seed)
    history = History(flight_server, chance, {"consumerGroup": GROUP, **limits(chance)}, waits=True)
    live(history, chance)
    assert Counter(row["value"] for row in history.query.rows) == Counter(history.came.keys())
    assert flight_server.log.reported_gaps() == []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_retention_removes_before_it_was_read_is_in_a_gap(flight_server: FlightServer, seed: int) -> None:
    chance = random.Random(seed)
    group = {"consumerGroup": GROUP} if chance.random() < 0.5 else {}
    history = History(flight_server, chance, {"failOnDataLoss": "false", **group, **limits(chance)}, waits=False)
    live(history, chance)
    read = Counter(row["value"] for row in history.query.rows)
    assert set(read.values()) <= {1}
    gaps = flight_server.log.reported_gaps()
    # Without a checkpoint yet, a query that starts again records again what is lost of its start, which is 0.
    for one, other in itertools.combinations([gap for gap in gaps if gap[1] > 0], 2):
        assert one[0] != other[0] or one[2] <= other[1] or other[2] <= one[1], f"{one} and {other} overlap"
    for value, (number, offset, before) in history.came.items():
        if value not in read:
            later = gaps[before:]
            assert any(number == where and start <= offset < end for where, start, end in later), (number, offset, gaps)
