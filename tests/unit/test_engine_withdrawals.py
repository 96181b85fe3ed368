"""Commands that nobody wants any more: no attempt follows a cancel, and each log that has one gets its cancel."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine import Engine, action_of, devices_of

from actions.engine import Action, Artifact, Device, Limits, Logs, Ota, Rollout, Selector, Served, TargetState, Timeouts

S = TargetState
ROOF, YARD = Served("roof", "log-roof"), Served("yard", "log-yard")
BOTH, ONE = Logs((ROOF, YARD)), Logs((ROOF,))
ROOF_AWAY = Logs((replace(ROOF, away=True), YARD))


def once_more(*, backoff_s: int = 0, queued_s: int = 10) -> Action:
    return action_of(
        selector=Selector(device_ids=("d1",)),
        rollout=Rollout(retries=1, retry_backoff_s=backoff_s),
        timeouts=Timeouts(queued_s=queued_s),
    )


def engine_of(*, logs: Logs = BOTH, action: Action | None = None) -> Engine:
    engine = Engine(devices=devices_of("d1"), logs=logs, limits=Limits(allow_unsigned=True))
    engine.actions.append(action or action_of())
    return engine


def online(engine: Engine, log_id: str, offset: int, **fields: object) -> None:
    about = {"action_id": "", "attempt": 0, "log_id": log_id, "boot": f"b{offset}"}
    engine.tick(engine.report("ONLINE", offset, **{**about, **fields}))


def in_log(engine: Engine, log_id: str) -> list[str]:
    return sorted(engine.contents.get(log_id, {}))


def test_a_cancel_that_times_out_starts_no_further_attempt() -> None:
    engine = engine_of(logs=ONE, action=once_more())
    engine.tick()
    engine.cancel(device_id="d1")
    engine.tick()
    assert engine.target().state is S.CANCELLING
    engine.tick(after_s=11)
    engine.tick()
    assert (engine.target().state, engine.target().attempt) == (S.TIMED_OUT, 1)
    assert in_log(engine, "log-roof") == ["a1/d1/1", "a1/d1/1/cancel"]
    assert engine.phase() == "ENDED"


def test_control_without_a_cancel_the_next_attempt_starts() -> None:
    engine = engine_of(logs=ONE, action=once_more())
    engine.tick()
    engine.tick(after_s=11)
    engine.tick()
    assert (engine.target().state, engine.target().attempt) == (S.QUEUED, 2)


@pytest.mark.parametrize("same_tick", [False, True])
def test_a_device_that_answers_its_cancel_with_a_failure_gets_no_further_attempt(same_tick: bool) -> None:
    engine = engine_of(logs=ONE, action=once_more())
    engine.tick()
    engine.cancel(device_id="d1")
    if not same_tick:
        engine.tick()
    engine.tick(engine.report("FAILED", 3, log_id="log-roof"))
    engine.tick(after_s=5)
    assert (engine.target().state, engine.target().attempt) == (S.FAILED, 1)


def test_a_device_that_has_left_gets_no_further_attempt() -> None:
    engine = engine_of(logs=ONE, action=once_more())
    engine.tick()
    engine.broker_up, engine.devices = False, devices_of("d2")
    engine.tick()
    assert engine.target().leaving
    engine.tick(engine.report("FAILED", 3, log_id="log-roof"))
    assert (engine.target().state, engine.target().attempt) == (S.FAILED, 1)
    engine.tick()
    assert engine.phase() == "ENDED"


def test_a_superseded_installation_does_not_come_back_behind_the_newer_one() -> None:
    def update(id_: str, version: str, *, queued_s: int, **fields: object) -> Action:
        ota = Ota(artifact_name="fw", artifact_version=version, supersede=id_ == "a2")
        chosen = Selector(device_ids=("d1",))
        times = Timeouts(queued_s=queued_s)
        return action_of(
            id_, type="ota", name="update", params="{}", selector=chosen, ota=ota, timeouts=times, **fields
        )

    again = Rollout(retries=1, retry_backoff_s=0)
    engine = engine_of(logs=ONE, action=update("a1", "1", queued_s=10, rollout=again))
    known = [Artifact("fw", version, "default", version * 64, 10, "b" * 128, "k1") for version in "12"]
    engine.artifacts = {one.key: one for one in known}
    online(engine, "log-roof", 1, version="0")
    engine.tick()
    engine.actions.append(update("a2", "2", queued_s=10_000))
    engine.tick()
    for _ in range(4):
        engine.tick(after_s=12)
    engine.tick(engine.report("SUCCEEDED", 9, log_id="log-roof", action_id="a2", version="2"))
    engine.tick(after_s=12)
    assert engine.published == ["a1/d1/1", "a1/d1/1/cancel", "a2/d1/1"]
    assert engine.target(action_id="a1").attempt == 1


WITH_CANCEL = ["a1/d1/1", "a1/d1/1/cancel"]


def test_a_cancel_that_waited_for_its_broker_also_reaches_the_log_that_the_device_left() -> None:
    engine = engine_of()
    online(engine, "log-roof", 1)
    engine.logs = ROOF_AWAY
    engine.cancel()
    engine.tick()
    online(engine, "log-yard", 2)
    assert (engine.target().state, engine.target().copies) == (S.CANCELLING, ("1/log-roof",))
    engine.logs = BOTH
    engine.tick()
    assert (in_log(engine, "log-roof"), in_log(engine, "log-yard")) == (WITH_CANCEL, ["a1/d1/1/cancel"])
    engine.tick(engine.report("CANCELLED", 3, log_id="log-yard"))
    assert (engine.target().state, engine.target().copies) == (S.CANCELLED, ())


def test_a_cancel_in_the_tick_of_a_move_also_reaches_the_log_that_the_device_left() -> None:
    engine = engine_of()
    online(engine, "log-roof", 1)
    engine.cancel()
    online(engine, "log-yard", 1)
    engine.tick()
    assert (in_log(engine, "log-roof"), in_log(engine, "log-yard")) == (WITH_CANCEL, ["a1/d1/1/cancel"])


def test_a_device_that_leaves_while_its_broker_is_away_does_not_find_its_command_there() -> None:
    engine = engine_of()
    online(engine, "log-roof", 1)
    engine.logs = ROOF_AWAY
    engine.devices = {"d1": Device("d1", "default", log="yard")}
    engine.cancel()
    engine.tick()
    engine.devices = devices_of("d2")
    engine.tick()
    assert (engine.target().state, engine.target().copies) == (S.REMOVED, ("1/log-roof",))
    engine.logs = BOTH
    engine.tick()
    assert (in_log(engine, "log-roof"), engine.target().copies) == (WITH_CANCEL, ())


def test_a_delivered_command_needs_no_cancel_in_the_log_that_the_device_left() -> None:
    engine = engine_of()
    online(engine, "log-roof", 1)
    engine.tick(engine.report("IN_PROGRESS", 2, log_id="log-roof"))
    engine.cancel()
    online(engine, "log-yard", 1)
    assert (in_log(engine, "log-roof"), in_log(engine, "log-yard")) == (["a1/d1/1"], ["a1/d1/1/cancel"])
    assert engine.target().copies == ()


def test_a_device_that_answers_before_the_broker_of_its_cancel_does_not_hide_the_log_that_it_left() -> None:
    engine = engine_of()
    online(engine, "log-roof", 1)
    engine.cancel()
    engine.broker_up = False
    online(engine, "log-yard", 1)
    assert [publish.log_id for publish in engine.last.publishes] == ["log-yard"]
    engine.broker_up = True
    engine.tick(engine.report("CANCELLED", 3, log_id="log-yard"))
    assert (engine.target().state, in_log(engine, "log-roof")) == (S.CANCELLED, WITH_CANCEL)


def test_an_attempt_that_timed_out_is_withdrawn_from_the_log_that_its_device_left() -> None:
    engine = engine_of(action=once_more())
    online(engine, "log-roof", 1)
    engine.logs = ROOF_AWAY
    engine.tick(after_s=12)
    online(engine, "log-yard", 1)
    engine.tick(engine.report("SUCCEEDED", 2, log_id="log-yard", attempt=2))
    assert (engine.target().state, engine.target().copies, engine.phase()) == (S.SUCCEEDED, ("1/log-roof",), "ENDED")
    engine.logs = BOTH
    engine.tick()
    assert (in_log(engine, "log-roof"), in_log(engine, "log-yard")) == (WITH_CANCEL, ["a1/d1/2"])
    assert engine.target().copies == ()


def test_with_one_broker_the_cancel_of_an_attempt_is_in_the_log_before_the_next_one() -> None:
    engine = engine_of(logs=ONE, action=once_more(backoff_s=5))
    engine.tick()
    engine.tick(after_s=11)
    engine.tick()
    assert engine.published == ["a1/d1/1"], "its success still counts"
    engine.tick(after_s=5)
    assert engine.published == ["a1/d1/1", "a1/d1/1/cancel", "a1/d1/2"]
    assert engine.target().copies == ()


def test_a_cancel_during_the_pause_before_an_attempt_reaches_the_one_that_timed_out() -> None:
    engine = engine_of(logs=ONE, action=once_more(backoff_s=300))
    engine.tick()
    engine.tick(after_s=11)
    engine.cancel()
    engine.tick()
    engine.tick()
    assert (engine.target().state, in_log(engine, "log-roof")) == (S.CANCELLED, WITH_CANCEL)


def test_a_success_of_an_attempt_that_timed_out_needs_no_cancel() -> None:
    engine = engine_of(logs=ONE, action=once_more(backoff_s=300))
    engine.tick()
    engine.tick(after_s=11)
    engine.tick(engine.report("SUCCEEDED", 3, log_id="log-roof"))
    engine.tick()
    assert (engine.target().state, engine.target().late, engine.published) == (S.SUCCEEDED, True, ["a1/d1/1"])


def test_a_retry_by_a_user_withdraws_the_attempt_that_timed_out_before() -> None:
    engine = engine_of(logs=ONE, action=action_of(timeouts=Timeouts(queued_s=10)))
    engine.tick()
    engine.tick(after_s=11)
    engine.ask("retry")
    engine.tick()
    engine.tick()
    assert engine.published == ["a1/d1/1", "a1/d1/1/cancel", "a1/d1/2"]


def test_a_superseded_update_does_not_come_back_with_its_device() -> None:
    """The label by which the older action selects was away while the newer one installed."""
    engine = engine_of(logs=ONE, action=None)
    engine.actions.clear()
    known = [Artifact("fw", version, "default", version * 64, 10, "b" * 128, "k1") for version in "12"]
    engine.artifacts = {one.key: one for one in known}
    roof = {"d1": Device("d1", "default", labels={"at": "roof"})}
    engine.devices, lasting = roof, Rollout(membership="dynamic")
    for id_, version, labels in (("a1", "1", {"at": "roof"}), ("a2", "2", {})):
        ota = Ota(artifact_name="fw", artifact_version=version, supersede=id_ == "a2")
        chosen = Selector(labels=labels) if labels else Selector(percentage=100)
        engine.actions.append(action_of(id_, type="ota", params="{}", selector=chosen, ota=ota, rollout=lasting))
        online(engine, "log-roof", int(version), version="0")
        engine.devices = devices_of("d1")
        engine.tick()
    engine.tick(engine.report("SUCCEEDED", 9, log_id="log-roof", action_id="a2", version="2"))
    engine.devices = roof
    engine.tick()
    engine.tick()
    assert engine.target(action_id="a2").state is S.SUCCEEDED
    assert engine.published == ["a1/d1/1", "a1/d1/1/cancel", "a2/d1/1"]


def test_a_copy_that_is_still_wanted_is_not_given_up() -> None:
    engine = engine_of(action=once_more(queued_s=10))
    online(engine, "log-roof", 1)
    engine.devices = {"d1": Device("d1", "default", log="nowhere")}
    engine.tick(after_s=11)
    assert (engine.target().state, engine.target().copies) == (S.PENDING, ("1/log-roof",))
    engine.tick(after_s=31 * 24 * 3600)
    engine.tick()
    assert engine.target().copies == ("1/log-roof",)
    engine.cancel()
    engine.tick()
    assert in_log(engine, "log-roof") == WITH_CANCEL


def test_a_success_through_one_log_does_not_say_that_the_command_was_taken_from_it() -> None:
    """The device took the first attempt from the roof and moved. Without journal it would carry out the other one."""
    engine = engine_of(action=once_more(backoff_s=5))
    online(engine, "log-roof", 1)
    online(engine, "log-yard", 1)
    engine.logs = ROOF_AWAY
    engine.tick(after_s=11)
    assert (engine.target().attempt, set(engine.target().copies)) == (2, {"1/log-roof", "1/log-yard"})
    engine.tick(engine.report("SUCCEEDED", 2, log_id="log-yard"))
    assert engine.target().state is S.SUCCEEDED
    engine.logs = BOTH
    engine.tick()
    assert "a1/d1/1/cancel" in in_log(engine, "log-yard")
    assert "a1/d1/1/cancel" in in_log(engine, "log-roof")
    assert engine.target().copies == ()


@pytest.mark.parametrize("states", [["SUCCEEDED"], ["ACCEPTED", "FAILED"]])
def test_without_a_receipt_both_logs_get_the_cancel(states: list[str]) -> None:
    """The log with the receipt may be gone. The device may have taken either copy, and may lose its journal."""
    engine = engine_of()
    online(engine, "log-roof", 1)
    online(engine, "log-yard", 1)
    for offset, state in enumerate(states):
        engine.tick(engine.report(state, offset + 2, log_id="log-yard"))
    assert (in_log(engine, "log-roof"), in_log(engine, "log-yard")) == (WITH_CANCEL, WITH_CANCEL)
    assert engine.target().copies == ()


def test_a_receipt_after_the_end_saves_the_log_that_it_names_the_cancel() -> None:
    engine = engine_of()
    online(engine, "log-roof", 1)
    online(engine, "log-yard", 1)
    place = engine.target().offset
    engine.logs = Logs((replace(ROOF, away=True), replace(YARD, away=True)))
    engine.tick(engine.report("SUCCEEDED", 2, log_id="log-yard"))
    assert set(engine.target().copies) == {"1/log-roof", "1/log-yard"}
    engine.tick(engine.receipt(50, log_id="log-yard", command_partition=2, command_offset=place))
    assert engine.target().copies == ("1/log-roof",)


@pytest.mark.parametrize("states", [["ACCEPTED"], ["ACCEPTED", "SUCCEEDED"]])
def test_a_receipt_that_is_read_after_a_status_still_names_the_copy_that_was_taken(states: list[str]) -> None:
    engine = engine_of()
    online(engine, "log-roof", 1)
    place = engine.target().offset
    online(engine, "log-yard", 1)
    engine.logs = Logs((replace(ROOF, away=True), replace(YARD, away=True)))
    for offset, state in enumerate(states):
        engine.tick(engine.report(state, offset + 2, log_id="log-roof"))
    before = engine.target()
    receipt = engine.receipt(50, log_id="log-roof", command_partition=2, command_offset=place)
    engine.tick(receipt)
    taken = engine.target()
    assert (taken.state, taken.since_us) == (before.state, before.since_us)
    assert (taken.log_id, taken.offset, taken.copies) == ("log-roof", place, ("1/log-yard",))
    engine.tick(receipt)
    assert engine.target() == taken, "a repeated receipt changes nothing"
    engine.logs = BOTH
    if states[-1] != "SUCCEEDED":
        engine.tick(engine.report("SUCCEEDED", 9, log_id="log-roof"))
    engine.tick()
    assert (in_log(engine, "log-roof"), in_log(engine, "log-yard")) == (["a1/d1/1"], WITH_CANCEL)


def test_a_command_for_the_only_broker_names_its_log_before_the_broker_answers() -> None:
    """Its answer may be lost, and the box replaced: only this log can have the command."""
    engine = engine_of(logs=ONE, action=once_more())
    engine.broker_up = False
    engine.tick()
    assert (engine.target().outbox, engine.target().log_id) == ("command", "log-roof")
    engine.tick(after_s=11)
    assert engine.target().copies == ("1/log-roof",)


@pytest.mark.parametrize("end", ["REMOVED", "CANCELLED"])
def test_a_device_that_takes_what_nobody_wants_still_gets_the_cancel(end: str) -> None:
    """It found the command in the log before its cancel: the receipt says that it has begun."""
    engine = engine_of()
    online(engine, "log-roof", 1)
    place = engine.target().offset
    engine.logs = ROOF_AWAY
    engine.devices = {"d1": Device("d1", "default", log="yard")}
    engine.cancel()
    engine.tick()
    if end == "REMOVED":
        engine.devices = devices_of("d2")
    else:
        engine.ask("force")
    engine.tick()
    assert (engine.target().state.value, engine.target().copies) == (end, ("1/log-roof",))
    engine.tick(engine.receipt(50, log_id="log-roof", command_partition=2, command_offset=place))
    assert (engine.target().receipt_log_id, engine.target().copies) == ("log-roof", ("1/log-roof",))
    engine.logs = BOTH
    engine.tick()
    assert in_log(engine, "log-roof") == WITH_CANCEL
