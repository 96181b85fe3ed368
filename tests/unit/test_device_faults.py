"""Faults of simulated devices: their notation, and that each share of a fleet gets its fault."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from broker_edge import RefusedError
from broker_edge.device import Fleet, FleetSettings
from broker_edge.device.faults import Fault, assign, parse
from broker_edge.device.fleet_log import FleetLog, last_told
from broker_edge.device.wording import Said, UplinkWords

IDS = [f"device-{number:04}" for number in range(1, 1_001)]


def test_each_fault_gets_its_share_and_each_device_at_most_one() -> None:
    shares = parse("offline=5%, crash@install=2%,silent=0.5%,slow=12.5%")
    faults = assign(IDS, shares, seed=3)
    assert Counter(map(str, faults.values())) == {"offline": 50, "crash@install": 20, "silent": 5, "slow": 125}
    assert assign(IDS, shares, seed=3) == faults
    assert assign(list(reversed(IDS)), shares, seed=3) == faults
    assert assign(IDS, shares, seed=4) != faults
    assert assign(IDS, parse("silent=100%")) == dict.fromkeys(IDS, Fault("silent"))
    assert assign(IDS, []) == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("silent", "write NAME=SHARE%"),
        ("silent=2", "write NAME=SHARE%"),
        ("silent=-2%", "write NAME=SHARE%"),
        ("sleepy=2%", "not a known fault: offline"),
        ("crash=2%", "names a step"),
        ("crash@lunch=2%", "names a step"),
        ("silent@install=2%", "names a step"),
        ("silent=60%,slow=50%", "more than 100 %"),
    ],
)
def test_faults_that_cannot_be_are_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        parse(text)


def test_a_part_of_a_fleet_has_the_faults_that_the_whole_fleet_gives_it() -> None:
    shares, whole = parse("offline=50%"), range(101, 141)

    async def faults(first: int, count: int) -> dict[str, bool]:
        settings = FleetSettings(count=count, first=first, whole=whole, faults=tuple(shares))
        fleet = Fleet(settings, [{}])
        return {device.device_id: device.fault == Fault("offline") for device in fleet.devices}

    parts = asyncio.run(faults(101, 15)) | asyncio.run(faults(116, 25))
    assert list(parts) == [f"device-{number:04}" for number in whole]
    assert sum(parts.values()) == 20
    assert {id_ for id_, is_off in parts.items() if is_off} == set(assign(list(parts), shares))


def test_log_of_a_fleet_tells_the_last_state_of_each(tmp_path: Path) -> None:
    path = tmp_path / "fleet.jsonl"
    # Two processes append to the same file.
    for log in (FleetLog(path), FleetLog(path)):
        log.add("d1", "told", action_id="a", attempt=1, state="IN_PROGRESS")
        log.add("d1", "told", action_id="a", attempt=1, state="FAILED")
        log.add("d1", "told", action_id="", attempt=0, state="ONLINE")
        log.add("d1", "told", action_id="a", attempt=2, state="SUCCEEDED")
        log.close()
        assert log.counts["told:FAILED"] == 1
    assert last_told(path) == {("d1", "a", 1): "FAILED", ("d1", "a", 2): "SUCCEEDED"}


def test_uplink_names_the_attempt_from_the_second_on_and_has_no_word_for_online() -> None:
    words = UplinkWords(topic="/t/{tenant}/{id}", tenant="x")
    said = Said("d1", "a", 2, "FAILED", "b", 7, 1_500_000, message="why")
    assert words.record(said) == (
        "/t/x/d1",
        b'[{"id":"a/2","sequence":7,"timestamp":1500,"state":"Failed","progress":0,"errors":["why"]}]',
    )
    assert words.record(Said("d1", "", 0, "ONLINE", "b", 1, 1)) is None
