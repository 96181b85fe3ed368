"""Promises of routes in any history of a fleet: devices that move, brokers that go away or are replaced, firmware,
force, requests and kills. `support.fleet_history` says what may happen."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import pytest
from support.fleet_history import History
from support.fleet_promises import FORCED, ONCE, REMEMBERED, SPARED, WITHDRAWN

HISTORIES = int(os.environ.get("HEADWATER_HISTORIES", "160"))
"""`make test-long` runs more."""


@pytest.mark.parametrize("part", range(4))
def test_any_history_of_a_fleet_keeps_its_promises(part: int) -> None:
    broken = [
        f"{promise}: {detail}" for seed in range(part, HISTORIES, 4) for promise, detail in History(seed).run().items()
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize("part", range(4))
def test_any_history_of_updates_of_different_urgency_keeps_its_promises(part: int) -> None:
    gave_way, broken = 0, []
    for seed in range(part, HISTORIES, 4):
        history = History(seed, urgent=True)
        broken += [f"{promise}: {detail}" for promise, detail in history.run().items()]
        gave_way += sum(event["state"] == "GIVES_WAY" for event in history.events.values())
    assert not broken, "\n".join(broken)
    assert gave_way > 0, "nothing gave way, so nothing was tested"


def first_broken(make: Callable[[int], History], promise: str) -> int | None:
    """The first seed that breaks the promise."""
    return next((seed for seed in range(60) if promise in make(seed).run()), None)


def test_control_an_engine_that_forgets_copies_leaves_commands_that_nobody_wants() -> None:
    forgetful = partial(History, forgets_copies=True)
    assert first_broken(forgetful, WITHDRAWN) is not None
    assert first_broken(forgetful, REMEMBERED) is not None


def test_control_devices_without_a_journal_carry_out_copies() -> None:
    careless = partial(History, forgets_journals=True)
    assert first_broken(careless, ONCE) is not None


def test_control_an_engine_without_force_records_leaves_devices_uninformed() -> None:
    silent = partial(History, loses_force=True)
    assert first_broken(silent, FORCED) is not None


def test_control_an_engine_that_holds_nothing_removes_the_devices_of_a_table_that_is_empty_for_a_moment() -> None:
    careless = partial(History, holds_nothing=True)
    assert first_broken(careless, SPARED) is not None
