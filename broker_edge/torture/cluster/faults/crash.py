"""Processes that die, stand still or are stopped."""

from __future__ import annotations

from broker_edge.torture.cluster.life import ClusterLife
from broker_edge.torture.cluster.nodes import NODES

TAKES_OVER_S = 60.0
"""Two nodes of the in-sync set and etcd are there: the next leader serves long before that, also on a busy machine."""


class Kill(ClusterLife):
    """Everything acknowledged outlives the leader, the next leader, and all of them."""

    name = "kill"
    about = "kill -9 of one node, of one leader after the other, or of all"
    starts_interrupted = 0.25

    def strike(self) -> None:
        draw = self.moments.random()
        if draw < 0.2:
            self._kill_all()
        elif draw < 0.45:
            self._kill_leaders()
        else:
            was_whole = self.watch.is_whole()
            self.nodes.kill(self.pick())
            if self.draw(0.3):
                return  # It starts again before anybody takes over.
            # With two members away there may be nobody who can lead.
            self.serve(seconds=TAKES_OVER_S, must=was_whole)
            self.publish(self.moments.randint(1, 500), seconds=10)

    def _kill_all(self) -> None:
        names = list(NODES)
        self.moments.shuffle(names)
        for name in names:
            self.nodes.kill(name)
            if self.draw(0.3):
                self.sleep(0.0, 0.5)
        if self.draw(0.5):
            self.compare()

    def _kill_leaders(self) -> None:
        first = self.leader()
        self.nodes.kill(first)
        if self.draw(0.5):
            self.start(first)
            self.wait_up(first)
        self.serve(seconds=10.0, must=False)
        if self.draw(0.5):
            self.publish(self.moments.randint(1, 300), seconds=5)
        self.nodes.kill(self.leader())


class Stop(ClusterLife):
    """A leader that is stopped hands over, and nobody who is stopped takes anything with it."""

    name = "stop"
    about = "SIGTERM of one node or of all under load"

    def strike(self) -> None:
        if self.draw(0.15):
            self.stop(*NODES)
            return
        was_whole = self.watch.is_whole()
        name = self.pick(0.7)
        self.stop(name)
        self.serve(seconds=TAKES_OVER_S, must=was_whole)
        self.publish(self.moments.randint(1, 500), seconds=10)


class Pause(ClusterLife):
    """A node that stands still, for less or more than its lease, loses nothing and acknowledges nothing that is not
    its own any more."""

    name = "pause"
    about = "SIGSTOP for up to 8 s"

    def strike(self) -> None:
        was_whole = self.watch.is_whole()
        names = [self.pick(0.7)]
        if self.draw(0.25):
            names = self.moments.sample(NODES, self.moments.randint(2, 3))
        self.nodes.pause(*names)
        if self.draw(0.4):
            self.sleep(0.05, 4.0)
        elif len(names) == 1 and self.draw(0.7):
            self.serve(seconds=TAKES_OVER_S, must=was_whole)
            self.publish(self.moments.randint(1, 300), seconds=5)
        else:
            self.sleep(3.0, 8.0)
        if self.draw(0.25):
            self.nodes.kill(names[0])
        self.nodes.go_on(*names)
        if self.draw(0.5):
            self.sleep(0.0, 1.0)
