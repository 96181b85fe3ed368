"""Endings that are true: what a rollout may count on, and what a request may not revive. The pure function only."""

from __future__ import annotations

import json

import pytest
from support.engine import Engine, action_of, devices_of

from actions.engine import Rollout, Selector, TargetState

S = TargetState
EVERYBODY = Selector(percentage=100)


def fleet(count: int) -> tuple[str, ...]:
    return tuple(f"d{number:03}" for number in range(count))


def rolling(count: int, *, waves: list[dict[str, object]] | None = None) -> Engine:
    """An engine after its first tick, with one action for `count` devices."""
    engine = Engine(devices=devices_of(*fleet(count)))
    rollout = Rollout(waves=None if waves is None else json.dumps(waves))
    engine.actions.append(action_of(selector=EVERYBODY, created_by="ann", rollout=rollout))
    engine.tick()
    return engine


def test_an_action_may_be_inserted_together_with_the_one_it_waits_for() -> None:
    engine = Engine(devices=devices_of("d1"))
    chain = [("a1", ("b1",)), ("b1", ("a2", "c1")), ("a2", ("c1",)), ("c1", ())]
    engine.actions += [action_of(id_, rollout=Rollout(depends_on=needed)) for id_, needed in chain]
    engine.tick()
    assert {id_: engine.phase(id_) for id_, _ in chain} == dict.fromkeys(("a1", "b1", "a2", "c1"), "RUNNING")
    assert engine.published == ["c1/d1/1"]


def test_actions_that_wait_for_each_other_do_not_hold_up_others() -> None:
    engine = Engine(devices=devices_of("d1"))
    circle = {"a1": ("a2",), "a2": ("a3",), "a3": ("a1",), "a4": ()}
    engine.actions += [action_of(id_, rollout=Rollout(depends_on=needed)) for id_, needed in circle.items()]
    engine.tick()
    assert engine.phase("a3") == "REFUSED"
    assert "depends_on names action a1" in engine.state.actions["a3"].message
    assert engine.published == ["a4/d1/1"]


@pytest.mark.parametrize("share", [1, 100])
def test_a_canary_whose_only_device_was_skipped_shows_nothing(share: float) -> None:
    wave = {"percentage": 10, "success_percentage": share}
    engine = rolling(10, waves=[wave, {"percentage": 100}])
    (canary,) = engine.sent()
    engine.ask("cancel", device_id=canary)
    engine.tick()
    engine.tick(engine.report("CANCELLED", 900, device_id=canary))
    assert engine.target(canary).state is S.CANCELLED
    assert (engine.phase(), len(engine.sent())) == ("WAITING_APPROVAL", 1)
    engine.ask("approve", by="bob")
    engine.tick()
    assert len(engine.sent()) == 10


def test_a_wave_without_success_asks_for_none_of_devices_that_left() -> None:
    engine = rolling(10, waves=[{"percentage": 10, "success_percentage": 0}, {"percentage": 100}])
    assert len(engine.sent()) == 10


@pytest.mark.parametrize("device_id", ["x/y", "nobody"])
def test_retry_of_a_device_that_no_command_can_reach_is_refused(device_id: str) -> None:
    engine = Engine(devices=devices_of("d1", "x/y"))
    engine.actions.append(action_of(selector=Selector(device_ids=("d1", device_id))))
    engine.tick()
    assert engine.target(device_id).state is S.SKIPPED
    engine.ask("retry", device_id=device_id)
    engine.tick()
    (said,) = engine.said()
    assert said.startswith("refused: ")
    assert device_id in said
    assert said.endswith("no command can reach it")
    assert engine.target(device_id).state is S.SKIPPED
    assert engine.published == ["a1/d1/1"]


def test_retry_of_all_leaves_the_devices_that_have_left() -> None:
    engine = rolling(3)
    engine.tick(*(engine.report("FAILED", number, device_id=id_) for number, id_ in enumerate(fleet(3), 10)))
    engine.devices = devices_of("d000", "d001")
    engine.tick()
    engine.ask("retry")
    engine.tick()
    (said,) = engine.said()
    assert said == ("retry: 2 devices get a new attempt; left as they ended, because no command can reach them: 1")
    assert [engine.target(id_).attempt for id_ in fleet(3)] == [2, 2, 1]
