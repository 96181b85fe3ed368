"""Properties of any history in which devices move between two logs, brokers go away, and the engine is killed."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine import SECOND, Engine, action_of, devices_of

from actions.engine import (
    TERMINAL,
    Decision,
    Device,
    Logs,
    Place,
    Publish,
    Report,
    Rollout,
    Selector,
    Served,
    Target,
    TargetState,
    Timeouts,
    apply,
    record_places,
    tick,
)

DEVICES = ("d0", "d1", "d2", "d3")
LOGS = ("log-a", "log-b")
KINDS = ("cancel", "retry", "force", "pause", "resume")
STATES = ("ACCEPTED", "IN_PROGRESS", "SUCCEEDED", "FAILED", "CANCELLED")


class Roaming:
    """One random history. The seed chooses which devices move, which brokers are away, and when the engine dies."""

    def __init__(self, seed: int, *, withdraws: bool = True) -> None:
        self.chance, self._withdraws = random.Random(seed), withdraws
        logs = Logs(tuple(Served(log_id[-1], log_id) for log_id in LOGS))
        self.engine = Engine(devices=devices_of(*DEVICES), logs=logs)
        rollout = Rollout(
            retries=self.chance.choice((0, 2)), retry_backoff_s=0, max_in_flight=self.chance.choice((None, 2))
        )
        timeouts = Timeouts(queued_s=60, delivered_s=60, step_s=60)
        self.engine.actions.append(action_of(selector=Selector(percentage=100), rollout=rollout, timeouts=timeouts))
        self.contents: dict[str, dict[str, bytes]] = {log_id: {} for log_id in LOGS}
        self.late: list[tuple[Publish, Place]] = []
        """Answers of brokers that the engine has not seen yet."""
        self._offset = 0

    def step(self, *, calm: bool = False) -> None:
        engine, chance = self.engine, self.chance
        engine.now_us += chance.choice((1, 1, 5, 20)) * SECOND
        if calm or chance.random() < 0.3:
            away = [not calm and chance.random() < 0.3 for _ in LOGS]
            brokers = [Served(log_id[-1], log_id, away=gone) for log_id, gone in zip(LOGS, away, strict=True)]
            engine.logs = Logs(tuple(brokers))
        if not calm and chance.random() < 0.1:
            engine.ask(chance.choice(KINDS), device_id=chance.choice((None, *DEVICES)))
        if not calm and chance.random() < 0.1:
            id_ = chance.choice(DEVICES)
            log = chance.choice((None, "a", "log-b", "nowhere"))
            engine.devices = {**engine.devices, id_: Device(id_, "default", log=log)}
        reports = [] if calm else [self._report() for _ in range(chance.randint(0, 2))]
        arguments = (engine.actions, engine.requests, reports, engine.devices, engine.now_us)
        decision = tick(engine.state, *arguments, logs=engine.logs)
        assert tick(engine.state, *arguments, logs=engine.logs) == decision
        before, engine.state = engine.state, apply(engine.state, decision)
        if not calm and chance.random() < 0.1:
            # Killed after the commit: what is not in the tables is gone, also the answers on their way.
            copied = frozenset(one.key for rows in engine.state.targets.values() for one in rows.values() if one.copies)
            engine.state, self.late = replace(engine.state, devices=None, logs=None, copied=copied), []
            return
        self._check(before.targets.get("a1", {}), decision)
        self._publish(decision, calm=calm)

    def _report(self) -> Report:
        """A device reports at either broker: where a broker has its command, or that it is there."""
        chance, self._offset = self.chance, self._offset + 1
        id_, log_id = chance.choice(DEVICES), chance.choice(LOGS)
        target = self.engine.state.targets.get("a1", {}).get(id_)
        has = target is not None and f"a1/{id_}/{target.attempt}" in self.contents[log_id]
        common = {"device_id": id_, "log_id": log_id, "boot": f"b{self._offset}"}
        if target is None or not has or chance.random() < 0.5:
            return self.engine.report("ONLINE", self._offset, action_id="", attempt=0, **common)
        if chance.random() < 0.3:
            place = {"command_partition": 2, "command_offset": 7, "attempt": target.attempt}
            return self.engine.receipt(self._offset, device_id=id_, log_id=log_id, **place)
        return self.engine.report(chance.choice(STATES), self._offset, attempt=target.attempt, **common)

    def _publish(self, decision: Decision, *, calm: bool) -> None:
        """The brokers answer at once, or later, when the target may be somewhere else."""
        engine, chance = self.engine, self.chance
        for publish in decision.publishes:
            broker = engine.logs.serving(publish.log_id)
            assert broker is not None, f"{publish.idempotency_key} is owed to a log that nobody serves"
            if broker.away or (publish.kind == "withdraw" and not self._withdraws):
                continue
            log = self.contents[broker.log_id or ""]
            for other in self.contents.values():
                assert other.get(publish.idempotency_key, publish.value) == publish.value, "one key, two contents"
            log.setdefault(publish.idempotency_key, publish.value)
            self.late.append((publish, Place(2, list(log).index(publish.idempotency_key), broker.log_id)))
        arrived = [one for one in self.late if calm or chance.random() < 0.7]
        self.late = [one for one in self.late if one not in arrived]
        engine.state = apply(engine.state, record_places(engine.state, dict(arrived), engine.now_us))

    def _check(self, before: dict[str, Target], decision: Decision) -> None:
        for id_, target in self.engine.state.targets.get("a1", {}).items():
            was = before.get(id_)
            assert not (target.final and target.outbox)
            assert len(set(target.copies)) == len(target.copies)
            own = f"{target.attempt}/{target.log_id}" in target.copies
            assert not own or target.final or target.state is TargetState.CANCELLING, "a wanted command is withdrawn"
            if was is not None and was.state in TERMINAL and now_differs(was, target):
                raise AssertionError(f"{was} became {target}")
        for publish in decision.publishes:
            target = self.engine.state.targets["a1"][publish.device_id]
            if publish.kind == "command":
                assert publish.log_id == target.log_id
                assert publish.attempt == target.attempt

    def unanswered(self) -> dict[tuple[str, int], list[str]]:
        """(device, attempt) → the logs that have a command that nobody wants any more, and no cancel behind it."""
        found: dict[tuple[str, int], list[str]] = defaultdict(list)
        for log_id, log in self.contents.items():
            for key in log:
                _, id_, attempt, *rest = key.split("/")
                target = self.engine.state.targets["a1"][id_]
                is_over = target.final or (int(attempt) < target.attempt and not target.unsent)
                if not rest and is_over and f"{key}/cancel" not in log:
                    found[id_, int(attempt)].append(log_id)
        return found


def now_differs(was: Target, now: Target) -> bool:
    if now.attempt > was.attempt or (was.state is TargetState.TIMED_OUT and now.late):
        return False
    return now.state is not was.state


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_any_roaming_keeps_keys_places_and_final_states_and_leaves_one_copy_at_most(seed: int) -> None:
    roaming = Roaming(seed)
    for _ in range(40):
        roaming.step()
    for _ in range(4):
        roaming.step(calm=True)
    assert all(len(logs) == 1 for logs in roaming.unanswered().values()), (seed, roaming.unanswered())


def test_control_without_withdrawals_copies_stay_behind() -> None:
    """Negative control of the count of copies."""
    left = []
    for seed in range(30):
        roaming = Roaming(seed, withdraws=False)
        for _ in range(40):
            roaming.step()
        for _ in range(4):
            roaming.step(calm=True)
        left += [logs for logs in roaming.unanswered().values() if len(logs) > 1]
    assert left, "the check of the copies cannot fail"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_once_all_brokers_answer_every_wanted_command_is_in_the_log_of_its_device(seed: int) -> None:
    roaming = Roaming(seed)
    for _ in range(30):
        roaming.step()
    for _ in range(4):
        roaming.step(calm=True)
    state = roaming.engine.state
    if state.actions["a1"].phase.value != "RUNNING":
        return
    for id_, target in state.targets["a1"].items():
        if target.state is not TargetState.QUEUED:
            continue
        log = roaming.engine.devices[id_].log
        wanted = {"a": "log-a", "log-b": "log-b", "nowhere": None}.get(log or "")
        fact = state.facts.get(id_)
        where = wanted if log is not None else fact.log_id if fact is not None else None
        if where is not None:
            assert target.log_id == where, (seed, id_)
            assert f"a1/{id_}/{target.attempt}" in roaming.contents[where]
