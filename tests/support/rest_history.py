"""A history of competing actions in which the clock is checked during each rest of the engine."""

from __future__ import annotations

import json
import random

from actions.engine import Action, Limits, Rollout, Selector, Timeouts, rests_until_us, tick
from support.engine import SECOND, Engine, action_of, devices_of

KINDS = ("pause", "resume", "retry", "approve", "cancel")
WAVES = json.dumps([{"percentage": 30, "success_percentage": 50, "soak_s": 50, "approve": True}, {"percentage": 100}])


def actions(chance: random.Random) -> list[Action]:
    """Two actions that compete, with every condition that waits for the clock."""
    found = []
    for id_ in ("a1", "a2"):
        rollout = Rollout(
            membership=chance.choice(("static", "dynamic")),
            waves=chance.choice((None, WAVES)),
            rate_per_minute=chance.choice((None, None, 3)),
            max_in_flight=chance.choice((None, 2)),
            not_before_us=chance.choice((None, 1_800_000_090 * SECOND)),
            maintenance_window=chance.choice((None, None, "Fri 08:03-08:05")),  # It begins on a Friday, 08:00.
            retries=chance.choice((0, 2)),
            retry_backoff_s=45,
            depends_on=("a1",) if id_ == "a2" and chance.random() < 0.4 else (),
        )
        timeouts = Timeouts(queued_s=chance.choice((30, 70)), delivered_s=40, in_progress_s=90, step_s=35)
        deadline_us = chance.choice((None, 1_800_000_300 * SECOND))
        found.append(
            action_of(
                id_,
                selector=Selector(percentage=100),
                rollout=rollout,
                timeouts=timeouts,
                deadline_us=deadline_us,
                created_by="ann",
            )
        )
    return found


class Rested:
    """A history in which the clock is checked during each rest of the engine."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.engine = Engine(devices=devices_of(*(f"d{n}" for n in range(5))), limits=Limits(wait_unmatched_s=120))
        self.engine.actions = actions(self.chance)
        self.rests = 0
        self.longest_us = 0
        self._offset = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if self.chance.random() < 0.2:
                self.engine.ask(self.chance.choice(KINDS), by="bob", action_id=self.chance.choice(("a1", "a2", "a9")))
            self.engine.broker_up = self.chance.random() < 0.9
            self.engine.tick(*(self._report() for _ in range(self.chance.randint(0, 2))))
            self._rest()

    def _report(self):  # type: ignore[no-untyped-def]
        self._offset += 1
        state = self.chance.choice(("ACCEPTED", "IN_PROGRESS", "SUCCEEDED", "FAILED", "CANCELLED"))
        where = {"device_id": f"d{self.chance.randint(0, 5)}", "action_id": self.chance.choice(("a1", "a2", "a9"))}
        return self.engine.report(state, self._offset, **where)

    def _rest(self) -> None:
        """Ticks until one decides nothing, then moves the clock to the end of the rest, checking on the way."""
        engine = self.engine
        for _ in range(self.chance.randint(0, 12)):
            decision = engine.tick()
            if decision.writes or decision.publishes:
                continue
            now_us = engine.now_us
            until_us = rests_until_us(engine.state, engine.actions, self._open(), now_us, engine.limits)
            if until_us <= now_us:
                continue
            self.rests += 1
            self.longest_us = max(self.longest_us, until_us - now_us)
            for moment in (until_us - 1, self.chance.randint(now_us, until_us - 1)):
                found = tick(
                    engine.state, engine.actions, engine.requests, [], engine.devices, moment, limits=engine.limits
                )
                assert not found.writes, f"at {moment - now_us} µs: {found}"
                assert not found.publishes
            engine.now_us = until_us - SECOND

    def _open(self):  # type: ignore[no-untyped-def]
        """Like the job, which drops answered requests."""
        state = self.engine.state
        done = {id_ for row in state.actions.values() for id_ in row.requests_done}
        said = {event_id.split("/")[-1] for event_id in state.said}
        return [request for request in self.engine.requests if request.request_id not in done | said]
