"""What limits the commands that follow their devices to another log: `publish_max`, bytes, and the artifact."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine import Engine, action_of, devices_of

from actions.engine import Artifact, Limits, Logs, Ota, Rollout, Selector, Served, TargetState

S = TargetState
ROOF, YARD = Served("roof", "log-roof"), Served("yard", "log-yard")
REPLACED = Logs((Served("roof", "log-new"),))


def queued(count: int, *, limits: Limits | None = None, params: str = "{}", **fields: object) -> Engine:
    """All devices have their command in the log of the only broker."""
    engine = Engine(devices=devices_of(*(f"d{n:03}" for n in range(count))), logs=Logs((ROOF,)))
    engine.limits = limits or Limits()
    engine.actions.append(action_of(selector=Selector(percentage=100), params=params, **fields))
    for _ in range(count):
        engine.tick(after_s=62)
        if {one.state for one in engine.state.targets["a1"].values()} == {S.QUEUED}:
            return engine
    raise AssertionError("not all are queued")


def test_a_mass_move_keeps_to_publish_max_and_goes_on_in_later_ticks() -> None:
    engine = queued(25, limits=Limits(publish_max=10))
    engine.logs = REPLACED
    numbers = []
    for _ in range(4):
        engine.tick()
        numbers.append(len(engine.last.publishes))
    assert numbers == [10, 10, 5, 0]
    assert {one.log_id for one in engine.state.targets["a1"].values()} == {"log-new"}
    assert len(engine.contents["log-new"]) == 25


def test_a_mass_move_builds_a_limited_number_of_bytes_in_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = queued(6, params='{"x":"' + "y" * 200_000 + '"}')
    monkeypatch.setattr("actions.engine.dispatch._BYTES_MAX", 800_000)
    engine.logs = REPLACED
    engine.tick()
    assert len(engine.last.publishes) == 3
    engine.tick()
    assert len(engine.contents["log-new"]) == 6


def test_a_move_that_waits_for_room_ends_with_a_cancel_in_both_logs() -> None:
    engine = queued(2, limits=Limits(publish_max=1))
    engine.logs, engine.broker_up = REPLACED, False
    engine.tick()
    assert [one.log_id for one in engine.state.targets["a1"].values()] == ["log-new", "log-roof"]
    engine.broker_up = True
    engine.logs = Logs((Served("roof", "log-new"), Served("old", "log-roof")))
    engine.cancel()
    for _ in range(3):
        engine.tick()
    assert engine.contents["log-roof"].keys() >= {"a1/d000/1/cancel", "a1/d001/1/cancel"}


def test_a_move_goes_on_during_a_pause_and_beside_the_rate() -> None:
    engine = queued(4, rollout=Rollout(rate_per_minute=2))
    engine.ask("pause")
    engine.logs = REPLACED
    engine.tick()
    assert (len(engine.contents["log-new"]), engine.phase()) == (4, "PAUSED")


@pytest.mark.parametrize("returns", [False, True])
def test_an_installation_follows_its_device_once_the_new_log_has_the_artifact(returns: bool) -> None:
    engine = Engine(devices=devices_of("d1"), limits=Limits(allow_unsigned=True))
    ota = Ota(artifact_name="fw", artifact_version="2")
    engine.actions.append(action_of(type="ota", name="update", params="{}", ota=ota))
    artifact = Artifact("fw", "2", "default", "a" * 64, 10, "b" * 128, "k1")
    engine.artifacts = {artifact.key: artifact}
    stock = {("log-roof", "fw", "2", "a" * 64): None, ("log-yard", "fw", "2", "a" * 64): "its copy is on the way"}
    engine.logs = Logs((ROOF, YARD), stock)

    def online(log_id: str, offset: int) -> None:
        about = {"action_id": "", "attempt": 0, "log_id": log_id, "boot": f"b{offset}", "version": "1"}
        engine.tick(engine.report("ONLINE", offset, **about))

    online("log-roof", 1)
    online("log-yard", 1)
    said = "its artifact fw 2 is not in the log log-yard: its copy is on the way"
    assert (engine.target().state, engine.target().log_id, engine.target().message) == (S.QUEUED, "log-roof", said)
    assert "log-yard" not in engine.contents
    assert ("log-yard", "fw", "2", "a" * 64) in engine.last.wanted
    if returns:
        online("log-roof", 2)
        assert (engine.target().log_id, engine.target().message) == ("log-roof", None)
        return
    engine.logs = replace(engine.logs, stock={**stock, ("log-yard", "fw", "2", "a" * 64): None})
    engine.tick()
    assert (engine.target().log_id, engine.target().copies) == ("log-yard", ("1/log-roof",))
    assert list(engine.contents["log-yard"]) == ["a1/d1/1"]


def softly(mode: str) -> Engine:
    """The device has its command in the log of the roof and is forced there."""
    engine = Engine(devices=devices_of("d1"), limits=Limits(allow_unsigned=True), logs=Logs((ROOF, YARD)))
    ota = Ota(artifact_name="fw", artifact_version="2", mode=mode)
    engine.actions.append(action_of(type="ota", name="update", params="{}", ota=ota))
    artifact = Artifact("fw", "2", "default", "a" * 64, 10, "b" * 128, "k1")
    engine.artifacts = {artifact.key: artifact}
    seen(engine, "log-roof", 1)
    return engine


def seen(engine: Engine, log_id: str, offset: int) -> None:
    about = {"action_id": "", "attempt": 0, "log_id": log_id, "boot": f"b{offset}", "version": "1"}
    engine.tick(engine.report("ONLINE", offset, **about))


FORCED = ["a1/d1/1", "a1/d1/1/force"]


@pytest.mark.parametrize("mode", ["soft", "download_only"])
def test_a_force_follows_the_command_to_each_log_and_the_command_keeps_its_bytes(mode: str) -> None:
    """The log of the test refuses two contents under one key."""
    engine = softly(mode)
    seen(engine, "log-yard", 1)
    engine.ask("force")
    engine.tick()
    engine.tick()
    assert sorted(engine.contents["log-yard"]) == FORCED
    seen(engine, "log-roof", 2)
    engine.tick()
    assert sorted(engine.contents["log-roof"]) == FORCED
    assert engine.contents["log-roof"] == engine.contents["log-yard"]
    assert (engine.target().mode, engine.target().force_log_id, engine.target().outbox) == (mode, "log-roof", None)
    engine.tick(engine.report("SUCCEEDED", 3, log_id="log-roof"))
    assert engine.target().state is S.IN_PROGRESS, "a forced installation needs the proof of its version"


def test_a_force_follows_a_device_that_has_its_command() -> None:
    engine = softly("soft")
    engine.tick(engine.report("ACCEPTED", 2, log_id="log-roof", boot="b1"))
    engine.ask("force")
    engine.tick()
    engine.tick()
    assert sorted(engine.contents["log-roof"]) == FORCED
    seen(engine, "log-yard", 1)
    engine.tick()
    assert sorted(engine.contents["log-yard"]) == ["a1/d1/1/force"]
    assert (engine.target().force_log_id, engine.target().outbox) == ("log-yard", None)


def test_a_force_never_comes_before_its_command() -> None:
    """The move of the command waits for the artifact. A device ignores the force of a command that it does not have,
    and the log would take the force only once."""
    engine = softly("soft")
    at = {log_id: (log_id, "fw", "2", "a" * 64) for log_id in ("log-roof", "log-yard")}
    engine.logs = replace(engine.logs, stock={at["log-roof"]: None, at["log-yard"]: "its copy is on the way"})
    seen(engine, "log-yard", 1)
    engine.ask("force")
    engine.tick()
    assert (engine.target().log_id, "log-yard" in engine.contents) == ("log-roof", False)
    engine.logs = replace(engine.logs, stock=dict.fromkeys(at.values()))
    engine.tick()
    engine.tick()
    assert list(engine.contents["log-yard"]) == FORCED
