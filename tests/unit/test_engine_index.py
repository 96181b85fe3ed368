"""A tick that looks only at what has changed decides what a tick that scans all targets decides."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import engine as support_engine
from support import fleet_history, rollout_history
from support.engine import Engine, action_of, devices_of
from support.fleet_history import History
from support.rest_history import Rested
from support.rollout_history import History as RolloutHistory
from support.rollout_history import rollouts
from support.scanning import Checked, content

from actions.engine import Rollout, Selector, TargetState, apply, index, tick
from actions.engine.index import Index, index_of


@pytest.mark.parametrize("part", range(4))
def test_ticks_of_any_fleet_decide_what_a_scan_decides(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = Checked()
    monkeypatch.setattr(fleet_history, "tick", checked)
    for seed in range(part, 40, 4):
        History(seed).run()
    assert checked.moved > 100


@settings(max_examples=40, deadline=None)
@given(rollouts(), st.integers(0, 2**32))
def test_ticks_of_any_rollout_decide_what_a_scan_decides(rollout: Rollout, seed: int) -> None:
    checked = Checked()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_history, "tick", checked)
        RolloutHistory(rollout, seed).run(30)
    assert checked.moved


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_ticks_of_competing_actions_decide_what_a_scan_decides(seed: int) -> None:
    checked = Checked()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(support_engine, "tick", checked)
        Rested(seed).run(12)
    assert checked.moved


def test_control_an_index_that_forgets_what_is_owed_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.Index, "_drop", lambda self, targets: None)
    monkeypatch.setattr(fleet_history, "tick", Checked())

    def run() -> None:
        for seed in range(40):
            History(seed).run()

    with pytest.raises(AssertionError, match="is not that of its targets"):
        run()


def test_an_older_state_has_its_own_index() -> None:
    engine = Engine(devices=devices_of("d1", "d2"))
    engine.actions.append(action_of(selector=Selector(percentage=100)))
    engine.tick()
    engine.tick()
    before = engine.state
    index_of(before, "a1")
    arguments = (engine.actions, [], [engine.report("SUCCEEDED", 1)], engine.devices, engine.now_us)
    first = tick(before, *arguments)
    after = apply(before, first)
    assert after.targets["a1"]["d1"].state is TargetState.SUCCEEDED
    assert content(index_of(after, "a1")) == content(Index(after.targets["a1"]))
    assert tick(before, *arguments) == first, "the state before decides again what it decided"
    assert content(index_of(before, "a1")) == content(Index(before.targets["a1"]))


def test_targets_that_somebody_replaces_get_a_new_index() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions.append(action_of())
    engine.tick()
    engine.tick()
    index_of(engine.state, "a1")
    row = replace(engine.target(), outbox="cancel", state=TargetState.CANCELLING)
    state = replace(engine.state, targets={"a1": {"d1": row}})
    assert index_of(state, "a1").owing == {"d1"}
    assert not index_of(engine.state, "a1").owing
