"""Tables with an action that has ended long ago and one that is open, and kills while rows move to the archives."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from actions import archive as archive_
from actions.store import DeltalakeStore
from actions.table_writer import TableWriter
from sinks import tables
from support.engine_world import SECOND, EngineWorld

DAY = 24 * 3600 * SECOND
IDS = ("d1", "d2", "d3", "d4", "d5")
PAIRS = (
    ("action_targets", "action_targets_archive"),
    ("action_requests", "action_requests_archive"),
    ("quarantine", "quarantine_archive"),
    ("action_events", "action_events_archive"),
)


class KilledError(Exception):
    pass


def old_world(root: Path) -> EngineWorld:
    """`a1` has ended, with three handled requests; `a2` is open. Everything is old, and so is what nobody can use."""
    world = EngineWorld(root)
    world.devices(*IDS)
    for action_id in ("a1", "a2"):
        world.action(action_id, timeout_queued_s=60)
    job = world.job()
    job.turn()
    for action_id, kind in (("a1", "pause"), ("a1", "resume"), ("a2", "pause")):
        request(world, f"{action_id}-{kind}", action_id=action_id, kind=kind)
        job.turn()
    request(world, "a1-again", action_id="a1", kind="resume")
    for device_id in IDS[2:]:
        world.status(device_id, "SUCCEEDED")
    for device_id in IDS:
        world.status(device_id, "ACCEPTED", action_id="a2")
    world.status("d1", "ACCEPTED", action_id="nobody")
    job.turn()
    world.passes(700)
    job.turn()
    job.close()
    place = {"log_id": "log", "partition": 1, "epoch": 1, "reason": "bad", "quarantined_at": world.now_us}
    for number, pipeline in enumerate(("silver/m", "status", "gaps")):
        world.insert(tables.QUARANTINE, {**place, "pipeline": pipeline, "offset": number})
    assert counts(world) == {"SUCCEEDED": 3, "TIMED_OUT": 2}
    world.now_us += 100 * DAY
    return world


def copy_of(made: EngineWorld, root: Path) -> EngineWorld:
    shutil.copytree(made.root, root)
    world = EngineWorld(root)
    world.now_us, world._offset = made.now_us, made._offset
    return world


def request(world: EngineWorld, request_id: str, **fields: Any) -> None:
    row = {"request_id": request_id, "tenant": "default", "by": "ann", "at": world.now_us, **fields}
    world.insert(tables.ACTION_REQUESTS, row)


def engine(world: EngineWorld) -> DeltalakeStore:
    store = DeltalakeStore(world.root)
    store.claim()
    return store


def archive_all(world: EngineWorld, store: DeltalakeStore | None = None) -> None:
    store = store or engine(world)
    for _ in range(100):
        if not store.archive(world.now_us - 90 * DAY):
            return
    raise AssertionError("it does not end")


def state(world: EngineWorld, action_id: str = "a1") -> dict[str, Any]:
    (row,) = [row for row in world.rows("action_state") if row["action_id"] == action_id]
    return row


def counts(world: EngineWorld, action_id: str = "a1") -> dict[str, int]:
    return dict(state(world, action_id)["counts"])


def content(world: EngineWorld, *names: str) -> Counter[str]:
    return Counter(str(row) for name in names for row in world.rows(name))


def owners(world: EngineWorld, name: str) -> set[str | None]:
    return {row["action_id"] for row in world.rows(name)}


class Faults:
    """Kills the engine at one call of the tables, before it or after it."""

    STEPS = ("update", "append", "put", "sync", "delete")

    def __init__(self, patch: pytest.MonkeyPatch, at: int, when: str) -> None:
        self.calls: list[str] = []
        self._at, self._when = at, when
        real_of = archive_.ArchiveWriter.__init__

        def of(tables: Any, writer: TableWriter) -> None:
            real_of(tables, writer)
            for step in self.STEPS:
                setattr(tables, step, self._killing(step, getattr(tables, step)))

        patch.setattr(archive_.ArchiveWriter, "__init__", of)

    def _killing(self, step: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            self.calls.append(step)
            is_it = len(self.calls) == self._at
            if is_it and self._when == "before":
                raise KilledError(step)
            real(*arguments)
            if is_it:
                raise KilledError(step)

        return call


def stages(
    made: EngineWorld, folder: Path, monkeypatch: pytest.MonkeyPatch, prepare: Callable[[EngineWorld], None]
) -> Iterator[tuple[str, EngineWorld]]:
    """The tables after a kill at each step of a move, and after the move."""
    at, reached = 1, set[str]()
    while True:
        for when in ("before", "after"):
            world = copy_of(made, folder / f"{at}-{when}")
            prepare(world)
            with monkeypatch.context() as patch:
                faults = Faults(patch, at, when)
                try:
                    archive_all(world)
                except KilledError as error:
                    yield f"{at}: {when} {error}", world
                    reached.add(str(error))
                    continue
            yield "at the end", world
            assert reached == {"append", "sync", "delete", "update"} | ({"put"} & set(faults.calls))
            return
        at += 1
