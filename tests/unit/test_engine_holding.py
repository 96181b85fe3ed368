"""What disappears from a table all at once, as during a DELETE and an INSERT, is held and not carried out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine import Engine, action_of, devices_of

from actions.engine import (
    Artifact,
    Device,
    DeviceTable,
    Limits,
    Logs,
    Ota,
    Report,
    Rollout,
    Selector,
    Served,
    TargetState,
    Timeouts,
)

S = TargetState
EVERYBODY = Selector(percentage=100)
ONE = Logs((Served("roof", "log-roof"),))
AWAY = Logs((Served("roof", "log-roof", away=True),))
FLEET = tuple(f"d{number:03}" for number in range(100))


def sending(count: int = 100, *, waits: int = 0, **fields: object) -> Engine:
    """All devices but the last `waits` have their commands."""
    engine = Engine(devices=devices_of(*FLEET[:count]), limits=Limits(publish_max=count - waits), broker_up=False)
    engine.actions.append(action_of(**{"selector": EVERYBODY, **fields}))
    engine.tick()
    assert len(engine.last.publishes) == count - waits
    engine.broker_up = waits == 0
    engine.tick()
    return engine


def states(engine: Engine) -> set[str]:
    return {target.state.value for target in engine.state.targets["a1"].values()}


def held(engine: Engine) -> str | None:
    return engine.state.actions["a1"].held


@pytest.mark.parametrize("membership", ["static", "dynamic"])
def test_a_table_that_is_empty_for_a_moment_removes_nobody(membership: str) -> None:
    engine = sending(rollout=Rollout(membership=membership))
    before = engine.state.targets["a1"]
    engine.devices = devices_of()
    engine.tick()
    said = "their removal is held: 100 of 100 open devices are no longer in the table devices"
    assert (held(engine) or "").startswith(said)
    assert engine.said() == [held(engine)]
    assert engine.state.actions["a1"].message.startswith(said)
    engine.tick()
    assert (engine.said(), engine.last.publishes) == ([], ())
    engine.devices = devices_of(*FLEET)
    engine.tick()
    assert engine.state.targets["a1"] == before
    assert (held(engine), engine.said()) == (None, [])
    assert engine.state.actions["a1"].message == "0 of 100 devices are done"
    assert not [key for key in engine.published if key.endswith("cancel")]


def test_a_table_that_is_empty_for_a_moment_does_not_end_an_action_for_one_device() -> None:
    engine = sending(1)
    engine.devices = {}
    engine.tick()
    assert (states(engine), engine.phase()) == ({"QUEUED"}, "RUNNING")


def test_rows_of_another_tenant_do_not_make_an_empty_table_full() -> None:
    engine = sending(1)
    engine.devices = {"x": Device("x", "other")}
    engine.tick()
    assert states(engine) == {"QUEUED"}


@pytest.mark.parametrize(
    ("count", "leave", "is_held"), [(100, 10, False), (100, 11, True), (8, 5, False), (8, 6, True)]
)
def test_ordinary_removals_are_carried_out_at_once(count: int, leave: int, is_held: bool) -> None:
    engine = sending(count)
    engine.devices = devices_of(*FLEET[leave:count])
    engine.tick()
    removed = sum(target.leaving for target in engine.state.targets["a1"].values())
    assert (removed, held(engine) is not None) == ((0, True) if is_held else (leave, False))


def test_a_limit_of_100_percent_holds_nothing() -> None:
    engine = sending()
    engine.limits = Limits(removal_max_percentage=100)
    engine.devices = devices_of()
    engine.tick()
    engine.tick()
    assert states(engine) == {"REMOVED"}


def test_retired_devices_are_removed_however_many() -> None:
    """Somebody has said so, row by row."""
    engine = sending()
    engine.devices = DeviceTable(devices_of(*FLEET[90:]), retired=frozenset(FLEET[:80]))
    engine.tick()
    targets = engine.state.targets["a1"].values()
    assert sum(target.leaving for target in targets) == 90, "ten rows that are gone are no mass"
    engine = sending()
    engine.devices = DeviceTable({}, retired=frozenset(FLEET[:80]))
    engine.tick()
    assert [target.device_id for target in engine.state.targets["a1"].values() if target.leaving] == list(FLEET[:80])
    assert (held(engine) or "").startswith("their removal is held: 20 of 100")


def test_a_held_device_gets_no_command() -> None:
    engine = sending(30, waits=10)
    engine.devices, engine.limits, engine.broker_up = devices_of(*FLEET[:10]), Limits(), True
    engine.tick()
    engine.tick()
    assert held(engine) is not None
    assert len(engine.sent()) == 20
    engine.devices = devices_of(*FLEET[:30])
    engine.tick()
    assert len(engine.sent()) == 30


def test_a_dynamic_action_holds_a_selection_that_is_suddenly_empty_and_sends_it_nothing() -> None:
    engine = Engine(devices=devices_of(*FLEET[:20], labels={"site": "roof"}), limits=Limits(publish_max=10))
    engine.broker_up = False
    chosen, rollout = Selector(labels={"site": "roof"}), Rollout(membership="dynamic")
    engine.actions.append(action_of(selector=chosen, rollout=rollout))
    engine.tick()
    engine.devices = devices_of(*FLEET[:20], labels={"site": "cellar"})
    engine.broker_up = True
    engine.tick()
    engine.tick()
    assert (len(engine.sent()), states(engine)) == (10, {"QUEUED", "PENDING"})
    engine.devices = devices_of(*FLEET[:20], labels={"site": "roof"})
    engine.tick()
    assert (len(engine.sent()), states(engine)) == (20, {"QUEUED"})


def test_a_user_confirms_that_devices_have_left() -> None:
    engine = sending()
    engine.devices = devices_of(*FLEET[:40])
    engine.tick()
    engine.ask("remove")
    engine.tick()
    assert engine.said() == ["remove: 60 devices are removed"]
    engine.tick()
    assert sum(target.state is S.REMOVED for target in engine.state.targets["a1"].values()) == 60
    assert (held(engine), engine.phase()) == (None, "RUNNING")


def test_a_confirmation_is_for_what_had_been_said_before() -> None:
    """Otherwise it would remove all devices of a table that is empty just when the engine reads it."""
    engine = sending()
    engine.devices = devices_of(*FLEET[:40])
    engine.tick()
    engine.ask("remove")
    engine.devices = {}
    engine.tick()
    targets = engine.state.targets["a1"].values()
    assert sum(target.leaving for target in targets) == 60
    assert (held(engine) or "").startswith("their removal is held: 40 of")


def test_a_confirmation_without_a_held_removal_is_refused() -> None:
    engine = sending(3)
    engine.ask("remove")
    engine.tick()
    assert engine.said() == ["refused: the removal of no device is held"]
    engine.ask("remove", device_id=FLEET[0])
    engine.tick()
    assert engine.said() == ["refused: remove applies to the whole action: leave device_id null"]


def test_a_restarted_engine_still_holds_and_says_nothing_twice() -> None:
    engine = sending()
    engine.devices = devices_of(*FLEET[:40])
    engine.tick()
    engine.state = replace(engine.state, devices=None, following=type(engine.state.following)())
    engine.tick()
    assert (engine.said(), states(engine)) == ([], {"QUEUED"})
    engine.ask("remove")
    engine.tick()
    assert sum(target.leaving for target in engine.state.targets["a1"].values()) == 60


def test_a_held_device_still_times_out_and_reports() -> None:
    engine = sending(10, timeouts=Timeouts(queued_s=100))
    engine.devices = {}
    engine.tick(engine.report("SUCCEEDED", 5, device_id=FLEET[0]))
    engine.tick(after_s=200)
    assert states(engine) == {"SUCCEEDED", "TIMED_OUT"}
    assert (engine.phase(), held(engine)) == ("ENDED", None)


@pytest.mark.parametrize("is_known", [True, False])
def test_what_a_device_reports_while_its_row_is_away_is_not_lost(is_known: bool) -> None:
    engine = sending(1)
    about = {"device_id": FLEET[0], "action_id": "", "attempt": 0}
    if is_known:
        engine.tick(engine.report("ONLINE", 1, **about, version="1"))
    engine.devices = {}
    engine.tick(engine.report("ONLINE", 2, **about, version="2"))
    engine.tick(engine.report("ONLINE", 3, device_id="stranger", action_id="", attempt=0, version="2"))
    assert {id_: fact.version for id_, fact in engine.state.facts.items()} == {FLEET[0]: "2"}


def test_a_held_device_is_not_sent_to_another_log() -> None:
    """Without its row the engine no longer knows the log that somebody gave it there."""
    yard = Served("yard", "log-yard")
    engine = Engine(devices={"d1": Device("d1", "default", log="roof")}, logs=Logs((*ONE.brokers, yard)))
    engine.actions.append(action_of())
    engine.tick(engine.report("ONLINE", 1, action_id="", attempt=0, log_id="log-yard"))
    assert engine.target().log_id == "log-roof"
    engine.devices = {}
    engine.tick()
    engine.tick()
    assert (engine.target().log_id, engine.published) == ("log-roof", ["a1/d1/1"])


def test_a_device_of_a_static_action_that_comes_back_can_be_retried() -> None:
    engine = sending(3)
    engine.devices = devices_of(*FLEET[1:3])
    engine.tick()
    engine.tick()
    assert engine.target(FLEET[0]).state is S.REMOVED
    engine.ask("retry", device_id=FLEET[0])
    engine.tick()
    assert engine.said() == ["refused: device d000 is not in the table devices: no command can reach it"]
    engine.devices = devices_of(*FLEET[:3])
    engine.ask("retry", device_id=FLEET[0])
    engine.tick()
    assert (engine.target(FLEET[0]).state, engine.target(FLEET[0]).attempt) == (S.QUEUED, 2)


def test_a_device_that_a_dynamic_action_does_not_select_cannot_be_retried() -> None:
    engine = Engine(devices=devices_of("d1", "d2", labels={"site": "roof"}))
    chosen, rollout = Selector(labels={"site": "roof"}), Rollout(membership="dynamic")
    engine.actions.append(action_of(selector=chosen, rollout=rollout))
    engine.tick()
    engine.devices = {**devices_of("d1"), **devices_of("d2", labels={"site": "roof"})}
    engine.tick()
    engine.tick()
    assert engine.target().state is S.REMOVED
    engine.ask("retry", device_id="d1")
    engine.tick()
    said = "refused: device d1 is not among those that the action selects: no command can reach it"
    assert engine.said() == [said]


FIRMWARE = Artifact("fw", "2", "default", "a" * 64, 10, "b" * 128, "k1")
OTHER = Artifact("fw", "3", "default", "c" * 64, 10, "b" * 128, "k1")


def updating(*, broker_up: bool) -> Engine:
    engine = Engine(devices=devices_of("d1", "d2"), logs=ONE, limits=Limits(allow_unsigned=True, publish_max=1))
    engine.artifacts, engine.broker_up = {FIRMWARE.key: FIRMWARE}, broker_up
    ota = Ota(artifact_name="fw", artifact_version="2")
    engine.actions.append(action_of(type="ota", name="update", params="{}", selector=EVERYBODY, ota=ota))
    engine.tick(online(engine, "d1", 1), online(engine, "d2", 2))
    return engine


def online(engine: Engine, device_id: str, offset: int) -> Report:
    about = {"action_id": "", "attempt": 0, "log_id": "log-roof", "version": "1"}
    return engine.report("ONLINE", offset, device_id=device_id, **about)


@pytest.mark.parametrize("broker_up", [True, False])
def test_a_table_of_artifacts_that_is_empty_for_a_moment_skips_and_cancels_nothing(broker_up: bool) -> None:
    engine = updating(broker_up=broker_up)
    (first,) = engine.last.publishes
    engine.artifacts, engine.broker_up = {}, True
    engine.tick()
    assert {target.state for target in engine.state.targets["a1"].values()} <= {S.PENDING, S.QUEUED}
    said = "its commands are held: the table artifacts has no artifact of tenant default any more"
    assert (held(engine) or "").startswith(said)
    assert engine.said() == [held(engine)]
    assert engine.last.publishes == (), "without the row, a command would name an image without its checksum"
    engine.artifacts = {FIRMWARE.key: FIRMWARE}
    engine.tick()
    engine.tick()
    assert (held(engine), sorted(engine.published)) == (None, ["a1/d1/1", "a1/d2/1"])
    assert engine.contents["log-roof"][first.idempotency_key] == first.value


def test_an_artifact_that_is_taken_out_alone_is_not_held() -> None:
    engine = updating(broker_up=False)
    engine.artifacts, engine.broker_up = {OTHER.key: OTHER}, True
    engine.tick()
    assert (engine.target("d1").state, engine.target("d2").state) == (S.CANCELLING, S.SKIPPED)
    assert held(engine) is None


def returning() -> Engine:
    """A dynamic action; the device has left and come back while its broker was away."""
    engine = Engine(devices=devices_of("d1", "d2"), logs=ONE)
    engine.actions.append(action_of(selector=EVERYBODY, rollout=Rollout(membership="dynamic")))
    engine.tick()
    engine.broker_up = False
    engine.devices = devices_of("d2")
    engine.tick()
    engine.devices = devices_of("d1", "d2")
    engine.tick()
    engine.tick()
    assert (engine.target().state, engine.published) == (S.CANCELLING, ["a1/d1/1", "a1/d2/1"])
    return engine


def test_a_device_that_is_back_before_its_cancel_is_in_the_log_gets_its_attempt_after_it() -> None:
    engine = returning()
    engine.broker_up = True
    engine.tick()
    engine.tick()
    assert (engine.target().state, engine.published[2:]) == (S.QUEUED, ["a1/d1/1/cancel", "a1/d1/2"])


def test_a_device_that_leaves_again_before_its_cancel_is_in_the_log_gets_nothing_more() -> None:
    engine = returning()
    engine.devices = devices_of("d2")
    engine.broker_up = True
    engine.tick()
    engine.tick()
    assert (engine.target().state, engine.published[2:]) == (S.REMOVED, ["a1/d1/1/cancel"])


def test_a_device_that_is_back_gets_nothing_more_of_a_cancelled_action() -> None:
    engine = returning()
    engine.cancel()
    engine.broker_up = True
    engine.tick()
    engine.tick()
    assert (engine.target().state, engine.published[2:]) == (S.REMOVED, ["a1/d1/1/cancel", "a1/d2/1/cancel"])


def test_a_device_that_is_back_gets_its_attempt_after_a_restart_too() -> None:
    engine = returning()
    engine.broker_up = True
    engine.tick()
    engine.state = replace(engine.state, devices=None, following=type(engine.state.following)())
    engine.tick()
    assert engine.target().attempt == 2
