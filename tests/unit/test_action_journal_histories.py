"""Random histories: whether an engine gathers changes in the journal, and where it is killed, people see the same.

A history is a list of steps: reports, requests, devices that join, pauses, merges, archiving, restarts, kills at a
random commit. It runs once with an engine that writes all changes into their tables and is never killed, and once with
one that gathers the changes of every action and is killed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from support.engine_world import SECOND, EngineWorld, PretendedLog

from actions import journal as journal_
from actions.fleet_desk import FleetDesk
from actions.job import ActionJob, Pace
from actions.journal_overlay import FreshTable
from actions.store import DeltalakeStore
from actions.table_writer import TableWriter
from broker_edge import Place, Row
from sinks import tables
from sinks.rows import rows_of

IDS = tuple(f"d{number}" for number in range(8))
ACTIONS = ("all", "few", "grows")
SEEDS = (1, 6)
STEPS, LOOK = 12, 4
"""Of how many turns, and after how many of them people look."""
LARGE, NEVER = 2, 1_000_000
"""`grows` begins with 2 devices, and `few` never has more."""
IN_FLIGHT = ("QUEUED", "DELIVERED", "ACCEPTED", "IN_PROGRESS", "CANCELLING")
TURNS = ("turn", "merge", "archive", "restart")
Step = tuple[Any, ...]


class KilledError(Exception):
    pass


class OnceLog(PretendedLog):
    """Like a broker: a record with a known key keeps its place."""

    def publish(self, rows: Sequence[Row]) -> list[Place]:
        super().publish(rows)
        return [Place(1, crc32((row.idempotency_key or "").encode()), False) for row in rows]


class Killer:
    """Kills an engine before or after one of its next commits."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.is_after = self.is_at_emptying = False
        self.kills: Counter[str] = Counter()
        for name in ("_committed", "delete"):
            patch.setattr(TableWriter, name, self._killed(getattr(TableWriter, name)))
        patch.setattr(TableWriter, "clear", self._kept(TableWriter.clear))

    def _killed(self, real: Callable[..., None]) -> Callable[..., None]:
        def run(writer: TableWriter, *arguments: Any) -> None:
            if self.left is None or self.left > 0:
                self.left = None if self.left is None else self.left - 1
                real(writer, *arguments)
                return
            if self.is_after:
                real(writer, *arguments)
            self.left = None
            self.kills[next(one for one in arguments if isinstance(one, str))] += 1
            raise KilledError

        return run

    def _kept(self, real: Callable[..., None]) -> Callable[..., None]:
        """A kill between a merge and the emptying of the journal."""

        def run(writer: TableWriter, name: str) -> None:
            if self.is_at_emptying:
                self.is_at_emptying = False
                self.kills["emptying"] += 1
                raise KilledError
            real(writer, name)

        return run


@dataclass
class Runner:
    world: EngineWorld
    killer: Killer | None

    def __post_init__(self) -> None:
        self.world.log = OnceLog()
        self.world.devices(*IDS)
        for device_id in IDS:
            self.world.online(device_id, "1.0.0" if device_id in IDS[:2] else "2.0.0")
        self.job = self.started()
        self.job.turn()
        self.world.action("all", timeout_queued_s=900, retries=1)
        self.world.action("few", percentage=None, device_ids=list(IDS[:2]), timeout_queued_s=300)
        self.world.action("grows", percentage=None, reported_expression="version < 2.0.0", membership="dynamic")
        self.job.turn()

    def started(self) -> ActionJob:
        store = DeltalakeStore(self.world.root, steady_s=lambda: self.world.now_us / SECOND)
        return ActionJob(store, self.world.log, pace=Pace(device_state_s=0), clock_us=lambda: self.world.now_us)

    def run(self, step: Step) -> None:
        what, *rest = step
        if what == "kill":
            if self.killer is not None:
                self.killer.left, self.killer.is_after = rest[0], rest[1]
            return
        if what == "look":
            return
        if what == "keep":
            if self.killer is not None:
                self.killer.is_at_emptying = True
            return
        if what == "status":
            device_id, state, action_id = rest
            # A device reports about a command that it has.
            for row in FleetDesk(self.world.root).targets(action_id):
                if row["device_id"] == device_id and (row["state"] in IN_FLIGHT or row["outbox"] == "command"):
                    self.world.status(device_id, state, action_id=action_id, attempt=row["attempt"])
        elif what == "online":
            self.world.online(*rest)
        elif what == "ask":
            request_id, action_id, kind, device_id = rest
            row = {"request_id": request_id, "action_id": action_id, "kind": kind, "device_id": device_id}
            self.world.insert(tables.ACTION_REQUESTS, {**row, "by": "jo", "at": self.world.now_us})
        elif what == "passes":
            self.world.passes(*rest)
        else:
            self._lived(lambda: self._act(what))

    def _act(self, what: str) -> None:
        if what == "restart":
            self.job.close()
            self.job = self.started()
        if what == "merge":
            self.job._store.settle(now=True)
        if what == "archive":
            loaded = self.job._state.actions.keys() | self.job._definitions.keys()
            while self.job._store.archive(self.world.now_us - 2000 * SECOND, loaded):
                pass
        self.job.turn()

    def _lived(self, act: Callable[[], None]) -> None:
        try:
            act()
        except KilledError:
            self.job._outbound.close()
            if self.killer is not None and self.killer.kills.total() % 3 == 0:
                # The next engine is killed while it starts, too.
                self.killer.left, self.killer.is_after = 13 + len(self.killer.kills), True
                try:
                    self.job = self.started()
                    self.job.turn()
                except KilledError:
                    pass
            self.calm()
            self.job = self.started()
            self.job.turn()

    def calm(self) -> None:
        if self.killer is not None:
            self.killer.left, self.killer.is_at_emptying = None, False

    def seen(self) -> dict[str, Any]:
        """What people see: of each target, of each action, of each device."""
        desk, found = FleetDesk(self.world.root), dict[str, Any]()
        for action_id in ACTIONS:
            rows = desk.targets(action_id)
            names = ("device_id", "attempt", "state", "outbox", "late", "erred", "message")
            found[action_id] = sorted(tuple(row[name] for name in names) for row in rows)
            state = desk.action(action_id)
            assert state is not None
            found[f"{action_id} state"] = [state[name] for name in ("phase", "targets", "open", "counts", "wave")]
            assert {name: number for name, number in state["counts"].items() if number} == Counter(
                row["state"] for row in rows
            )
        found["devices"] = {row["device_id"]: row["version"] for row in desk.device_states()}
        fresh = rows_of(FreshTable(self.world.root, "action_state").select("SELECT action_id FROM action_state"))
        assert sorted(row["action_id"] for row in fresh) == list(ACTIONS)
        return found


def history(seed: int) -> list[Step]:
    chance = random.Random(seed)

    def device() -> str:
        return chance.choice(IDS)

    def one(number: int) -> Iterator[Step]:
        for _ in range(chance.choice((1, 1, 2, 3))):
            states = ("ACCEPTED", "IN_PROGRESS", "SUCCEEDED", "SUCCEEDED", "FAILED")
            yield "status", device(), chance.choice(states), chance.choice(ACTIONS)
        if chance.random() < 0.3:
            yield "online", device(), chance.choice(("1.0.0", "1.5.0", "2.0.0"))
        if chance.random() < 0.25:
            kind = chance.choice(("pause", "resume", "resume", "retry", "retry", "cancel", "remove", "force"))
            whom = device() if kind in ("cancel", "remove", "retry") else None
            yield "ask", f"r{number}", chance.choice(ACTIONS), kind, whom
        yield "passes", chance.choice((0.1, 1, 5, 30, 400, 700, 2500))
        yield (chance.choice(("turn", *TURNS)),)

    return [
        step
        for number in range(STEPS)
        for step in (
            *([("kill", chance.randrange(8), chance.random() < 0.5)] if chance.random() < 0.4 else []),
            *([("keep",)] if chance.random() < 0.3 else []),
            *one(number),
        )
    ]


def ran(
    root: Path, patch: pytest.MonkeyPatch, steps: Sequence[Step], *, large: int, is_killed: bool
) -> tuple[Runner, list[Any]]:
    with patch.context() as within:
        within.setattr(journal_, "LARGE", large)
        # The journal is merged once all targets have changed, or after some minutes.
        within.setattr(journal_, "_PART", 1)
        within.setattr(journal_, "_ROWS_PER_S", 0.01)
        runner = Runner(EngineWorld(root), Killer(within) if is_killed else None)
        found, turns = [], 0
        for step in steps:
            runner.run(step)
            turns += step[0] in TURNS
            if step[0] == "look" or (turns % LOOK == 0 and step[0] in TURNS):
                runner.calm()
                runner.job.turn()
                found.append((turns, runner.seen()))
        return runner, found


def compared(root: Path, patch: pytest.MonkeyPatch, steps: Sequence[Step]) -> Counter[str]:
    """Runs the history both ways, and returns where the engine was killed."""
    direct, expected = ran(root / "direct", patch, steps, large=NEVER, is_killed=False)
    runner, found = ran(root / "journal", patch, steps, large=LARGE, is_killed=True)
    assert found == expected
    assert set(runner.world.log.keys) == set(direct.world.log.keys), "a record is published again under its key alone"
    assert runner.killer is not None
    return runner.killer.kills


@pytest.mark.parametrize("seed", SEEDS)
def test_people_see_the_same_with_a_journal_and_kills(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    assert compared(tmp_path, monkeypatch, history(seed)).total() >= 3


OLD_ROW: Sequence[Step] = (
    *(("turn",), ("status", "d0", "IN_PROGRESS", "all"), ("passes", 1), ("turn",)),
    # A pause is merged at once, with a row that the journal does not have.
    *(("keep",), ("status", "d0", "SUCCEEDED", "all"), ("ask", "r1", "all", "pause", None), ("passes", 1), ("turn",)),
    ("look",),
)
"""A kill leaves an old row in the journal that has been merged, and replaced."""


def test_a_kill_before_the_journal_is_emptied_brings_no_old_row_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compared(tmp_path, monkeypatch, OLD_ROW) == {"emptying": 1}


def test_control_without_the_marks_the_comparison_finds_the_old_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_, "mark_of", lambda table, name: -1)
    with pytest.raises(AssertionError, match="IN_PROGRESS"):
        compared(tmp_path, monkeypatch, OLD_ROW)
