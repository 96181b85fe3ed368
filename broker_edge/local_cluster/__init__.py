"""A cluster on this machine: etcd and three brokers as processes, on one folder that keeps their data.

For trying it out and for tests. It has no users, and everything listens on 127.0.0.1.
"""

from __future__ import annotations

from broker_edge.local_cluster.cluster import LocalCluster, Node
from broker_edge.local_cluster.etcd import EtcdProcess
from broker_edge.local_cluster.layout import NODES, Layout, Ports

__all__ = ["NODES", "EtcdProcess", "Layout", "LocalCluster", "Node", "Ports"]
