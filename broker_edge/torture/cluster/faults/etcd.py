"""etcd is away, or a node cannot reach it. Records are acknowledged meanwhile; changes of leader or set wait."""

from __future__ import annotations

from broker_edge.torture.cluster.life import ClusterLife
from broker_edge.torture.cluster.nodes import ETCD, others
from broker_edge.torture.report import Finding

GOES_ON_S = 20.0
"""Nothing but etcd is away: acknowledgements go on."""


class Etcd(ClusterLife):
    """The loss of etcd is no loss of records, whatever else happens at that time."""

    name = "etcd"
    about = "etcd is killed or paused, or nodes are cut off from it, alone or while nodes fail"

    def strike(self) -> None:
        self.moments.choice((self._away, self._away, self._node_dies, self._member_left_behind, self._cut_off))()

    def _take_away(self) -> None:
        if self.draw(0.6):
            self.nodes.kill_etcd()
        else:
            self.nodes.pause_etcd()

    def _away(self) -> None:
        was_whole = self.watch.is_whole()
        self._take_away()
        self.sleep(0.1, 1.0)
        if was_whole and not self.publish(1, seconds=GOES_ON_S):
            visit = self.traffic.now
            text = f"no acknowledgement in {GOES_ON_S:.0f} s without etcd: {self.watch.describe()}"
            self.report.add(Finding.UNAVAILABLE, f"{text}; {'no load' if visit is None else visit.summary()}")
        self.publish(self.moments.randint(1, 500), seconds=5)
        if self.draw(0.3):
            self.sleep(0.0, 12.0)  # Longer than the lease of a node's address.

    def _node_dies(self) -> None:
        self._take_away()
        self.sleep(0.0, 0.5)
        self.nodes.kill(self.pick())
        self.sleep(0.1, 5.0)

    def _member_left_behind(self) -> None:
        """A follower is cut off while nobody can remove it from the set. Then it is the only one that is there."""
        name = self.followers()[0]
        self.nodes.kill_etcd()
        self.nodes.isolate(name, etcd_too=True)
        # Nothing can be acknowledged now: the follower is waited for.
        self.publish(1_000, seconds=self.moments.uniform(1.0, 4.0))
        self.nodes.kill(*others(name))
        self.nodes.links.heal()
        self.nodes.start_etcd()
        self.sleep(2.0, 8.0)

    def _cut_off(self) -> None:
        leader = self.leader()
        names = [leader] if self.draw(0.7) else [self.followers()[0]]
        for name in names:
            self.nodes.links.cut(name, [ETCD])
        self.sleep(0.0, 1.0)
        draw = self.moments.random()
        if draw < 0.4:
            self.nodes.kill(self.followers()[0])
        elif draw < 0.7:
            self.nodes.isolate(self.followers()[0])
        self.sleep(1.0, 6.0)
