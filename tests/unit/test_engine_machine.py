"""What the engine promises in any history of a fleet: actions of all kinds, people who ask for anything, outages,
moves, late and repeated reports, clocks that are set, kills. A state machine chooses; `HEADWATER_STEPS` says how many
steps.

`support.machine_world` is the fleet, `support.machine_promises` what must hold, `support.engine_faults` the engine with
a fault put back: each of those is found.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from support.agent_device import SteppedAgent
from support.engine_faults import FAULTS, Fault
from support.machine_fleet import ACTIONS_MAX, DEFAULT, HASTY, PROFILES, REQUESTS_MAX, SELECTORS, Fleet
from support.machine_promises import BrokenPromise
from support.machine_stories import STORIES
from support.machine_world import IDS, POISON

from actions.engine import Device, Timeouts, tick

STEPS = int(os.environ.get("HEADWATER_STEPS", "12000"))
STEPS_OF_HISTORY = 40
STEPS_OF_RUN = 20_000
"""Hypothesis keeps what it has tried in memory, so that a long form is many runs."""
STEPS_OF_CONTROL = (12_000, 40_000, 80_000)
"""Another number of steps is another choice of histories: what one misses by chance, the next one finds."""
IDS_ = st.sampled_from(IDS)
BOXES = st.integers(0, 1)
THEN = st.booleans()
PROFILE = st.sampled_from(PROFILES)
MOST = st.sampled_from((1, 8))
HOW = st.sampled_from(("now", "now", "late", "never", "down"))
"""How the first broker answers at first."""
TIMES = st.sampled_from((HASTY, HASTY, DEFAULT))


class Machine(RuleBasedStateMachine):
    """`then`: whether the engine takes a turn after the step, so that several changes may meet in one tick."""

    agent: ClassVar[type[SteppedAgent]] = SteppedAgent
    tick = staticmethod(tick)
    faults: ClassVar[frozenset[str]] = frozenset()
    steps: ClassVar[Counter[str]] = Counter()

    @initialize(boxes=st.integers(1, 2), profile=PROFILE, is_dynamic=st.booleans(), away=st.sets(IDS_), how=HOW)
    def begin(self, boxes: int, profile: dict[str, Any], is_dynamic: bool, away: set[str], how: str) -> None:
        self.fleet = Fleet(type(self).tick, boxes=boxes, agent=self.agent, faults=self.faults)
        self.is_broken = False
        for box in self.fleet.boxes:
            self.fleet.collect(box)
        self._turn()
        for id_ in sorted(away):
            self.fleet.move(id_, None)
        self.fleet.boxes[0].is_up = how != "down"
        self.fleet.boxes[0].answers = "now" if how == "down" else how
        self.fleet.insert(**profile, is_dynamic=is_dynamic)
        self._turn()

    def _turn(self, then: bool = True) -> None:
        self.steps["steps"] += 1
        if then:
            self._guarded(self.fleet.turn)

    def _guarded(self, step: Callable[[], object]) -> None:
        try:
            step()
        except BrokenPromise:
            self.is_broken = True
            raise

    def _box(self, number: int):  # type: ignore[no-untyped-def]
        return self.fleet.boxes[number % len(self.fleet.boxes)]

    # -- people ------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.fleet.tables.actions) < ACTIONS_MAX)
    @rule(
        profile=PROFILE, selector=st.integers(0, len(SELECTORS) - 1), is_dynamic=st.booleans(), times=TIMES, then=THEN
    )
    def insert(self, profile: dict[str, Any], selector: int, is_dynamic: bool, times: Timeouts, then: bool) -> None:
        self.fleet.insert(**{"selector": selector, "is_dynamic": is_dynamic, "times": times, **profile})
        self._turn(then)

    @precondition(lambda self: self.fleet.tables.actions and len(self.fleet.tables.requests) < REQUESTS_MAX)
    @rule(
        kind=st.sampled_from(("cancel", "retry", "retry", "force", "pause", "resume", "remove", "approve")),
        which=st.integers(0, ACTIONS_MAX),
        device=st.sampled_from((None, None, *IDS, POISON, "d9")),
        then=THEN,
    )
    def ask(self, kind: str, which: int, device: str | None, then: bool) -> None:
        actions = self.fleet.tables.actions
        action_id = actions[which % len(actions)].action_id
        if kind == "approve":
            self.fleet.approve(action_id)
        else:
            self.fleet.ask(kind, action_id, device if kind in ("cancel", "retry", "force") else None)
        self._turn(then)

    @precondition(lambda self: self.fleet.tables.actions)
    @rule(which=st.integers(0, ACTIONS_MAX), times=st.integers(1, 2), names=st.booleans(), then=THEN)
    def approve(self, which: int, times: int, names: bool, then: bool) -> None:
        actions = self.fleet.tables.actions
        for _ in range(times):
            self.fleet.approve(actions[which % len(actions)].action_id, names=names)
        self._turn(then)

    @precondition(lambda self: len(self.fleet.tables.requests) < REQUESTS_MAX)
    @rule(then=THEN)
    def approve_again(self, then: bool) -> None:
        self.fleet.approve_again()
        self._turn(then)

    @rule(id_=IDS_, row=st.sampled_from(("out", "in", "in", "label", "log", "nobody")), then=THEN)
    def change_device(self, id_: str, row: str, then: bool) -> None:
        labels = {"in": "yes"} if row == "label" else {}
        log = {"log": self.fleet.boxes[-1].known.name, "nobody": "nobody"}.get(row)
        self.fleet.set_device(id_, None if row == "out" else Device(id_, "default", labels=labels, log=log))
        self._turn(then)

    @rule(is_empty=st.booleans())
    def rewrite_devices(self, is_empty: bool) -> None:
        self.fleet.empty_devices(is_empty=is_empty)
        self._turn()

    @rule(id_=IDS_, then=THEN)
    def leave_and_return(self, id_: str, then: bool) -> None:
        before = self.fleet.everyone.get(id_) or Device(id_, "default")
        self.fleet.set_device(id_, None)
        self._turn(then)
        self.fleet.set_device(id_, before)
        self._turn(then)

    @precondition(lambda self: len(self.fleet.tables.requests) < REQUESTS_MAX)
    @rule(which=st.integers(0, ACTIONS_MAX), id_=st.sampled_from((POISON, "d9")))
    def retry_what_cannot_be_reached(self, which: int, id_: str) -> None:
        actions = self.fleet.tables.actions
        self.fleet.ask("retry", actions[which % len(actions)].action_id, id_)
        self._turn()

    @rule(number=st.integers(0, 1), is_there=st.booleans(), then=THEN)
    def change_artifact(self, number: int, is_there: bool, then: bool) -> None:
        self.fleet.has_artifact(number, is_there=is_there)
        self._turn(then)

    # -- devices -----------------------------------------------------------------------------------------------------

    @rule(id_=IDS_, to=st.sampled_from((None, 0, 1)), then=THEN)
    def move(self, id_: str, to: int | None, then: bool) -> None:
        self.fleet.move(id_, to)
        self._turn(then)

    @rule(id_=IDS_, how=st.sampled_from(("restart", "restart", "restart", "lose", "allow", "refuse")))
    def disturb(self, id_: str, how: str) -> None:
        device = self.fleet.devices[id_]
        if how == "restart":
            device.restart()
        elif how == "lose":
            device.lose_journal()
        device.is_willing = how == "allow"
        self._turn(False)

    @rule(id_=IDS_, steps=st.integers(1, 3), most=MOST, twice=st.booleans(), then=THEN)
    def work(self, id_: str, steps: int, most: int, twice: bool, then: bool) -> None:
        self._guarded(lambda: self.fleet.devices_work(steps, (id_,), most=most, twice=twice))
        self._turn(then)

    @rule(steps=st.sampled_from((1, 1, 2, 5)), reads=st.booleans(), then=THEN)
    def all_work(self, steps: int, reads: bool, then: bool) -> None:
        self._guarded(lambda: self.fleet.devices_work(steps))
        for box in self.fleet.boxes if reads else ():
            self.fleet.collect(box)
        self._turn(then)

    @precondition(lambda self: len(self.fleet.tables.actions) < ACTIONS_MAX)
    @rule(name=st.sampled_from(sorted(STORIES)), id_=IDS_)
    def story(self, name: str, id_: str) -> None:
        self._guarded(lambda: STORIES[name](self.fleet, id_))
        self._turn(False)

    # -- brokers, the status job, the engine -------------------------------------------------------------------------

    @rule(turns=st.integers(1, 4), pause_s=st.sampled_from((1, 10, 50, 250)), steps=st.integers(0, 3), most=MOST)
    def live(self, turns: int, pause_s: int, steps: int, most: int) -> None:
        for _ in range(turns):
            self.fleet.wait(pause_s)
            self._guarded(lambda: self.fleet.live(steps, most))
            self.steps["steps"] += 1

    @rule(turns=st.integers(1, 6), most=MOST)
    def live_on(self, turns: int, most: int) -> None:
        self.live(turns, 10, 2, most)

    @rule(number=BOXES, most=st.sampled_from((None, 1, 3)), then=THEN)
    def collect(self, number: int, most: int | None, then: bool) -> None:
        self.fleet.collect(self._box(number), most)
        self._turn(then)

    @rule(number=BOXES, what=st.sampled_from(("up", "up", "down", "read", "unread", "now", "late", "never", "stock")))
    def change_broker(self, number: int, what: str) -> None:
        box = self._box(number)
        if what in ("up", "down"):
            box.is_up = what == "up"
        elif what in ("read", "unread"):
            box.is_read = what == "read"
        elif what == "stock":
            box.log.has_artifact ^= True
        else:
            box.answers = what
        self._turn()

    @rule(number=BOXES, then=THEN, sure=st.integers(0, 3))
    def replace_box(self, number: int, then: bool, sure: int) -> None:
        if sure == 3 and len(self.fleet.gone) < 2:
            self.fleet.replace_box(self._box(number))
        self._turn(then)

    @rule(seconds=st.sampled_from((0.001, 1, 10, 50, 100, 250, 4_000, 100_000, 700_000)), then=THEN)
    def wait(self, seconds: float, then: bool) -> None:
        self.fleet.wait(seconds)
        self._turn(then)

    @rule(seconds=st.sampled_from((-86_400, -3_600, 20, 3_600, 86_400)), then=THEN)
    def set_clock(self, seconds: int, then: bool) -> None:
        self.fleet.set_clock(seconds)
        self._turn(then)

    @rule(parts=st.integers(0, 4), again=st.integers(0, 5), then=THEN)
    def kill(self, parts: int, again: int, then: bool) -> None:
        self.fleet.kill(parts, again)
        self._turn(then)

    @rule(parts=st.sampled_from((2, 3, 4, 4, 4)), turns=st.integers(0, 2), then=THEN)
    def take_over(self, parts: int, turns: int, then: bool) -> None:
        self._guarded(lambda: self.fleet.take_over(parts, turns))
        self._turn(then)

    def teardown(self) -> None:
        if hasattr(self, "fleet") and not self.is_broken:
            self.fleet.drain()


def run(machine: type[Machine], steps: int, *, shrinks: bool = True, derandomize: bool = True) -> None:
    """Histories with this number of steps in all."""
    given = settings(
        max_examples=max(1, steps // STEPS_OF_HISTORY),
        stateful_step_count=STEPS_OF_HISTORY,
        derandomize=derandomize,
        database=None,
        deadline=None,
        print_blob=False,
        report_multiple_bugs=False,
        verbosity=Verbosity.normal,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(machine, settings=given)


def test_any_history_keeps_all_promises() -> None:
    Machine.steps.clear()
    if STEPS <= STEPS_OF_RUN:
        run(Machine, STEPS)
    while Machine.steps["steps"] < STEPS:
        run(Machine, STEPS_OF_RUN, derandomize=False)
        sys.stdout.write(f"{Machine.steps['steps']} steps\n")
        sys.stdout.flush()


@pytest.mark.parametrize("name", FAULTS)
def test_control_the_machine_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault: Fault = FAULTS[name]
    fault.patch(monkeypatch)

    class Faulty(Machine):
        agent, faults, steps = fault.agent, fault.world, Counter[str]()
        tick = staticmethod(fault.tick)

    def tried() -> None:
        for steps in STEPS_OF_CONTROL:
            run(Faulty, steps, shrinks=False)

    with pytest.raises(BrokenPromise) as broken:
        tried()
    assert broken.value.promise in fault.breaks
