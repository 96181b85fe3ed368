"""A broker that says the log of another one gets none of its commands, and speaks for none of its reports."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from deltalake import DeltaTable
from support.engine_world import EngineWorld, PretendedLog

from actions.engine import Publish, Served
from actions.fleet_desk import FleetDesk
from actions.outbound import Outbound, asked
from actions.reading import Extent, Readings
from broker_edge.errors import ConfigError
from broker_edge.log_owners import LogEntry, LogOwners
from sinks import tables

WAIT_S = 30.0
ENTRIES = [LogEntry("grpc://n:1", "north"), LogEntry("grpc://s:1", "south")]


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    found = EngineWorld(tmp_path)
    found.log, found.others = PretendedLog("a", "north"), [PretendedLog("b", "south")]
    found.entries = list(ENTRIES)
    return found


def command(device_id: str, log_id: str | None) -> Publish:
    key = f"a1/{device_id}/1"
    return Publish("a1", device_id, 1, "command", f"devices/{device_id}/actions", b"{}", key, log_id)


def owners_of(world: EngineWorld) -> dict[str, str]:
    return {row["log_id"]: row["broker"] for row in world.rows("broker_logs")}


@pytest.mark.parametrize("first", [0, 1])
def test_two_brokers_that_say_one_log_at_first_are_refused(first: int) -> None:
    pair = [PretendedLog("a", "north"), PretendedLog("a", "south")]
    order = (first, 1 - first)
    outbound = Outbound([pair[n] for n in order], wake=lambda: None, entries=[ENTRIES[n] for n in order])
    with pytest.raises(ConfigError, match="say that they hold the same log a"):
        outbound.meet(WAIT_S)
    with pytest.raises(ConfigError, match="say that they hold the same log a"):
        asked(pair, WAIT_S, entries=ENTRIES)
    (north, south) = asked(pair, WAIT_S, entries=ENTRIES, owners=LogOwners(ENTRIES, {"a": "north"}))
    assert (north.log_id, south.log_id, south.away) == ("a", None, True)


def test_a_liar_gets_no_record_while_the_other_is_away(caplog: pytest.LogCaptureFixture) -> None:
    north, south = PretendedLog("a", "north"), PretendedLog("b", "south")
    outbound = Outbound([north, south], wake=lambda: None, entries=ENTRIES)
    outbound.meet(WAIT_S)
    north.is_away, south.id = True, "a"
    for line in outbound._lines:
        line.ask()
    outbound.settle(WAIT_S)
    assert [(one.log_id, one.away) for one in outbound.brokers()] == [("a", True), ("b", True)]
    outbound.send([command("d1", "a"), command("d2", "b")], seconds=None)
    outbound.settle(WAIT_S)
    assert (outbound.collected().places, south.keys) == ({}, [])
    said = [one for one in caplog.messages if one.startswith("south is left alone")]
    assert "south says that it holds log a, which belongs to north" in said[0]
    outbound.close()


def test_the_engine_knows_after_a_restart_which_broker_a_log_belongs_to(world: EngineWorld) -> None:
    world.devices("d1")
    world.job().close()
    assert owners_of(world) == {}, "nothing is written before a turn"
    job = world.job()
    job.turn()
    assert owners_of(world) == {"a": "north", "b": "south"}
    job.close()
    version = DeltaTable(tables.uri_of(world.root, "broker_logs")).version()
    world.status("d1", "ONLINE", action_id=None, attempt=None, log_id="a")
    world.action("a1", device_ids=["d1"], percentage=None)
    world.log.is_away, world.others[0].id = True, "a"
    job = world.job()
    for _ in range(3):
        job.turn()
    assert world.others[0].keys == []
    job.close()
    claims_only = world.table("broker_logs").version() - version
    assert claims_only == 1, "what is known is not written again"
    world.log.is_away = False
    job = world.job()
    job.turn()
    job.turn()
    assert world.log.keys == ["a1/d1/1"]
    job.close()


def test_users_see_the_owners_that_the_engine_knows(world: EngineWorld) -> None:
    desk = FleetDesk(world.root)
    assert desk.history.log_owners() == {}
    job = world.job()
    job.turn()
    job.close()
    assert desk.history.log_owners() == {"a": "north", "b": "south"}
    shutil.rmtree(world.root / "broker_logs")
    assert desk.history.log_owners() == {}


def test_a_log_moves_to_the_entry_that_names_it(world: EngineWorld) -> None:
    job = world.job()
    job.turn()
    job.close()
    world.others = []
    world.log = PretendedLog("b", "north")
    world.entries = [LogEntry("grpc://n:1", "north")]
    job = world.job()
    job.turn()
    job.close()
    assert owners_of(world) == {"a": "north", "b": "south"}
    world.entries = [LogEntry("grpc://n:1", "north", "b")]
    job = world.job()
    job.turn()
    job.close()
    assert owners_of(world) == {"a": "north", "b": "north"}


def test_tables_of_an_older_version_get_the_owners(world: EngineWorld) -> None:
    shutil.rmtree(world.root / "broker_logs")
    job = world.job()
    job.turn()
    job.close()
    assert owners_of(world) == {"a": "north", "b": "south"}


class Lying:
    """Reports at a broker that speaks of another log."""

    def __init__(self, log_id: str) -> None:
        self.log_id = log_id

    def look(self) -> Extent:
        return Extent(self.log_id, {}, {})


def known_of(readers: Sequence[Lying]) -> dict[str, int]:
    readings = Readings(readers, wake=lambda: None, clock_us=lambda: 7)
    readings.look({"a", "b"}, [Served("north", "a", away=True), Served("south", "b")])
    while readings._busy:
        pass
    return dict(readings.known())


def test_no_broker_says_that_the_reports_of_another_one_have_been_read(caplog: pytest.LogCaptureFixture) -> None:
    assert known_of([Lying("a"), Lying("a")]) == {}
    assert "the broker of log b answers for log a" in caplog.text
    assert known_of([Lying("a"), Lying("b")]) == {"b": 7}
