"""For which gate an approval counts. The pure function only."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.engine import SECOND, Engine, action_of, devices_of

from actions.engine import Decision, Rollout, Selector, apply, moved_clock

GATE = {"approve": True, "success_percentage": 100}
DEVICES = tuple(f"d{number}" for number in range(10))


def gates(*, needs_approval: bool = False) -> Engine:
    """Three waves with an approval between each two of them. Nothing has succeeded yet."""
    engine = Engine(devices=devices_of(*DEVICES))
    waves = json.dumps([{"percentage": 10, **GATE}, {"percentage": 50, **GATE}, {"percentage": 100}])
    rollout = Rollout(waves=waves, needs_approval=needs_approval)
    engine.actions.append(action_of(selector=Selector(percentage=100), created_by="ann", rollout=rollout))
    return engine


def succeed(engine: Engine) -> None:
    """All devices with a command report that they have succeeded."""
    done = [id_ for id_ in engine.sent() if not engine.target(id_).final]
    base = engine.now_us // SECOND % 10**6 * 1_000
    engine.tick(*(engine.report("SUCCEEDED", base + n, device_id=id_) for n, id_ in enumerate(done)))


def waiting() -> Engine:
    """The second wave waits for an approval."""
    engine = gates()
    engine.tick()
    succeed(engine)
    assert (engine.phase(), len(engine.sent())) == ("WAITING_APPROVAL", 1)
    assert engine.state.actions["a1"].waits_us == engine.now_us
    return engine


def refused(engine: Engine, wave: int) -> None:
    """The last approval opened nothing, and the answer says what to do."""
    said = f"it names no wave, and `at` is not a time at which wave {wave} waited: approve again with wave {wave}"
    assert engine.said() == [f"refused: {said}"]
    assert engine.phase() == "WAITING_APPROVAL"


def test_an_approval_without_a_wave_opens_the_gate_that_waited_when_it_was_inserted() -> None:
    engine = waiting()
    engine.tick(after_s=100)
    engine.ask("approve", by="bob")
    engine.tick()
    assert (engine.phase(), len(engine.sent())) == ("RUNNING", 5)
    assert engine.state.actions["a1"].waits_us is None


def test_an_approval_that_is_read_late_does_not_open_the_gate_after_the_one_it_was_for() -> None:
    """Two people approve the second wave; one of the rows is read only when the third one waits."""
    engine = waiting()
    at_us = engine.now_us
    engine.ask("approve", by="bob")
    engine.tick()
    succeed(engine)
    assert (engine.phase(), len(engine.sent())) == ("WAITING_APPROVAL", 5)
    engine.ask("approve", by="eve", at_us=at_us)
    engine.tick()
    refused(engine, 3)
    engine.ask("approve", by="eve", at_us=at_us, wave=3)
    engine.tick()
    assert len(engine.sent()) == 10


def test_two_approvals_of_one_gate_open_one_gate_though_the_next_one_waits_at_once() -> None:
    engine = gates(needs_approval=True)
    waves = json.dumps([{"percentage": 50, **GATE, "success_percentage": 0}, {"percentage": 100}])
    engine.actions[0] = replace(engine.actions[0], rollout=Rollout(waves=waves, needs_approval=True))
    engine.tick()
    at_us = engine.now_us
    engine.ask("approve", by="bob", at_us=at_us)
    engine.tick()
    assert (engine.phase(), len(engine.sent())) == ("WAITING_APPROVAL", 5)
    engine.ask("approve", by="eve", at_us=at_us)
    engine.tick()
    refused(engine, 2)


def test_an_approval_that_was_inserted_with_its_action_starts_nothing() -> None:
    engine = gates(needs_approval=True)
    engine.ask("approve", by="bob")
    engine.tick()
    engine.ask("approve", by="bob", at_us=engine.now_us - 1)
    engine.tick()
    refused(engine, 1)
    assert engine.sent() == []


@pytest.mark.parametrize(("ahead_s", "opens"), [(20, True), (31, False)])
def test_an_approval_from_the_future_says_nothing(ahead_s: int, opens: bool) -> None:
    """A clock that is a little ahead is usual. With one that is far ahead, nobody knows for which gate it was."""
    engine = waiting()
    engine.ask("approve", by="bob", at_us=engine.now_us + ahead_s * SECOND)
    engine.tick(after_s=0)
    assert (engine.phase() == "RUNNING") is opens
    if not opens:
        refused(engine, 2)


def test_a_gate_waits_since_the_end_of_a_pause() -> None:
    engine = waiting()
    at_us = engine.now_us
    engine.ask("pause")
    engine.tick()
    engine.ask("resume")
    engine.tick()
    engine.ask("approve", by="bob", at_us=at_us)
    engine.tick()
    refused(engine, 2)
    engine.ask("approve", by="bob")
    engine.tick()
    assert len(engine.sent()) == 5


def test_a_clock_that_was_set_moves_the_time_since_when_a_gate_waits() -> None:
    engine = waiting()
    engine.now_us -= 3600 * SECOND
    engine.state = apply(engine.state, moved_clock(engine.state, -3600 * SECOND, engine.now_us))
    engine.ask("approve", by="bob")
    engine.tick()
    assert len(engine.sent()) == 5


def test_a_gate_of_a_row_of_an_older_version_can_be_approved() -> None:
    engine = waiting()
    row = replace(engine.state.actions["a1"], waits_us=None)
    engine.state = apply(engine.state, Decision(state_updates=(row,), devices=engine.devices))
    engine.ask("approve", by="bob", at_us=row.updated_us - 1)
    engine.tick()
    refused(engine, 2)
    engine.ask("approve", by="bob")
    engine.tick()
    assert len(engine.sent()) == 5
