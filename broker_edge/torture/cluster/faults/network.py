"""Cables that are pulled, work in one direction, or are slow."""

from __future__ import annotations

import time

from broker_edge.torture.cluster.faults.crash import TAKES_OVER_S
from broker_edge.torture.cluster.life import ClusterLife
from broker_edge.torture.cluster.nodes import ETCD, NODES, others

_KILLS_S = 10.0


class Cut(ClusterLife):
    """Whoever is cut off acknowledges nothing alone; the others go on."""

    name = "cut"
    about = "links between nodes are held for up to 8 s, and nodes killed meanwhile"

    def strike(self) -> None:
        self.moments.choice(
            (self._leader, self._leader_killed, self._follower, self._pair, self._followers, self._all)
        )()

    def _leader(self) -> None:
        was_whole, leader = self.watch.is_whole(), self.leader()
        self.nodes.isolate(leader, etcd_too=self.draw(0.3))
        if self.draw(0.6):
            # It still believes for some time that it leads, and clients are still there.
            self.sleep(0.5, 3.0)
            self.serve(seconds=TAKES_OVER_S, must=was_whole)
            self.publish(self.moments.randint(1, 300), seconds=5)
        else:
            self.sleep(0.1, 8.0)

    def _leader_killed(self) -> None:
        """What it has appended alone has to go when it comes back."""
        was_whole, leader = self.watch.is_whole(), self.leader()
        self.nodes.isolate(leader)
        self.publish(100, seconds=self.moments.uniform(0.2, 2.0))
        self.nodes.kill(leader)
        self.nodes.links.heal()
        self.serve(seconds=TAKES_OVER_S, must=was_whole)
        self.publish(self.moments.randint(1, 300), seconds=5)

    def _follower(self) -> None:
        was_whole, name = self.watch.is_whole(), self.followers()[0]
        self.nodes.isolate(name, etcd_too=self.draw(0.3))
        self.serve(seconds=TAKES_OVER_S, must=was_whole)
        self.publish(self.moments.randint(1, 500), seconds=8)

    def _pair(self) -> None:
        """One cable. The follower at its end must not depose a leader whom the other one hears."""
        was_whole, name = self.watch.is_whole(), self.followers()[0]
        self.nodes.links.cut(self.leader(), [name])
        self.serve(seconds=TAKES_OVER_S, must=was_whole)
        self.sleep(0.1, 6.0)

    def _followers(self) -> None:
        """The followers do not hear each other, and the leader dies."""
        leader = self.leader()
        self.nodes.links.cut(*_first_and_rest(others(leader)))
        self.sleep(0.0, 0.3)
        self.nodes.kill(leader)
        self.sleep(1.0, 6.0)

    def _all(self) -> None:
        for name in NODES:
            self.nodes.isolate(name, etcd_too=self.draw(0.3))
        self.sleep(0.1, 8.0)


class OneWay(ClusterLife):
    """Both directions of a cable count: who is heard, and does not hear, does not lead."""

    name = "one-way"
    about = "links pass nothing in one direction for up to 8 s"

    def strike(self) -> None:
        was_whole, leader = self.watch.is_whole(), self.leader()
        one = self.pick(0.5)
        rest = others(one)
        # A single cable, or all of a node.
        if self.draw(0.5):
            rest = [self.moments.choice(rest)]
        sources, sinks = ([one], rest) if self.draw(0.5) else (rest, [one])
        self.nodes.links.cut_one_way(sources, sinks)
        if self.draw(0.3):
            self.nodes.links.cut_one_way([one], [ETCD])
        self.sleep(0.1, 5.0)
        if self.draw(0.25):
            self.nodes.kill(self.moments.choice((one, leader)))
            self.nodes.links.heal()
        elif len(rest) == 1 or one != leader or self.draw(0.5):
            self.serve(seconds=TAKES_OVER_S, must=was_whole)
            self.publish(self.moments.randint(1, 300), seconds=5)


class SlowLinks(ClusterLife):
    """Copies are behind, and leaders die while others fetch what they lack."""

    name = "slow-links"
    about = "links pass 20 to 200 KB/s, and leaders are killed one after the other"
    cycles = 8
    windows = (16, 64)

    def strike(self) -> None:
        self.nodes.links.slow(NODES, NODES, self.moments.randint(20, 200) * 1000)
        self.sleep(0.2, 2.0)
        if self.draw(0.3):
            self.publish(200, seconds=5)
        first = self.leader()
        self.nodes.kill(first)
        second = self._next_leader(first)
        if self.draw(0.7) and second is not None:
            if self.draw(0.5):
                self.sleep(0.0, 0.2)
            self.nodes.kill(second)
            self.sleep(0.0, 6.0)

    def _next_leader(self, before: str) -> str | None:
        deadline = time.monotonic() + _KILLS_S
        while time.monotonic() < deadline:
            leader = self.watch.leader()
            if leader is not None and leader != before:
                return leader
            time.sleep(0.005)
        return None


def _first_and_rest(names: list[str]) -> tuple[str, list[str]]:
    return names[0], names[1:]
