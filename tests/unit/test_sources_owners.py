"""A broker that says the log of another one: whatever it does, a stream never reads it in the place of the other."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from support.flight_server import FlightServer
from support.memory_log import MemoryLog
from support.source_driver import FILTER, Json, Query, fill, places, read_rows

from broker_edge.errors import OptionError, UnavailableError
from sources.listener import ask_behind
from sources.offsets import SourceOffset
from sources.options import parse_options


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sources.stream.IDLE_SECONDS", 0.0)
    monkeypatch.setattr("sources.stream._WARNING_SECONDS", 0.0)
    # On a busy machine a refused connection is slow, and its broker would be left alone for a while.
    monkeypatch.setattr("sources.servers._LEAVE_ALONE_FACTOR", 0.0)


class Pair:
    """Two brokers, of which `south` can say the log of `north`, with records of its own."""

    def __init__(self, north: FlightServer, south: FlightServer) -> None:
        self.north, self.south = north, south
        self.mine = south.log
        fill(north, 10)
        fill(south, 10)
        self.query = Query(south, north, access=self.access())

    def access(self, **of_south: str) -> str:
        return json.dumps({self.north.location: {"name": "north"}, self.south.location: {"name": "south", **of_south}})

    def lie(self) -> None:
        """As a box that is stopped, and started with another folder."""
        self.restarted(MemoryLog(log_id=self.north.log.log_id))
        fill(self.south, 50)

    def restarted(self, log: MemoryLog) -> None:
        self.south.down()
        self.south.log = log
        self.south.up()

    @property
    def owners(self) -> Json:
        found: Json = self.query.ends[-1]["owners"]
        return found


@pytest.fixture
def pair() -> Iterator[Pair]:
    with FlightServer() as north, FlightServer() as south:
        yield Pair(north, south)


def test_the_checkpoint_says_which_broker_each_log_belongs_to(pair: Pair) -> None:
    assert len(pair.query.drain()) == 20
    assert pair.owners == {pair.north.log.log_id: "north", pair.south.log.log_id: "south"}
    pair.query.restart()
    assert pair.query.plan()[0] == pair.query.plan()[1], "an idle query moves nothing"


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_liar_takes_no_place_while_the_other_is_away(
    pair: Pair, caplog: pytest.LogCaptureFixture, *, is_restarted: bool
) -> None:
    pair.query.drain()
    pair.north.down()
    pair.lie()
    if is_restarted:
        pair.query.restart()
        with pytest.raises(UnavailableError, match=r"south says that it holds log .* which belongs to north"):
            pair.query.drain()
    else:
        # The first plan finds that the known broker holds another log, the next one which.
        assert [pair.query.drain(), pair.query.drain()] == [[], []]
        assert "which belongs to north" in caplog.text
    pair.north.up()
    fill(pair.north, 5)
    assert len(pair.query.drain()) == 5
    pair.restarted(pair.mine)
    fill(pair.south, 5)
    assert len(pair.query.drain()) == 5
    assert len(places(pair.query.rows)) == len(set(places(pair.query.rows))) == 30


@pytest.mark.parametrize("is_bounded", [False, True])
def test_a_liar_beside_the_other_ends_no_query_that_knows_the_owner(pair: Pair, *, is_bounded: bool) -> None:
    pair.query.drain()
    pair.lie()
    fill(pair.north, 5)
    pair.query.restart()
    if is_bounded:
        pair.query.reader.prepareForTriggerAvailableNow()
    assert len(pair.query.drain()) == 5


def test_two_that_say_one_log_on_first_use_end_the_query(pair: Pair) -> None:
    pair.lie()
    with pytest.raises(OptionError, match="south and north say that they hold the same log"):
        pair.query.batch()
    pair.query._options = {"access": pair.access(log_id=pair.mine.log_id)}
    pair.query.restart()
    assert len(pair.query.drain()) == 10, "the named log of south leaves this one to north"


def test_a_planned_batch_is_read_from_the_owner(pair: Pair) -> None:
    start, end = pair.query.plan()
    start, end = pair.query.plan() if start == end else (start, end)
    pair.north.down()
    pair.lie()
    pair.query.restart()
    with pytest.raises(UnavailableError, match="is left alone: south says"):
        read_rows(pair.query.reader, start, end)


def test_the_log_of_a_broker_that_is_no_longer_there_is_not_taken_over(pair: Pair) -> None:
    pair.query.drain()
    pair.lie()
    pair.query._servers = (pair.south,)
    of_south = json.dumps({pair.south.location: {"name": "south"}})
    pair.query._options = {"access": of_south, "retireLogs": pair.mine.log_id}
    pair.query.restart()
    with pytest.raises(UnavailableError, match=f"set its log_id: {pair.north.log.log_id}"):
        pair.query.batch()
    # Somebody has moved the disk of north into south, and says so.
    named = {"name": "south", "log_id": pair.north.log.log_id}
    pair.query._options = {"access": json.dumps({pair.south.location: named}), "retireLogs": pair.mine.log_id}
    pair.query.restart()
    assert len(pair.query.drain()) == 40
    assert pair.owners[pair.north.log.log_id] == "south"


def test_the_only_broker_may_move_to_another_address(flight_server: FlightServer) -> None:
    fill(flight_server, 10)
    query = Query(flight_server)
    query.drain()
    flight_server.down()
    with FlightServer(flight_server.log) as moved:
        query._servers = (moved,)
        query.restart()
        fill(moved, 5)
        assert len(query.drain()) == 5
        assert query.ends[-1]["owners"] == {moved.log.log_id: moved.location}
        assert query.plan()[0] == query.plan()[1]


def test_a_checkpoint_of_an_older_release_gets_its_owners(pair: Pair) -> None:
    pair.query.drain()
    (last,) = pair.query.ends[-1:]
    pair.query.ends.append({"v": 1, "logs": last["logs"]})
    pair.query.restart()
    assert pair.query.batch() == []
    assert pair.query.ends[-1] == last
    assert pair.query.plan()[0] == pair.query.plan()[1]


def test_the_lag_is_not_that_of_a_liar(pair: Pair) -> None:
    pair.query.drain()
    servers = ",".join((pair.south.location, pair.north.location))
    options = parse_options({"servers": servers, "subscribe": FILTER, "access": pair.access()})
    end = SourceOffset.from_json(pair.query.ends[-1])
    only_north = SourceOffset({pair.north.log.log_id: end.logs[pair.north.log.log_id]}, end.owners)
    assert ask_behind(options, only_north) is not None
    pair.north.down()
    pair.lie()
    assert ask_behind(options, only_north) is None
