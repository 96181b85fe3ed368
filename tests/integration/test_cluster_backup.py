"""A backup of a cluster has all that was acknowledged, whoever leads, and begins another cluster."""

from __future__ import annotations

from pathlib import Path

from support.following import Place, Publisher, address_of, in_log, until
from support.programs import headwater, headwaterd, program

from broker_edge.local_cluster import LocalCluster, Node


def _backup(nodes: list[Node]) -> None:
    done = headwater("log", "backup", "daily", "--server", address_of(nodes), "--json")
    assert done.code == 0, done.err


def _followers_first(cluster: LocalCluster) -> list[Node]:
    """In this order a client has to go on from a node that does not serve it."""
    leader = until("a leader", lambda: cluster.status().leader)
    return sorted(cluster.nodes.values(), key=lambda node: node.name == leader)


def _log_id(cluster: LocalCluster) -> str:
    return str(cluster.status().newest["log_id"])


def _whole(cluster: LocalCluster) -> bool | None:
    return cluster.status().is_whole or None


def test_a_backup_goes_on_at_the_next_leader_and_begins_another_cluster(tmp_path: Path) -> None:
    program("etcd", "etcd-server")
    backups = tmp_path / "backups"
    where = {"command": [headwaterd()], "settings": {"log.backup_dir": str(backups)}}
    with LocalCluster(tmp_path / "first", **where) as first:
        first.start()
        until("a whole cluster", lambda: _whole(first))
        nodes = _followers_first(first)
        publisher = Publisher(nodes)
        publisher.publish(40)
        _backup(nodes)

        nodes[-1].process.kill()
        publisher.publish(40)
        publisher.leave()
        nodes = [nodes[-1], *_followers_first(first)[1:]]
        _backup(nodes)
        acknowledged = in_log(address_of(nodes))
        assert {number for _, number in acknowledged.values()} == set(range(80))
        log_id = _log_id(first)

    second = LocalCluster(tmp_path / "second", command=[headwaterd()])
    restored = headwater("log", "restore", str(backups / "daily"), str(second.nodes["n1"].process.data_dir), "--json")
    assert restored.code == 0, restored.err
    (report,) = restored.documents
    assert report["source_log_id"] == log_id
    with second:
        second.start()
        # The other two are empty, and nobody serves before one of them has everything.
        found: dict[Place, tuple[str, int]] = until("what was restored", lambda: in_log(address_of(_nodes(second))))
        assert found == acknowledged
        assert _log_id(second) == report["log_id"] != log_id
        more = Publisher(_nodes(second), acknowledged=80)
        more.publish(10)
        more.leave()
        assert len(in_log(address_of(_nodes(second)))) == len(acknowledged) + 10


def _nodes(cluster: LocalCluster) -> list[Node]:
    return list(cluster.nodes.values())
