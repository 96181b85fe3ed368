"""One random history of a rollout: devices with arbitrary behaviour, a broker that comes and goes, an engine that is
killed between two commits, users with all kinds of requests."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

from hypothesis import strategies as st

from actions.engine import (
    TERMINAL,
    Decision,
    Rollout,
    Selector,
    Target,
    TargetState,
    Timeouts,
    apply,
    record_places,
    tick,
)
from actions.engine.model import Place
from support.engine import SECOND, Engine, action_of, devices_of

S = TargetState
DEVICES = tuple(f"d{number}" for number in range(9))
_ROWS = devices_of(*DEVICES)
"""A row that has not changed stays the same object, as the job reads it."""
KINDS = ("pause", "resume", "force", "retry", "approve", "cancel")


@st.composite
def rollouts(draw: st.DrawFn) -> Rollout:
    waves = [{"percentage": 34, "success_percentage": 50, "error_percentage": 60, "min_reported": 2}]
    waves += [{"percentage": 100}]
    return Rollout(
        membership=draw(st.sampled_from(("static", "dynamic"))),
        waves=draw(st.sampled_from((None, json.dumps(waves)))),
        rate_per_minute=draw(st.none() | st.integers(1, 6)),
        max_in_flight=draw(st.none() | st.integers(1, 4)),
        abort_percentage=draw(st.none() | st.just(50.0)),
        abort_min_reported=3,
        retries=draw(st.integers(0, 2)),
        retry_backoff_s=draw(st.sampled_from((0, 5))),
    )


class History:
    """One run of a history. `seed` decides everything that the rollout does not."""

    def __init__(self, rollout: Rollout, seed: int, *, killed: bool = True, rows_lost: bool = True) -> None:
        self._random = random.Random(seed)
        self.rollout, self._killed, self._rows_lost = rollout, killed, rows_lost
        self.engine = Engine(devices=_ROWS)
        timeouts = Timeouts(queued_s=40, delivered_s=40, step_s=40)
        selector = Selector(percentage=100)
        self.engine.actions.append(action_of(selector=selector, rollout=rollout, timeouts=timeouts, created_by="ann"))
        self.log: dict[str, bytes] = {}
        self.sends: list[int] = []
        """When each command first reached the log."""
        self.stopped_with: int | None = None
        self._offset = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()

    def step(self) -> None:
        engine, chance = self.engine, self._random
        engine.now_us += chance.choice((1, 1, 5, 30)) * SECOND
        if chance.random() < 0.1:
            engine.ask(chance.choice(KINDS), by=chance.choice(("ann", "bob")))
        if chance.random() < 0.05:
            engine.devices = {id_: _ROWS[id_] for id_ in chance.sample(DEVICES, chance.randint(5, len(DEVICES)))}
        reports = [self._report() for _ in range(chance.randint(0, 3))] if engine.state.targets else []
        arguments = (engine.actions, engine.requests, reports, engine.devices, engine.now_us)
        before, decision = engine.state, tick(engine.state, *arguments)
        assert tick(before, *arguments) == decision
        if self._killed and self._rows_lost and chance.random() < 0.15:
            # Killed between two commits: the targets are written, but not their action's row. Then the engine restarts.
            engine.state = replace(apply(before, replace(decision, state_updates=(), waiting=())), devices=None)
            if "a1" not in engine.state.actions:
                engine.state = before
            reports = [*decision.waiting, *reports]
            before, decision = (
                engine.state,
                tick(engine.state, engine.actions, engine.requests, reports, *arguments[3:]),
            )
        engine.state = apply(before, decision)
        self._check(before.targets.get("a1", {}), decision)
        if chance.random() < 0.8:
            self._publish(decision)

    def _report(self):  # type: ignore[no-untyped-def]
        chance, self._offset = self._random, self._offset + 1
        device_id = chance.choice(DEVICES)
        target = self.engine.state.targets["a1"].get(device_id)
        attempt = target.attempt if target is not None and chance.random() < 0.9 else chance.randint(1, 3)
        states = ("ACCEPTED", "IN_PROGRESS", "SUCCEEDED", "SUCCEEDED", "FAILED", "REJECTED", "CANCELLED")
        return self.engine.report(chance.choice(states), self._offset, device_id=device_id, attempt=attempt)

    def _publish(self, decision: Decision) -> None:
        """Like the job: positions are committed after the publish, unless it is killed in between."""
        places = {}
        for publish in decision.publishes:
            known = self.log.setdefault(publish.idempotency_key, publish.value)
            assert known == publish.value, "one key, two contents"
            if known is publish.value and publish.kind == "command":
                self.sends.append(self.engine.now_us)
            places[publish] = Place(2, len(self.log))
        if not self._killed or self._random.random() < 0.9:
            self.engine.state = apply(self.engine.state, record_places(self.engine.state, places, self.engine.now_us))

    def _check(self, before: dict[str, Target], decision: Decision) -> None:  # type: ignore[override]
        state = self.engine.state
        row, targets = state.actions["a1"], state.targets["a1"]
        counts = Counter(target.state.value for target in targets.values())
        assert (dict(row.counts), row.targets) == (dict(counts), len(targets))
        assert row.open == sum(1 for target in targets.values() if target.state not in TERMINAL)
        assert before.keys() <= targets.keys(), "a target has disappeared"
        for device_id, was in before.items():
            now = targets[device_id]
            assert now.attempt >= was.attempt
            if was.state in TERMINAL and now.attempt == was.attempt and now != was:
                late = was.state is S.TIMED_OUT and now.state is S.SUCCEEDED and now.late
                # A cancel is noted at a device that has left: it gets no other attempt when it comes back.
                kept_away = now == replace(was, message=now.message, updated_us=now.updated_us)
                kept_away = kept_away and (now.message or "").endswith("it had been cancelled before")
                assert late or kept_away, f"{was} became {now}"
        for target in targets.values():
            assert not (target.final and target.outbox), "a record is owed to a target that has ended"
        limit = self.rollout.max_in_flight
        if limit is not None:
            assert sum(1 for target in targets.values() if not target.final and not target.unsent) <= limit
        self._check_stop(row.stopped, decision)

    def _check_stop(self, stopped: str | None, decision: Decision) -> None:
        commands = [publish for publish in decision.publishes if publish.kind == "command"]
        assert stopped is None or not commands, "a command is sent for a stopped action"

    def check_rate(self, per_minute: int) -> None:
        for moment in self.sends:
            within = sum(1 for other in self.sends if moment <= other < moment + 60 * SECOND)
            assert within <= per_minute, f"{within} commands within a minute"
