"""The brokers of `headwater demo --cluster`, without Spark: the leader is killed, and the node comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.following import numbers_in_log, until
from support.programs import headwaterd, program

from broker_edge import Client, Row
from broker_edge.errors import HeadwaterError, SettingsError
from broker_edge.local_cluster import LocalCluster
from pipelines.demo.brokers import open_brokers
from pipelines.demo.layout import open_layout

TOPIC = "devices/d1/telemetry"


def _published(client: Client, number: int) -> bool | None:
    """A key, because a publish without an answer may have happened."""
    try:
        client.produce([Row(topic=TOPIC, value=b"%d" % number, idempotency_key=str(number))])
    except HeadwaterError:
        return None
    return True


def test_the_leader_is_killed_and_its_node_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program("etcd", "etcd-server")
    monkeypatch.setenv("HEADWATERD", headwaterd())
    with open_layout(tmp_path) as layout:
        with open_brokers(layout, 1, devices=["d1"], secure=False, cluster=True) as brokers:
            (broker,) = brokers.all
            nodes = LocalCluster(layout.cluster)
            assert [str(broker.mqtt), *map(str, broker.others)] == [node.mqtt for node in nodes.nodes.values()]
            first = nodes.status().leader
            with broker.operator.client() as client:
                assert brokers.restart_step == "killing the leader"
                until("a publish at the first leader", lambda: _published(client, 0))
                assert brokers.restart()
                until("a publish at the next leader", lambda: _published(client, 1))
            until("a whole cluster", lambda: nodes.status().is_whole or None)
            leader = nodes.status().leader
            assert leader not in (None, first)
            assert numbers_in_log(nodes.nodes[str(leader)]) == [0, 1]
        with (
            pytest.raises(SettingsError, match="has records of a cluster: give --cluster"),
            open_brokers(layout, 1, devices=["d1"], secure=False),
        ):
            raise AssertionError("a broker alone has started on the folder of a cluster")


@pytest.mark.parametrize(("count", "secure"), [(2, False), (1, True)])
def test_a_cluster_goes_with_neither_users_nor_more_brokers(tmp_path: Path, count: int, secure: bool) -> None:
    with (
        open_layout(tmp_path) as layout,
        pytest.raises(SettingsError, match="give --cluster, --brokers or --secure"),
        open_brokers(layout, count, devices=["d1", "d2"], secure=secure, cluster=True),
    ):
        raise AssertionError("it has started")
