"""Three brokers as one for the demo, of which the leader can be killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from broker_edge.access import BrokerAccess
from broker_edge.errors import HeadwaterError, StartError
from broker_edge.local_cluster import LocalCluster
from broker_edge.mqtt_address import parse_mqtt
from pipelines.demo.broker import DemoBroker
from pipelines.demo.layout import Layout
from pipelines.settings import Settings

_LEADER_S = 60.0
_BETWEEN_S = 0.1


class DemoCluster:
    """The nodes as one broker, `broker`."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        nodes = list(cluster.nodes.values())
        server = "grpc://" + "/".join(node.server.partition("://")[2] for node in nodes)
        first, *others = (parse_mqtt(node.mqtt) for node in nodes)
        settings = Settings.model_validate({"servers": [server]})
        admin = nodes[0].admin.partition("://")[2]
        self.broker = DemoBroker(settings, BrokerAccess(server), first, admin, others=tuple(others))

    def restart(self) -> None:
        """Kills the leader, as `kill -9` does, and starts that node again once another one leads."""
        killed = self.leader()
        process = self._cluster.nodes[killed].process
        process.kill()
        self.leader(other_than=killed)
        process.spawn()
        self._cluster.wait_ready(killed)

    def leader(self, *, other_than: str | None = None) -> str:
        """The node that leads, once one does. Raises StartError."""
        deadline = time.monotonic() + _LEADER_S
        while time.monotonic() < deadline:
            try:
                found = self._cluster.status()
            except HeadwaterError:
                found = None
            leader = None if found is None else found.leader
            if found is not None and leader in found.reports and leader not in (None, other_than):
                return str(leader)
            time.sleep(_BETWEEN_S)
        raise StartError(f"no node of the cluster in {self._cluster.root} leads after {_LEADER_S:g} s")


@contextmanager
def open_cluster(layout: Layout) -> Iterator[DemoCluster]:
    """Starts etcd and the nodes, and waits for a leader."""
    with LocalCluster(layout.cluster) as cluster:
        cluster.start()
        made = DemoCluster(cluster)
        made.leader()
        yield made
