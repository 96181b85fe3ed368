"""A log belongs to one entry of the settings: the first that said it, unless `log_id` names another one."""

from __future__ import annotations

import pytest

from broker_edge.errors import ConfigError
from broker_edge.log_owners import LOGS_MAX, LogEntry, LogOwners

NORTH, SOUTH = LogEntry("grpc://n:1", "north"), LogEntry("grpc://s:1", "south")
PLAIN = LogEntry("grpc://p:1")


def test_the_first_that_says_a_log_keeps_it() -> None:
    owners = LogOwners([NORTH, SOUTH])
    assert owners.claim(NORTH, "a") is None
    assert owners.claim(SOUTH, "b") is None
    assert owners.claim(NORTH, "a") is None
    assert owners.claim(SOUTH, "a") == (
        "south says that it holds log a, which belongs to north: correct `brokers`, or, if that log is now at south, "
        "set its log_id: a"
    )
    assert owners.known == {"a": "north", "b": "south"}


def test_a_replaced_box_brings_a_new_log_and_keeps_the_old_one() -> None:
    owners = LogOwners([NORTH, SOUTH], {"a": "north"})
    assert owners.claim(NORTH, "new") is None
    assert owners.claim(SOUTH, "a") is not None, "nobody takes over what the old box held"
    assert owners.known == {"a": "north", "new": "north"}


def test_the_log_of_an_entry_that_is_gone_belongs_to_nobody_else() -> None:
    owners = LogOwners([SOUTH], {"a": "north", "b": "south"})
    assert "belongs to north" in (owners.claim(SOUTH, "a") or "")
    owners = LogOwners([SOUTH, PLAIN], {"a": "north"})
    assert "belongs to north" in (owners.claim(SOUTH, "a") or ""), "of two entries, nobody can see who has moved"
    moved = LogEntry(SOUTH.server, SOUTH.name, "a")
    owners = LogOwners([moved, NORTH], {"a": "north"})
    assert owners.claim(moved, "a") is None
    assert owners.claim(NORTH, "a") == "north says that it holds log a, and the settings give that log to south"
    assert owners.known == {"a": "south"}


def test_an_entry_with_a_log_id_gets_no_other_log() -> None:
    named = LogEntry("grpc://n:1", "north", "a")
    said = LogOwners([named]).claim(named, "b")
    assert said == (
        "north says that it holds log b, and its log_id in the settings is a: correct it if the box was replaced"
    )


def test_an_entry_that_gets_a_name_keeps_its_log_and_one_that_loses_it_does_not() -> None:
    owners = LogOwners([LogEntry(PLAIN.server, "west"), NORTH], {"a": PLAIN.server})
    assert owners.claim(LogEntry(PLAIN.server, "west"), "a") is None
    assert owners.known == {"a": "west"}
    assert "belongs to west" in (owners.claim(PLAIN, "a") or "")


def test_the_only_entry_may_get_another_address_or_name() -> None:
    owners = LogOwners([PLAIN], {"a": "north"})
    assert owners.claim(PLAIN, "a") is None
    assert owners.known == {"a": PLAIN.server}
    assert owners.claim(PLAIN, "a") is None
    owners.learn({"b": "north"})
    assert "belongs to north" in (owners.claim(PLAIN, "b") or ""), "it has a log of its own now"


def test_stored_owners_count_before_those_of_this_run() -> None:
    owners = LogOwners([NORTH, SOUTH])
    assert owners.claim(SOUTH, "a") is None
    before = owners.known
    owners.learn({"a": "north"})
    assert owners.claim(SOUTH, "a") is not None
    assert before == {"a": "south"}, "a mapping that was given out does not change"


def test_two_that_say_one_log_are_refused_whoever_is_first() -> None:
    owners = LogOwners([NORTH, SOUTH, PLAIN])
    for first, second in ((NORTH, SOUTH), (SOUTH, NORTH)):
        with pytest.raises(ConfigError) as told:
            owners.require_apart([(first, "a"), (PLAIN, "b"), (second, "a")])
        assert str(told.value) == (
            f"{first.key} and {second.key} say that they hold the same log a, and a log belongs to one entry of "
            "`brokers`: remove one of the two, or set log_id in the entry that has this log; the "
            "nodes of a cluster are one entry, grpc://HOST:PORT/HOST:PORT/HOST:PORT"
        )
    owners.require_apart([(NORTH, "a"), (SOUTH, "b")])
    owners.learn({"a": "north"})
    owners.require_apart([(NORTH, "a"), (SOUTH, "a")])
    named = LogOwners([NORTH, LogEntry(SOUTH.server, SOUTH.name, "a")])
    named.require_apart([(NORTH, "a"), (SOUTH, "a")])


def test_two_entries_with_one_log_id_are_refused() -> None:
    with pytest.raises(ConfigError, match="north and south have the same log_id a"):
        LogOwners([LogEntry("grpc://n:1", "north", "a"), LogEntry("grpc://s:1", "south", "a")])


def test_a_broker_that_invents_logs_fills_nothing() -> None:
    owners = LogOwners([NORTH, SOUTH])
    for number in range(LOGS_MAX):
        assert owners.claim(NORTH, f"log-{number}") is None
    assert f"has said {LOGS_MAX} others before: set log_id" in (owners.claim(NORTH, "one more") or "")
    assert owners.claim(NORTH, "log-3") is None
    assert owners.claim(SOUTH, "one more") is None
    for wrong in ("", "x" * 101):
        assert "which is not a log id" in (owners.claim(SOUTH, wrong) or "")
