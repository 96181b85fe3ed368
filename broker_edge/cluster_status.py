"""The state of a cluster: what each node says of itself, put together; and another leader for it.

A node that cannot be asked is part of the answer, with the reason.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from broker_edge.admin import Admin, parse_admin
from broker_edge.errors import (
    BrokerError,
    ConfigError,
    ConnectError,
    DeadlineError,
    HeadwaterError,
    RefusedError,
    UnavailableError,
)

PATH = "/api/v1/cluster"
_LOOK_S = 0.1
CLOCKS_APART_MS = 10_000
"""As the nodes: more than two of them need to tell each other their time."""
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """`reports` are the answers by node, `silent` says why a node gave none. Nodes are in the order of their names."""

    reports: Mapping[str, Report]
    silent: Mapping[str, str] = field(default_factory=dict)

    @property
    def newest(self) -> Report:
        """The answer of the highest epoch; in one epoch, that of the leader."""
        return max(self.reports.values(), key=lambda one: (one["epoch"], one["role"] == "leader"))

    @property
    def leader(self) -> str | None:
        return None if (found := self.newest["leader"]) is None else str(found)

    @property
    def epoch(self) -> int:
        return int(self.newest["epoch"])

    @property
    def in_sync(self) -> tuple[str, ...]:
        return tuple(sorted(self.newest["in_sync"]))

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(sorted({*self.newest["replicas"], *self.reports, *self.silent}))

    @property
    def is_whole(self) -> bool:
        """Whether somebody leads, all nodes answer, and all are in sync."""
        return self.leader is not None and not self.silent and set(self.in_sync) == set(self.nodes)

    @property
    def clocks_apart(self) -> Mapping[str, int]:
        """Milliseconds by which the clock of a node was ahead of the leader's when the two were linked, where that is
        much. Of the newest node instead of the leader while nobody leads."""
        ahead = {name: int(at.get("clock_ahead_ms") or 0) for name, at in self.newest["nodes"].items()}
        return {name: ms for name, ms in sorted(ahead.items()) if abs(ms) > CLOCKS_APART_MS}

    def lag(self, node: str) -> int | None:
        """Records that the leader has and the disk of this node does not, in all partitions; None if that is not
        known."""
        own, leader = self.reports.get(node), self.reports.get(self.leader or "")
        if own is None or leader is None:
            return None
        synced = {one["name"]: one["synced"] for one in own["partitions"]}
        return sum(max(0, int(one["end"]) - int(synced.get(one["name"], 0))) for one in leader["partitions"])

    def total(self, node: str, mark: str) -> int | None:
        """The sum of `end`, `synced` or `high_watermark` over all partitions."""
        own = self.reports.get(node)
        return None if own is None else sum(int(one[mark]) for one in own["partitions"])


def ask_cluster(open_admin: Callable[[str], Admin], addresses: Sequence[str]) -> ClusterStatus:
    """Asks the first of `addresses` that answers, then the nodes that it knows. Raises the error of the last address if
    none answers. A password goes to another machine without TLS only if its address is one of `addresses`."""
    first = _first(open_admin, addresses)
    given = {parse_admin(address) for address in addresses}
    reports: dict[str, Report] = {first["node"]: first}
    silent: dict[str, str] = {}
    for name in sorted({*first["replicas"], *first["nodes"]} - {first["node"]}):
        known = first["nodes"].get(name)
        if known is None:
            silent[name] = "it does not run"
        elif known["admin"] is None:
            silent[name] = "its settings tell no address: set cluster.advertise.admin"
        else:
            try:
                reports[name] = _ask(_trusted(open_admin(known["admin"]), given))
            except HeadwaterError as error:
                silent[name] = str(error)
    return ClusterStatus(dict(sorted(reports.items())), silent)


def elect(
    open_admin: Callable[[str], Admin], addresses: Sequence[str], node: str, *, timeout_s: float
) -> ClusterStatus:
    """Has the leader give the log to `node`, and returns the state in which that leads. Sessions are stored first, and
    nothing that was acknowledged is lost; clients connect again. Nothing happens if it leads already.

    Raises RefusedError for a node that is not in the cluster or not in sync, UnavailableError while nobody leads, and
    DeadlineError if another node still leads after `timeout_s`: that one goes on."""
    end = time.monotonic() + timeout_s
    found = ask_cluster(open_admin, addresses)
    if node not in found.nodes:
        raise RefusedError(f"{node} is no node of this cluster; its nodes are {', '.join(found.nodes)}")
    if found.leader == node:
        return found
    if found.leader is None:
        raise UnavailableError("nobody leads, so nobody can give the log away; see `headwater cluster status`")
    known = found.newest["nodes"].get(found.leader)
    if known is None or known["admin"] is None:
        raise ConfigError(f"{found.leader} leads, and tells no admin address: set its cluster.advertise.admin")
    given = {parse_admin(address) for address in addresses}
    _trusted(open_admin(known["admin"]), given).ask("PUT", f"{PATH}/leader", {"node": node})
    while (now := _looked(open_admin, addresses)) is None or now.leader != node:
        if time.monotonic() >= end:
            raise DeadlineError(f"{node} does not lead after {timeout_s:g} s; see `headwater cluster status`")
        time.sleep(_LOOK_S)
    return now


def _looked(open_admin: Callable[[str], Admin], addresses: Sequence[str]) -> ClusterStatus | None:
    try:
        return ask_cluster(open_admin, addresses)
    except (ConnectError, DeadlineError, UnavailableError):
        return None


def _first(open_admin: Callable[[str], Admin], addresses: Sequence[str]) -> Report:
    last: HeadwaterError = ConnectError("no address of a node is given", server="")
    for address in addresses:
        try:
            return _ask(open_admin(address))
        except HeadwaterError as error:
            last = error
    raise last


def _trusted(admin: Admin, given: Collection[str]) -> Admin:
    """Another node has told this address; it does not decide that a password is sent in clear."""
    if admin.address not in given and admin.sends_in_clear:
        raise ConfigError(
            f"it is not asked, because {admin.address} has no TLS and others could read the password or token: set its "
            "cluster.advertise.admin to an https:// address, or name it with --admin"
        )
    return admin


def _ask(admin: Admin) -> Report:
    found = admin.ask("GET", PATH)
    wanted = {
        "node": str,
        "role": str,
        "epoch": int,
        "in_sync": list,
        "replicas": list,
        "partitions": list,
        "nodes": dict,
    }
    if not all(isinstance(found.get(name), kind) for name, kind in wanted.items()):
        raise BrokerError(f"{admin.address} does not say what a node of a cluster says: is it one, of this version?")
    return found
