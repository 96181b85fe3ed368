"""The start of an action: not while the table of devices has just lost all rows, and again if a kill cut it short."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.engine import Engine, action_of, devices_of
from support.engine_world import EngineWorld

from actions.engine import Artifact, Limits, Ota, Selector, TargetState, apply, tick

EVERYBODY = Selector(percentage=100)
LAX = Limits(allow_unsigned=True)
FIRMWARE = Artifact("fw", "2", "default", "a" * 64, 10, "b" * 128, "k1")


def test_a_new_action_waits_for_a_table_that_is_empty_for_a_moment() -> None:
    engine = Engine(devices=devices_of("d1", "d2"))
    engine.tick()
    engine.devices = devices_of()
    engine.tick()
    engine.actions += [action_of(selector=EVERYBODY), action_of("a2", selector=Selector(device_ids=("d1",)))]
    engine.tick()
    said = "held: the table devices has no rows any more; the action starts once it has some again"
    assert engine.said() == [said, said]
    engine.tick(after_s=3600)
    assert engine.said() == []
    assert engine.state.actions == {}
    engine.devices = devices_of("d1", "d2")
    engine.tick()
    assert {id_: set(rows) for id_, rows in engine.state.targets.items()} == {"a1": {"d1", "d2"}, "a2": {"d1"}}
    assert engine.sent() == ["d1", "d2", "d1"]


def test_an_action_for_a_table_that_never_had_rows_ends_at_once() -> None:
    engine = Engine(devices=devices_of())
    engine.tick()
    engine.actions.append(action_of(selector=EVERYBODY))
    engine.tick()
    assert engine.state.actions["a1"].message.startswith("selects nobody")


def test_an_engine_that_is_restarted_meanwhile_reads_the_held_action_again(tmp_path: Path) -> None:
    world = EngineWorld(tmp_path / "tables")
    world.devices("d1")
    world.action("a0")
    job = world.job()
    job.turn()
    world.table("devices").delete()
    job.turn()
    world.action("a1")
    # The other one goes on meanwhile, so that marks are written.
    world.status("d1", "SUCCEEDED", action_id="a0")
    job.turn()
    job.turn()
    assert world.states("a1") == set()
    assert world.states("a0") == {"SUCCEEDED"}
    job.close()
    world.devices("d1")
    again = world.job()
    again.turn()
    again.turn()
    assert world.states("a1") == {"QUEUED"}


def cut_short(engine: Engine) -> None:
    """A kill between the commits of the tick that starts an action: its targets are written, its row is not."""
    engine.now_us += 1_000_000
    decision = tick(
        engine.state, engine.actions, [], [], engine.devices, engine.now_us, artifacts=engine.artifacts, limits=LAX
    )
    assert decision.target_updates
    assert decision.state_updates
    after = apply(engine.state, replace(decision, state_updates=(), events=(), publishes=()))
    engine.state = replace(after, devices=None, logs=None)


def test_a_start_that_was_cut_short_leaves_no_target_of_a_refused_action_open() -> None:
    engine = Engine(devices=devices_of("d1"), limits=LAX, artifacts={FIRMWARE.key: FIRMWARE})
    engine.actions.append(action_of(type="ota", selector=EVERYBODY, ota=Ota("fw", "2")))
    cut_short(engine)
    assert engine.target().outbox == "command"
    engine.artifacts = {}
    engine.tick()
    assert (engine.phase(), engine.target().state, engine.target().outbox) == ("REFUSED", TargetState.SKIPPED, None)
    assert "artifact fw 2 is not in the table" in (engine.target().message or "")
    engine.artifacts = {FIRMWARE.key: FIRMWARE}
    engine.tick()
    assert engine.published == []
