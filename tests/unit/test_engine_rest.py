"""A resting engine misses nothing: until the moment it names, no tick without news decides anything."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine import SECOND, Engine, action_of, devices_of
from support.rest_history import Rested

from actions.engine import Timeouts, rests_until_us, timeouts


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_nothing_happens_before_the_moment_to_which_the_engine_rests(seed: int) -> None:
    Rested(seed).run(12)


def test_an_engine_with_targets_that_wait_does_rest() -> None:
    """Otherwise the property above would also hold for an engine that never rests."""
    rested = [Rested(seed) for seed in range(20)]
    for history in rested:
        history.run(12)
    assert sum(history.rests for history in rested) > 100
    assert max(history.longest_us for history in rested) == 60 * SECOND


def test_control_an_engine_that_forgets_a_timeout_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeouts, "times_out_us", lambda target, *_: target.since_us + 10**12)

    def run() -> None:
        for seed in range(200):
            Rested(seed).run(12)

    with pytest.raises(AssertionError, match="TIMED_OUT"):
        run()


def test_targets_in_flight_are_looked_at_when_the_first_can_time_out() -> None:
    engine = Engine(devices=devices_of("d1"), actions=[action_of(timeouts=Timeouts(queued_s=20))])
    engine.tick()
    engine.tick()
    until_us = rests_until_us(engine.state, engine.actions, [], engine.now_us, engine.limits)
    assert until_us == engine.target().since_us + 20 * SECOND


def test_what_is_owed_to_a_broker_that_is_away_keeps_the_engine_awake() -> None:
    engine = Engine(devices=devices_of("d1"), actions=[action_of()], broker_up=False)
    engine.tick()
    engine.tick()
    state = replace(engine.state)
    assert rests_until_us(state, engine.actions, [], engine.now_us, engine.limits) == engine.now_us
