"""The clients of a cluster: the publishers, subscribers and producer of one broker, which follow the leader.

A load is at one node. Publishers that resend, subscribers and the producer leave it when they go to another leader. The
publishers that send once stay where they are until the end of the cycle: a node that is leader no more must acknowledge
nothing to them.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from broker_edge.torture.check import LogCheck
from broker_edge.torture.cluster.nodes import Nodes
from broker_edge.torture.cluster.patience import Patience
from broker_edge.torture.cluster.watch import Leaderships
from broker_edge.torture.load import LoadResult, MqttLoad, Place
from broker_edge.torture.outbox import Outbox
from broker_edge.torture.producer import Producer
from broker_edge.torture.records import Publisher, Recipe
from broker_edge.torture.witness import MqttWitness

CONNECT_S = 5.0
PRODUCE_S = 6.0
CALM_S = 0.2
"""While something is waited for, a load need not fill the log: what it writes is read again and again."""
_LOOK_S = 0.01


@dataclass(frozen=True, slots=True)
class Visit:
    """One load, at one node: publishers that send once, and those that go on elsewhere."""

    node: str
    run: int
    once: MqttLoad
    again: MqttLoad | None

    @property
    def loads(self) -> tuple[MqttLoad, ...]:
        return (self.once,) if self.again is None else (self.once, self.again)

    @property
    def acked(self) -> int:
        return sum(one.acked for one in self.loads)

    @property
    def is_over(self) -> bool:
        """Whether every connection has ended."""
        return all(one.over for one in self.loads)

    def summary(self) -> str:
        return f"run {self.run} at {self.node}: {'; '.join(one.summary() for one in self.loads)}"


class Traffic:
    """The clients of one life. `sources` publish; with retention there are neither subscribers nor the producer."""

    def __init__(
        self,
        nodes: Nodes,
        check: LogCheck,
        *,
        recipe: Recipe,
        sources: tuple[Publisher, ...],
        witnesses: tuple[MqttWitness, ...],
        moments: random.Random,
    ) -> None:
        self._nodes, self._check, self._recipe = nodes, check, recipe
        self._once = tuple(one for one in sources if not one.resends)
        self._again = tuple(one for one in sources if one.resends)
        self.witnesses = witnesses
        self._outboxes = {one.connection: Outbox() for one in self._again}
        self._producer = Producer(recipe=recipe, moments=moments, timeout_s=PRODUCE_S) if witnesses else None
        self._produces = False
        self._is_watched = False
        self.runs = 0
        self.now: Visit | None = None
        self._left: list[Visit] = []
        self._acked: list[tuple[str, Place]] = []

    @property
    def resent(self) -> int:
        return sum(one.resent.total() for one in self._outboxes.values())

    def go(self, node: str, *, window: int, pause_s: float) -> Visit:
        """Begins a load at a node, as one that the clients take for the leader."""
        self.leave()
        if self.runs == 0:
            # Before the first record: subscribers are to get all of them.
            self._subscribe(node)
        run, self.runs = self.runs, self.runs + 1
        make = self._maker(node, run, window, pause_s)
        visit = Visit(node, run, make(self._once), make(self._again) if self._again else None)
        for load in visit.loads:
            load.__enter__()
        self.now = visit
        return visit

    def _maker(self, node: str, run: int, window: int, pause_s: float) -> Callable[[tuple[Publisher, ...]], MqttLoad]:
        def make(publishers: tuple[Publisher, ...]) -> MqttLoad:
            return MqttLoad(
                address=self._nodes.mqtt(node),
                run=run,
                recipe=self._recipe,
                publishers=publishers,
                window=window,
                pause_s=pause_s,
                outboxes=self._outboxes,
            )

        return make

    def pace(self, pause_s: float) -> None:
        """From now on each publisher sends at most one window in that time."""
        for load in () if self.now is None else self.now.loads:
            load.pace(pause_s)

    def moves(self, *, seconds: float, more: int = 1) -> bool:
        """Whether so many more publishes are acknowledged in time."""
        visit = self.now
        if visit is None:
            return False
        wanted, patience = visit.acked + more, Patience(seconds)
        while visit.acked < wanted:
            if visit.is_over or patience.is_over():
                return visit.acked >= wanted
            time.sleep(_LOOK_S)
        return True

    def join(self) -> None:
        """Subscribers and producer come to the node of the load, if they are not there. One that is refused stays
        away."""
        visit = self.now
        if visit is None:
            return
        if self._producer is not None and not self._produces and not self._producer.is_busy:
            self._producer.start(self._nodes.flight(visit.node), run=visit.run)
            self._produces = True
        self._subscribe(visit.node)

    def _subscribe(self, node: str) -> None:
        if self._is_watched:
            return
        self._is_watched = True
        for witness in self.witnesses:
            with contextlib.suppress(OSError, TimeoutError):
                witness.connect(self._nodes.mqtt(node), may_be_refused=True, seconds=CONNECT_S)

    def leave(self) -> None:
        """The clients that go on elsewhere leave. Waits for no answer."""
        for witness in self.witnesses if self._is_watched else ():
            witness.close()
        self._is_watched = False
        if self._producer is not None:
            self._producer.end_soon()
            if self._produces and not self._producer.is_busy:
                self._end_production()
        visit, self.now = self.now, None
        if visit is None:
            return
        if visit.again is not None:
            self._add(visit.node, visit.again.stop())
        visit.once.pace(CALM_S)
        self._left.append(visit)

    def end(self) -> None:
        """Everybody leaves, and what was sent and acknowledged is added to the check."""
        self.leave()
        for visit in self._left:
            self._add(visit.node, visit.once.stop())
        self._left = []
        if self._produces:
            self._end_production()

    def _end_production(self) -> None:
        assert self._producer is not None
        self._produces = False
        self._check.add(self._producer.finish())

    def _add(self, node: str, result: LoadResult) -> None:
        self._check.add(result)
        # Only of those who send once: a record that is sent again may have been stored in an earlier epoch.
        once = (one for one in result.connections if not one.publisher.resends)
        self._acked += [(node, place) for one in once for place in one.acked.values() if place is not None]

    def note_leaders(self, leaderships: Leaderships) -> None:
        """Who has acknowledged records of which epoch. To be called when the check has read them."""
        for node, place in self._acked:
            epoch = self._check.epoch_at(place)
            if epoch is not None:
                leaderships.add(epoch, node, f"acknowledged {place}")
        self._acked = []
