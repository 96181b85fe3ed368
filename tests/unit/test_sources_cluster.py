"""The source at a cluster: it goes on at the new leader, and uses no answer of a deposed one."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Iterator

import pytest
from support.flight_server import FlightServer, refusal
from support.memory_log import MemoryLog
from support.memory_nodes import Nodes
from support.source_driver import FILTER, Query, fill, open_reader, read_rows

from broker_edge.errors import DataLossError, OptionError, UnavailableError
from sources.batch import BatchReader
from sources.options import parse_options


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sources.stream.IDLE_SECONDS", 0.0)


def _numbers(query: Query) -> list[int]:
    return sorted(int(row["value"]) for row in query.rows)


@pytest.mark.parametrize("is_named", [True, False])
def test_a_query_goes_on_at_the_new_leader_with_the_same_checkpoint(nodes: Nodes, is_named: bool) -> None:
    nodes.leader, nodes.is_named = 1, is_named
    query = Query(nodes.address)
    fill(nodes.all[0], 20)
    query.drain()
    nodes.all[1].down()
    nodes.leader = 2
    nodes.all[0].log.new_epoch()
    fill(nodes.all[0], 20)
    query.drain()
    query.restart()
    fill(nodes.all[0], 20)
    query.drain()
    assert _numbers(query) == sorted(3 * list(range(20)))
    assert len({(row["partition"], row["offset"]) for row in query.rows}) == 60


def test_a_batch_that_was_planned_at_the_old_leader_is_read_at_the_new_one(nodes: Nodes) -> None:
    query = Query(nodes.address, pollTimeoutMs="20000")
    fill(nodes.all[0], 20)
    start, end = query.start(), query.plan()[1]
    tasks = query.reader.partitions(start, end)
    nodes.all[0].down()
    nodes.leader = 1
    rows = [row for task in tasks for batch in query.reader.read(task) for row in batch.to_pylist()]
    assert sorted(int(row["value"]) for row in rows) == list(range(20))


def test_tasks_begin_at_the_node_that_led_when_they_were_planned(nodes: Nodes) -> None:
    """With the access of that server."""
    nodes.leader = 2
    fill(nodes.all[0], 5)
    reader = open_reader(nodes.address, access=json.dumps({nodes.address: {"name": "plant"}}))
    start = reader.initialOffset()
    (first, *_) = tasks = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert first.address == "grpc://" + "/".join(nodes.locations[at].partition("://")[2] for at in (2, 0, 1))
    assert reader._options.access_of(first.address).name == "plant"
    before = [server.calls.get("version", 0) for server in nodes.all]
    assert sum(batch.num_rows for task in tasks for batch in reader.read(task)) == 5
    assert [server.calls.get("version", 0) for server in nodes.all[:2]] == before[:2]


def test_without_a_leader_a_running_query_waits_and_a_new_one_says_what_is_missing(nodes: Nodes) -> None:
    query = Query(nodes.address)
    fill(nodes.all[0], 5)
    query.drain()
    nodes.leader = None
    fill(nodes.all[0], 5)
    assert query.drain() == []
    new = open_reader(nodes.address, requestTimeoutMs="1500")
    began = time.monotonic()
    with pytest.raises(UnavailableError) as told:
        new.initialOffset()
    assert time.monotonic() - began >= 1.5, "an election is waited for"
    assert str(told.value).startswith(f"no node of the cluster {', '.join(nodes.locations)} serves as its leader (")
    assert "headwater cluster status" in str(told.value)
    nodes.leader = 2
    assert len(query.drain()) == 5


def test_a_new_query_and_a_batch_read_wait_for_the_election(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(nodes.all[0], 5)
    nodes.leader = None
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        nodes.leader = 1 if sum(waits) > 6 else None

    monkeypatch.setattr("sources.log_server.time.sleep", wait)
    reader = open_reader(nodes.address)
    assert reader.initialOffset()
    nodes.leader = None
    waits.clear()
    batch = BatchReader(parse_options({"servers": nodes.address, "subscribe": FILTER}))
    assert sum(one.end - one.start for task in batch.partitions() for one in task.offsets) == 5


class Deposed:
    """Two nodes that both serve: `old` led before and has only the first records."""

    def __init__(self) -> None:
        self.old = FlightServer().up()
        fill(self.old, 10, partition=3)
        log = MemoryLog(log_id=self.old.log.log_id)
        log.partitions = copy.deepcopy(self.old.log.partitions)
        self.new = FlightServer(log).up()
        fill(self.new, 10, partition=3)
        self.address = f"{self.new.location}/{self.old.location.partition('://')[2]}"

    def old_is_asked(self) -> None:
        """The newer one does not answer."""

        def away(name: str) -> None:
            if name != "version":
                raise refusal("not_leader", "another node leads", leader=self.old.location)

        self.new.before = away

    def new_is_asked(self) -> None:
        self.new.before = lambda name: None

    def close(self) -> None:
        self.old.down()
        self.new.down()


@pytest.fixture
def deposed() -> Iterator[Deposed]:
    made = Deposed()
    yield made
    made.close()


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("has_epoch", [False, True], ids=["one epoch", "a later epoch"])
def test_what_a_deposed_leader_lacks_is_not_lost(deposed: Deposed, restarts: bool, has_epoch: bool) -> None:
    if has_epoch:
        deposed.new.log.new_epoch()
        fill(deposed.new, 1, partition=3)
    query = Query(deposed.address, assign=json.dumps({deposed.new.log.log_id: [3]}))
    read = len(query.drain())
    assert read == 20 + has_epoch
    if restarts:
        query.restart()
    deposed.old_is_asked()
    assert query.drain() == [], "no loss, and no row again"
    deposed.new_is_asked()
    fill(deposed.new, 5, partition=3)
    assert len(query.drain()) == 5
    assert [row["offset"] for row in query.rows] == list(range(read + 5))


def test_a_lower_epoch_is_refused_where_nothing_is_missing(deposed: Deposed) -> None:
    deposed.new.log.new_epoch()
    query = Query(deposed.address, assign=json.dumps({deposed.new.log.log_id: [3]}))
    query.start()
    deposed.old_is_asked()
    assert query.drain() == []
    deposed.new_is_asked()
    assert len(query.drain()) == 20


def test_what_a_batch_names_is_waited_for(deposed: Deposed) -> None:
    """A task that comes to the deposed leader does not take the end of its log for a loss."""
    query = Query(deposed.address, assign=json.dumps({deposed.new.log.log_id: [3]}), pollTimeoutMs="600")
    start, end = query.start(), query.plan()[1]
    deposed.old_is_asked()
    with pytest.raises(UnavailableError, match="its log ends at 10, before 20"):
        read_rows(query.reader, start, end)
    deposed.new_is_asked()
    assert len(read_rows(query.reader, start, end)) == 20


def test_a_later_leader_that_lacks_records_is_a_loss(deposed: Deposed) -> None:
    query = Query(deposed.address, assign=json.dumps({deposed.new.log.log_id: [3]}))
    query.drain()
    deposed.old_is_asked()
    deposed.old.log.new_epoch()
    with pytest.raises(DataLossError, match="the log ends at 10"):
        query.drain()


def test_nodes_as_servers_of_their_own_are_told_how_to_be_named(deposed: Deposed) -> None:
    query = Query(deposed.new, deposed.old)
    with pytest.raises(OptionError, match="the nodes of a cluster are one entry, grpc://HOST:PORT/HOST:PORT"):
        query.drain()


def test_a_query_goes_on_when_its_address_gets_more_nodes(nodes: Nodes) -> None:
    """Also beside another broker, where an entry without a name is known by its address."""
    with FlightServer() as other:
        query = Query(nodes.all[0], other)
        fill(nodes.all[0], 10)
        query.drain()
        query._servers = (nodes.address, other)
        query.restart()
        nodes.leader = 1
        fill(nodes.all[0], 10)
        query.drain()
        assert len(query.rows) == 20


@pytest.mark.parametrize("servers", ["grpc://a:1/b", "grpc://a:1//b:2", "grpc://a:1/b:x", "grpc://a:1,grpc://b:1/a:1"])
def test_wrong_nodes_are_refused(servers: str) -> None:
    with pytest.raises(OptionError, match=r"is not an address of the form|names a broker twice"):
        parse_options({"servers": servers, "subscribe": FILTER})
