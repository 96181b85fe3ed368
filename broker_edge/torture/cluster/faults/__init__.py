"""What can happen to a cluster, by name. Each module is one kind; `docs/torture.md` lists them.

A new one needs a line in `_ALL`, a row in `docs/torture.md`, and `make reference`, because the command line lists the
names.
"""

from __future__ import annotations

from broker_edge.torture.cluster.faults.crash import Kill, Pause, Stop
from broker_edge.torture.cluster.faults.damage import Bits, Emptied, RolledBack
from broker_edge.torture.cluster.faults.disk import Clock, Errors, Full, Power, Slow
from broker_edge.torture.cluster.faults.etcd import Etcd
from broker_edge.torture.cluster.faults.network import Cut, OneWay, SlowLinks
from broker_edge.torture.cluster.life import ClusterLife

_ALL = (Kill, Stop, Pause, Cut, OneWay, SlowLinks, Etcd, Bits, Emptied, RolledBack, Slow, Errors, Clock, Power, Full)

CLUSTER_FAULTS: dict[str, type[ClusterLife]] = {one.name: one for one in _ALL}
"""In the order of docs/torture.md."""

__all__ = ["CLUSTER_FAULTS"]
