"""Two engines on one set of tables: whatever the older one still writes after the claim of the newer one fails."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from deltalake import DeltaTable, Transaction
from support.engine_world import SECOND, START_US, EngineWorld

from actions.engine import (
    ActionPhase,
    ActionState,
    AuditEvent,
    Decision,
    DeviceState,
    Quarantined,
    Report,
    Target,
    TargetState,
)
from actions.fence import ENGINE, Fence
from actions.store import DeltalakeStore
from actions.table_store import Versions
from broker_edge.errors import EngineFencedError
from sinks.tables import ACTION_REQUESTS

WAIT_S = 60.0
WRITTEN = ("action_targets", "action_state", "device_state", "action_events", "quarantine")


def decision_for(name: str, key: str = "1") -> Decision:
    """A decision that writes one row to this table, and nothing to the others."""
    if name == "action_targets":
        target = Target(f"a{key}", "default", "d1", TargetState.PENDING, created_us=1, since_us=1, updated_us=1)
        return Decision(target_updates=(target,))
    if name == "action_state":
        row = ActionState(f"a{key}", "default", ActionPhase.RUNNING, "digest", 1, 1, {"PENDING": 1}, "", 1, None, 1)
        return Decision(state_updates=(row,))
    if name == "device_state":
        return Decision(device_updates=(DeviceState(f"d{key}", "default", 1, "log", 1, 1),))
    if name == "action_events":
        return Decision(events=(AuditEvent(f"engine/a{key}/STARTED", "default", f"a{key}", "STARTED", "begins", 1),))
    report = Report("status", "log", 1, int(key), "d1", "a1", 1, "SUCCEEDED", at_us=1, recorded_us=1)
    return Decision(quarantine=(Quarantined(report, "no such action"),))


@dataclass
class Pause:
    """Stops the old engine between its look at the fence of one table and its write to it."""

    name: str
    looked: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    looks: int = 0

    def install(self, patch: pytest.MonkeyPatch) -> None:
        real = Fence.require
        # A commit begins with a look at the first table, before it writes anything.
        last = 2 if self.name == WRITTEN[0] else 1

        def require(fence: Fence, table: DeltaTable, name: str) -> None:
            real(fence, table, name)
            if name == self.name and threading.current_thread().name == "old":
                self.looks += 1
                if self.looks == last:
                    self.looked.set()
                    assert self.go_on.wait(WAIT_S)

        patch.setattr(Fence, "require", require)


def superseded(
    world: EngineWorld, name: str, patch: pytest.MonkeyPatch, *, is_new: bool = False
) -> BaseException | None:
    """What the write of the older engine ended with, if the newer one claims between its look and its write."""
    old = DeltalakeStore(world.root)
    old.claim()
    old.commit(decision_for(name, "1"), Versions())
    pause = Pause(name)
    errors: list[BaseException] = []

    def write() -> None:
        try:
            old.commit(decision_for(name, "2"), Versions(), new=frozenset({"a2"} if is_new else ()))
        except EngineFencedError as error:
            errors.append(error)

    with patch.context() as during:
        pause.install(during)
        thread = threading.Thread(target=write, name="old")
        thread.start()
        assert pause.looked.wait(WAIT_S)
        new = DeltalakeStore(world.root)
        new.claim()
        pause.go_on.set()
        thread.join(WAIT_S)
    new.commit(decision_for(name, "3"), Versions())
    return errors[0] if errors else None


@pytest.fixture
def world(tmp_path: Path) -> EngineWorld:
    return EngineWorld(tmp_path)


@pytest.mark.parametrize("name", WRITTEN)
def test_a_superseded_engine_that_has_looked_already_cannot_write(
    world: EngineWorld, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = superseded(world, name, monkeypatch)
    assert "a newer engine has taken over" in str(error)
    assert len(world.rows(name)) == 2, "the rows before the claim and of the newer engine"


@pytest.mark.parametrize("name", ["action_targets", "action_state"])
def test_a_superseded_engine_cannot_append_a_new_action(
    world: EngineWorld, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert superseded(world, name, monkeypatch, is_new=True) is not None
    assert len(world.rows(name)) == 2


@pytest.mark.parametrize("name", WRITTEN)
def test_control_without_its_transaction_a_superseded_engine_writes(
    world: EngineWorld, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the look alone does not help."""
    numbers = iter(range(1, 100))
    monkeypatch.setattr(Fence, "transaction", lambda _: Transaction("control", next(numbers)))
    assert superseded(world, name, monkeypatch) is None
    assert len(world.rows(name)) == 3


def test_every_commit_of_an_engine_has_its_number(world: EngineWorld) -> None:
    world.devices("d1", "d2")
    world.action()
    world.insert(ACTION_REQUESTS, {"request_id": "r1", "action_id": "a1", "kind": "pause", "by": "ann", "at": START_US})
    job = world.job()
    before = {name: world.table(name).version() for name in WRITTEN}
    said = 0
    for state in ("ACCEPTED", "SUCCEEDED"):
        job.turn()
        world.status("d1", state)
        world.online("d1", "1.0")
        world.status("d2", state, action_id="nobody")
        said += 3
        world.now_us += 700 * SECOND
    job.turn()
    world.now_us += 700 * SECOND
    job.turn()
    job.close()
    for name in WRITTEN:
        logs = [world.root / name / "_delta_log" / f"{n:020}.json" for n in range(before[name] + 1, 1_000)]
        numbered = [ENGINE in log.read_text() for log in logs if log.exists()]
        assert any(numbered), f"the engine wrote nothing to {name}"
        assert numbered.count(False) == (said if name == "action_events" else 0), "the statuses are of others"


def test_a_claim_that_a_kill_has_cut_short_is_outdone_in_every_table(world: EngineWorld) -> None:
    """The numbers of the tables differ then; the next engine takes one above all of them."""
    Fence(world.root, WRITTEN[:1]).claim(world.table)
    Fence(world.root, WRITTEN[:3]).claim(world.table)
    Fence(world.root, WRITTEN[2:]).claim(world.table)
    assert len({world.table(name).transaction_version(ENGINE) for name in WRITTEN}) > 1
    store = DeltalakeStore(world.root)
    store.claim()
    assert len({world.table(name).transaction_version(ENGINE) for name in WRITTEN}) == 1
    for name in WRITTEN:
        store.commit(decision_for(name), Versions())
        assert len(world.rows(name)) == 1


def test_an_engine_that_has_nothing_to_write_notices_that_another_has_taken_over(world: EngineWorld) -> None:
    job = world.job()
    job.turn()
    job.turn()
    world.job()
    with pytest.raises(EngineFencedError, match="a newer engine has taken over"):
        job.turn()


def test_where_a_look_is_a_request_an_engine_looks_for_another_now_and_then(world: EngineWorld) -> None:
    now_s = 100.0
    store = DeltalakeStore(f"file://{world.root}", steady_s=lambda: now_s)
    store.claim()
    store.news()
    DeltalakeStore(world.root).claim()
    store.news()
    now_s += 10.0
    with pytest.raises(EngineFencedError):
        store.news()


def test_of_engines_that_claim_at_once_one_remains(world: EngineWorld) -> None:
    """Each claim is a sequence of commits, and any number of claims may be mixed."""
    stores = [DeltalakeStore(world.root) for _ in range(4)]
    together = threading.Barrier(len(stores))

    def claim(store: DeltalakeStore) -> None:
        together.wait(WAIT_S)
        with suppress(EngineFencedError):
            store.claim()

    threads = [threading.Thread(target=claim, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    wrote = []
    for number, store in enumerate(stores):
        for name in WRITTEN:
            with suppress(EngineFencedError):
                store.commit(decision_for(name, str(number)), Versions())
                wrote.append(number)
    assert len(set(wrote)) == 1, "only the last engine may write"
    assert len(wrote) == len(WRITTEN), "and it may write to every table"
