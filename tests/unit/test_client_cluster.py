"""The Flight client of several nodes, of which one serves: it follows the leader, and never sends a change twice."""

from __future__ import annotations

import pytest
from support.flight_server import refusal
from support.memory_nodes import Nodes

from broker_edge import Client, ConfigError, ConnectError, NotLeaderError, Row, _connection
from broker_edge.errors import HeadwaterError


def _fill(nodes: Nodes, count: int) -> None:
    for number in range(count):
        nodes.all[0].log.append("devices/d/telemetry", b"%d" % number, partition=3)


def test_a_read_goes_to_the_leader_that_is_named(nodes: Nodes) -> None:
    nodes.leader = 2
    with Client(nodes.locations[0], timeout_s=60) as client:
        assert client.offsets(partitions=[3]).log_id == nodes.all[0].log.log_id
        assert client.server == nodes.locations[2]


def test_a_read_asks_all_nodes_where_none_knows_the_leader(nodes: Nodes) -> None:
    nodes.leader, nodes.is_named = 2, False
    with Client(nodes.locations, timeout_s=60) as client:
        client.offsets(partitions=[3])
        assert client.server == nodes.locations[2]
        assert [server.calls.get("offsets", 0) for server in nodes.all] == [1, 1, 1]


def test_a_stream_goes_on_at_the_new_leader_without_a_gap(nodes: Nodes) -> None:
    _fill(nodes, 5)
    with Client(nodes.locations, timeout_s=60) as client, client.tail(3, 0, batch_rows=5) as stream:
        seen = [*next(stream).column("offset").to_pylist()]
        nodes.leader = 1
        nodes.all[0].down()
        _fill(nodes, 5)
        while len(seen) < 10:
            seen += next(stream).column("offset").to_pylist()
        assert seen == list(range(10))
        assert client.server == nodes.locations[1]


def test_a_change_is_sent_once_and_the_next_call_goes_to_the_leader(nodes: Nodes) -> None:
    nodes.leader = 1
    rows = [Row(topic="devices/d/actions", value=b"x")]
    with Client(nodes.locations, timeout_s=60) as client:
        with pytest.raises(NotLeaderError) as raised:
            client.produce(rows)
        assert raised.value.leader == nodes.locations[1]
        assert len(client.produce(rows)) == 1
        nodes.all[1].down()
        nodes.leader = 2
        with pytest.raises(HeadwaterError):
            client.produce(rows)
        client.offsets(partitions=[3])
        assert client.server == nodes.locations[2]
        assert len(client.produce(rows)) == 1


def test_one_address_whose_node_is_gone_is_not_left(nodes: Nodes) -> None:
    nodes.all[0].down()
    with Client(nodes.locations[0], timeout_s=5, retries=1) as client, pytest.raises(ConnectError):
        client.offsets(partitions=[3])


def test_one_address_that_named_a_leader_is_asked_again_when_that_leader_is_gone(nodes: Nodes) -> None:
    nodes.leader = 1
    with Client(nodes.locations[0], timeout_s=60) as client:
        client.offsets(partitions=[3])
        assert client.server == nodes.locations[1]
        nodes.all[1].down()
        nodes.leader = 2
        client.offsets(partitions=[3])
        assert client.server == nodes.locations[2]


def test_a_read_of_several_nodes_outlasts_an_election(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    nodes.leader = None

    def wait(seconds: float) -> None:
        waits.append(seconds)
        # Five to six seconds is how long a leader that is cut off is waited for.
        nodes.leader = 1 if sum(waits) > 6 else None

    monkeypatch.setattr(_connection.time, "sleep", wait)
    with Client(nodes.locations, timeout_s=60) as client:
        client.offsets(partitions=[3])
    nodes.leader = None
    waits.clear()
    with Client(nodes.locations[0], timeout_s=60) as client, pytest.raises(NotLeaderError):
        client.offsets(partitions=[3])


def test_a_leader_that_does_not_use_tls_as_we_do_is_not_followed(nodes: Nodes) -> None:
    def before(name: str) -> None:
        raise refusal("not_leader", "another node leads", leader="grpc+tls://127.0.0.1:1")

    nodes.all[0].before = before
    with Client(nodes.locations[0], timeout_s=60, retries=1) as client:
        with pytest.raises(NotLeaderError):
            client.offsets(partitions=[3])
        assert client.server == nodes.locations[0]
        assert nodes.all[0].calls["offsets"] == 2


def test_addresses_have_to_be_alike() -> None:
    with pytest.raises(ConfigError, match="some of the server addresses use TLS"):
        Client(["grpc://a", "grpc+tls://b"])
    with pytest.raises(ConfigError, match="is not a server address"):
        Client(["grpc://a", "http://b"])
