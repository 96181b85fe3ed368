"""Targets that wait for a window cost nothing, and what decides about them earlier is still seen at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine import Engine, action_of, devices_of

from actions.engine import Artifact, Device, Limits, Ota, Rollout, Selector, TargetState, dispatch

S = TargetState
FIRMWARE = Artifact("fw", "2", "default", "a" * 64, 10, "b" * 128, "k1", labels={"site": "roof"})


def closed(count: int = 3) -> Engine:
    """Devices that wait for a window on a Sunday; it is a Friday. They have been looked at and wait in its line."""
    ids = [f"d{number}" for number in range(count)]
    engine = Engine(devices=devices_of(*ids, labels={"site": "roof"}), limits=Limits(allow_unsigned=True))
    engine.artifacts = {FIRMWARE.key: FIRMWARE}
    rollout = Rollout(maintenance_window="Sun 01:00-02:00")
    ota = Ota(artifact_name="fw", artifact_version="2")
    selector = Selector(percentage=100)
    engine.actions.append(action_of(type="ota", name="u", params="{}", ota=ota, selector=selector, rollout=rollout))
    for _ in range(3):
        engine.tick()
    return engine


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices of the targets at which dispatch has looked."""
    found: list[str] = []
    verdict = dispatch.verdict

    def noted(target, *arguments):  # type: ignore[no-untyped-def]
        found.append(target.device_id)
        return verdict(target, *arguments)

    monkeypatch.setattr(dispatch, "verdict", noted)
    return found


def test_a_closed_window_is_not_a_reason_to_look_at_its_targets(looks: list[str]) -> None:
    engine = closed()
    assert looks, "they were looked at before"
    looks.clear()
    for _ in range(5):
        engine.tick()
    assert looks == []
    engine.tick(after_s=1.75 * 24 * 3600)  # Sunday, 02:00.
    assert looks == []
    engine = closed()
    engine.tick(after_s=(1 * 24 + 17.5) * 3600)  # Sunday, 01:30.
    assert engine.sent() == ["d0", "d1", "d2"]


def test_a_tick_that_is_repeated_finds_every_target_again() -> None:
    engine = closed()
    state = engine.state
    engine.tick(after_s=(1 * 24 + 17.5) * 3600)
    first = engine.last
    engine.state, engine.now_us = state, engine.now_us - 1_000_000
    assert engine.tick().publishes == first.publishes


def test_a_device_that_reports_the_version_is_skipped_while_its_window_is_closed(looks: list[str]) -> None:
    engine = closed()
    looks.clear()
    engine.tick(engine.report("ONLINE", 1, device_id="d1", action_id="", attempt=0, version="2"))
    assert (engine.target("d1").state, looks) == (S.SKIPPED, ["d1"])


def test_a_device_whose_row_changes_is_judged_while_its_window_is_closed(looks: list[str]) -> None:
    engine = closed()
    looks.clear()
    engine.devices = {**engine.devices, "d2": Device("d2", "default", {"site": "yard"})}
    engine.tick()
    assert (engine.target("d2").state, looks) == (S.SKIPPED, ["d2"])


def test_another_artifact_is_judged_while_the_window_is_closed() -> None:
    engine = closed()
    other = replace(FIRMWARE, version="3")
    engine.artifacts = {other.key: other}
    engine.tick()
    assert {target.state for target in engine.state.targets["a1"].values()} == {S.SKIPPED}


def test_a_force_opens_the_window() -> None:
    engine = closed()
    engine.ask("force", device_id="d1")
    engine.tick()
    assert engine.sent() == ["d1"]
    engine.ask("force")
    engine.tick()
    assert engine.sent() == ["d1", "d0", "d2"]


def test_another_time_zone_of_a_device_is_seen_at_once() -> None:
    engine = closed()
    engine.tick(after_s=(1 * 24 + 16.5) * 3600)  # Sunday, 00:30.
    assert engine.sent() == []
    engine.devices = {**engine.devices, "d1": replace(engine.devices["d1"], time_zone="Europe/Berlin")}
    engine.tick()
    assert engine.sent() == ["d1"]
