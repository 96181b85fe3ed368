"""Mistakes of a cluster that a fault build makes on request, and the findings that must reveal them."""

from __future__ import annotations

from broker_edge.torture.report import Finding
from broker_edge.torture.sabotage import Sabotage

_WRONG = frozenset(
    {Finding.LOST, Finding.CHANGED, Finding.DIVERGED, Finding.REORDERED, Finding.EARLY, Finding.TWO_LEADERS}
)
"""A record is gone or elsewhere; which of these words it is depends on who finds it first."""

CLUSTER_SABOTAGES: dict[str, Sabotage] = {
    "no-sync": Sabotage("syncs return and do nothing", "power", _WRONG),
    "ack-at-leader": Sabotage("the leader acknowledges what its own disk has", "cut", _WRONG),
    "suspect-ignored": Sabotage("a copy in doubt is elected like any other", "bits", _WRONG),
    "removed-early": Sabotage("a follower is not waited for before etcd says that it has left", "etcd", _WRONG),
    "cut-at-high-watermark": Sabotage("a copy is cut where it is known to be committed", "slow-links", _WRONG),
    "early-office": Sabotage("a new leader serves before earlier records are committed again", "cut", _WRONG),
    "stale-answers": Sabotage("what a follower had before it lost it still counts", "bits", _WRONG),
    "unaligned": Sabotage("a follower keeps what another leader never had", "cut", _WRONG),
}
