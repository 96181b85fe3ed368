"""Endings that are true: what a rollout may count on, and what a request may not revive. The pure function only."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.engine import Engine, action_of, devices_of

from actions.engine import Artifact, Limits, Logs, Ota, Report, Rollout, Selector, Served, TargetState, Timeouts

S = TargetState
EVERYBODY = Selector(percentage=100)
ONE = Logs((Served("roof", "log-roof"),))
AWAY = Logs((Served("roof", "log-roof", away=True),))
WITH_CANCEL = ["a1/d1/1", "a1/d1/1/cancel"]


def fleet(count: int) -> tuple[str, ...]:
    return tuple(f"d{number:03}" for number in range(count))


def rolling(count: int, *, waves: list[dict[str, object]] | None = None) -> Engine:
    """An engine after its first tick, with one action for `count` devices."""
    engine = Engine(devices=devices_of(*fleet(count)))
    rollout = Rollout(waves=None if waves is None else json.dumps(waves))
    engine.actions.append(action_of(selector=EVERYBODY, created_by="ann", rollout=rollout))
    engine.tick()
    return engine


def test_an_action_may_be_inserted_together_with_the_one_it_waits_for() -> None:
    engine = Engine(devices=devices_of("d1"))
    chain = [("a1", ("b1",)), ("b1", ("a2", "c1")), ("a2", ("c1",)), ("c1", ())]
    engine.actions += [action_of(id_, rollout=Rollout(depends_on=needed)) for id_, needed in chain]
    engine.tick()
    assert {id_: engine.phase(id_) for id_, _ in chain} == dict.fromkeys(("a1", "b1", "a2", "c1"), "RUNNING")
    assert engine.published == ["c1/d1/1"]


def test_actions_that_wait_for_each_other_do_not_hold_up_others() -> None:
    engine = Engine(devices=devices_of("d1"))
    circle = {"a1": ("a2",), "a2": ("a3",), "a3": ("a1",), "a4": ()}
    engine.actions += [action_of(id_, rollout=Rollout(depends_on=needed)) for id_, needed in circle.items()]
    engine.tick()
    assert engine.phase("a3") == "REFUSED"
    assert "depends_on names action a1" in engine.state.actions["a3"].message
    assert engine.published == ["a4/d1/1"]


@pytest.mark.parametrize("share", [1, 100])
def test_a_canary_whose_only_device_was_skipped_shows_nothing(share: float) -> None:
    wave = {"percentage": 10, "success_percentage": share}
    engine = rolling(10, waves=[wave, {"percentage": 100}])
    (canary,) = engine.sent()
    engine.ask("cancel", device_id=canary)
    engine.tick()
    engine.tick(engine.report("CANCELLED", 900, device_id=canary))
    assert engine.target(canary).state is S.CANCELLED
    assert (engine.phase(), len(engine.sent())) == ("WAITING_APPROVAL", 1)
    engine.ask("approve", by="bob")
    engine.tick()
    assert len(engine.sent()) == 10


def test_a_wave_without_success_asks_for_none_of_devices_that_left() -> None:
    engine = rolling(10, waves=[{"percentage": 10, "success_percentage": 0}, {"percentage": 100}])
    assert len(engine.sent()) == 10


@pytest.mark.parametrize("device_id", ["x/y", "nobody"])
def test_retry_of_a_device_that_no_command_can_reach_is_refused(device_id: str) -> None:
    engine = Engine(devices=devices_of("d1", "x/y"))
    engine.actions.append(action_of(selector=Selector(device_ids=("d1", device_id))))
    engine.tick()
    assert engine.target(device_id).state is S.SKIPPED
    engine.ask("retry", device_id=device_id)
    engine.tick()
    (said,) = engine.said()
    assert said.startswith("refused: ")
    assert device_id in said
    assert said.endswith("no command can reach it")
    assert engine.target(device_id).state is S.SKIPPED
    assert engine.published == ["a1/d1/1"]


def test_retry_of_all_leaves_the_devices_that_have_left() -> None:
    engine = rolling(3)
    engine.tick(*(engine.report("FAILED", number, device_id=id_) for number, id_ in enumerate(fleet(3), 10)))
    engine.devices = devices_of("d000", "d001")
    engine.tick()
    engine.ask("retry")
    engine.tick()
    (said,) = engine.said()
    assert said == ("retry: 2 devices get a new attempt; left as they ended, because no command can reach them: 1")
    assert [engine.target(id_).attempt for id_ in fleet(3)] == [2, 2, 1]


def timing_out(**fields: object) -> Engine:
    """An engine whose only target has 10 s for each step, and its command in the log of the only broker."""
    engine = Engine(devices=devices_of("d1"), logs=ONE)
    times = Timeouts(queued_s=10, delivered_s=10, in_progress_s=10, step_s=10)
    engine.actions.append(action_of(**{"timeouts": times, **fields}))
    engine.tick()
    assert engine.published == ["a1/d1/1"]
    return engine


def seen(engine: Engine, state: str, offset: int) -> Report:
    return engine.report(state, offset, log_id="log-roof")


@pytest.mark.parametrize("before", ["QUEUED", "DELIVERED", "ACCEPTED", "IN_PROGRESS"])
def test_a_command_that_timed_out_is_withdrawn(before: str) -> None:
    """The log keeps it for weeks: a device that comes back would carry it out, long after everybody gave it up."""
    engine = timing_out()
    if before == "DELIVERED":
        offset = engine.target().offset
        engine.tick(engine.receipt(1, log_id="log-roof", command_partition=2, command_offset=offset))
    elif before != "QUEUED":
        engine.tick(seen(engine, before, 1))
    assert engine.target().state.value == before
    engine.tick(after_s=11)
    engine.tick()
    engine.tick()
    assert (engine.target().state, engine.target().copies, engine.phase()) == (S.TIMED_OUT, (), "ENDED")
    assert engine.published == WITH_CANCEL


def test_a_deadline_withdraws_what_is_in_the_log_or_owed_to_it() -> None:
    for broker_up in (True, False):
        engine = Engine(devices=devices_of("d1"), logs=ONE, broker_up=broker_up)
        engine.actions.append(action_of(deadline_us=engine.now_us + 10_000_000))
        engine.tick()
        engine.tick(after_s=11)
        assert engine.target().state is S.TIMED_OUT
        engine.broker_up = True
        engine.tick()
        assert engine.published[-1] == "a1/d1/1/cancel"


def test_a_deadline_does_not_drop_a_cancel_that_waits_for_its_broker() -> None:
    engine = timing_out(deadline_us=2_000_000_000_000_000)
    engine.logs = AWAY
    engine.cancel(device_id="d1")
    engine.tick()
    engine.now_us = 2_000_000_000_000_000
    engine.tick()
    assert (engine.target().state, engine.published) == (S.TIMED_OUT, ["a1/d1/1"])
    engine.logs = ONE
    engine.tick()
    assert engine.published == WITH_CANCEL


@pytest.mark.parametrize(("answer", "end"), [("SUCCEEDED", S.SUCCEEDED), ("CANCELLED", S.TIMED_OUT)])
def test_the_answer_to_a_withdrawal_changes_the_end_only_if_it_succeeded(answer: str, end: TargetState) -> None:
    engine = timing_out()
    engine.tick(after_s=11)
    engine.tick()
    engine.tick(seen(engine, answer, 5))
    engine.tick()
    assert (engine.target().state, engine.published) == (end, WITH_CANCEL)


def test_a_withdrawal_waits_for_a_broker_that_is_away() -> None:
    engine = timing_out()
    engine.logs = AWAY
    engine.tick(after_s=11)
    engine.tick(after_s=3600)
    assert (engine.target().copies, engine.published) == (("1/log-roof",), ["a1/d1/1"])
    engine.logs = ONE
    engine.tick()
    engine.tick()
    assert (engine.target().copies, engine.published) == ((), WITH_CANCEL)


def test_what_was_not_sent_needs_no_withdrawal() -> None:
    engine = Engine(devices=devices_of("d1"), logs=ONE)
    rollout = Rollout(not_before_us=engine.now_us + 3_600_000_000)
    engine.actions.append(action_of(deadline_us=engine.now_us + 3_610_000_000, rollout=rollout))
    engine.tick()
    engine.now_us += 3_620_000_000
    engine.tick()
    engine.tick()
    assert (engine.target().state, engine.published) == (S.TIMED_OUT, [])


def failing(*, waves: list[dict[str, object]] | None = None, abort: float | None = 10) -> Engine:
    """An engine with a retry without pause, for 10 devices."""
    engine = Engine(devices=devices_of(*fleet(10)))
    text = None if waves is None else json.dumps(waves)
    rollout = Rollout(waves=text, retries=2, retry_backoff_s=0, abort_percentage=abort, abort_min_reported=5)
    engine.actions.append(action_of(selector=EVERYBODY, rollout=rollout))
    engine.tick()
    return engine


def answers(engine: Engine, state: str, device_ids: tuple[str, ...], offset: int) -> None:
    attempts = {id_: engine.target(id_).attempt for id_ in device_ids}
    reports = [
        engine.report(state, offset + number, device_id=id_, attempt=attempts[id_])
        for number, id_ in enumerate(device_ids)
    ]
    engine.tick(*reports)


def test_retries_do_not_hide_errors_from_an_abort() -> None:
    engine = failing()
    answers(engine, "FAILED", fleet(10)[:5], 10)
    assert engine.state.actions["a1"].stopped == "aborted: 5 of 5 devices ended in error, more than 10 %"
    assert "a1/d000/2" not in engine.published


def test_retries_do_not_hide_errors_of_a_wave_either() -> None:
    waves: list[dict[str, object]] = [
        {"percentage": 50, "error_percentage": 50, "min_reported": 3},
        {"percentage": 100},
    ]
    engine = failing(waves=waves, abort=None)
    answers(engine, "FAILED", tuple(engine.sent()[:3]), 10)
    stopped = engine.state.actions["a1"].stopped
    assert stopped == "aborted: 3 of 3 devices of wave 1 ended in error, more than 50 %"


def test_a_device_that_succeeds_at_its_second_attempt_is_no_error_any_more() -> None:
    engine = failing()
    answers(engine, "FAILED", fleet(1), 10)
    answers(engine, "SUCCEEDED", fleet(1), 30)
    assert (engine.target("d000").state, engine.target("d000").attempt) == (S.SUCCEEDED, 2)
    answers(engine, "SUCCEEDED", fleet(10)[1:], 50)
    assert (engine.phase(), engine.state.actions["a1"].stopped) == ("ENDED", None)


def test_a_retry_of_a_device_without_an_error_is_no_error() -> None:
    engine = failing(abort=0)
    engine.ask("cancel", device_id="d000")
    engine.tick()
    engine.tick(engine.report("CANCELLED", 5, device_id="d000"))
    engine.ask("retry", device_id="d000")
    engine.tick()
    assert (engine.target("d000").attempt, engine.target("d000").erred) == (2, False)
    answers(engine, "SUCCEEDED", fleet(10)[1:], 10)
    answers(engine, "SUCCEEDED", fleet(1), 50)
    assert (engine.phase(), engine.state.actions["a1"].stopped) == ("ENDED", None)


def updating(mode: str = "forced") -> Engine:
    """An update whose first attempt took too long: the second one is in the log, the device is busy with the first."""
    engine = Engine(devices=devices_of("d1"), logs=ONE, limits=Limits(allow_unsigned=True))
    firmware = Artifact("fw", "2", "default", "a" * 64, 10, "b" * 128, "k1")
    engine.artifacts = {firmware.key: firmware}
    ota = Ota(artifact_name="fw", artifact_version="2", mode=mode)
    times, again = Timeouts(queued_s=10, in_progress_s=10), Rollout(retries=1, retry_backoff_s=0)
    engine.actions.append(action_of(type="ota", name="update", params="{}", ota=ota, timeouts=times, rollout=again))
    engine.tick(engine.report("ONLINE", 1, action_id="", attempt=0, log_id="log-roof", version="1"))
    engine.tick(engine.report("IN_PROGRESS", 2, log_id="log-roof"))
    engine.tick(after_s=11)
    engine.tick()
    assert (engine.target().state, engine.target().attempt) == (S.QUEUED, 2)
    return engine


@pytest.mark.parametrize("answer", ["IN_PROGRESS", "FAILED", "REJECTED", None])
def test_an_update_that_took_longer_than_its_attempt_ends_as_the_success_it_is(answer: str | None) -> None:
    engine = updating()
    if answer is not None:
        busy = "another update is in progress"
        engine.tick(engine.report(answer, 3, attempt=2, log_id="log-roof", message=busy, version="1"))
    engine.tick(engine.report("SUCCEEDED", 4, attempt=1, log_id="log-roof", version="2"))
    engine.tick()
    target = engine.target()
    assert (target.state, target.late, engine.phase()) == (S.SUCCEEDED, True, "ENDED")
    assert "a1/d1/2/cancel" in engine.published


@pytest.mark.parametrize(("version", "mode"), [("1", "forced"), (None, "forced"), ("2", "download_only")])
def test_without_the_proven_version_only_the_newest_attempt_counts(version: str | None, mode: str) -> None:
    engine = updating(mode)
    engine.tick(engine.report("REJECTED", 3, attempt=2, log_id="log-roof"))
    engine.tick(engine.report("SUCCEEDED", 4, attempt=1, log_id="log-roof", version=version))
    assert engine.target().state is S.REJECTED


@pytest.mark.parametrize("asked", ["cancel", "nothing"])
def test_a_success_of_an_earlier_attempt_does_not_undo_a_cancel(asked: str) -> None:
    engine = updating()
    if asked == "cancel":
        engine.cancel(device_id="d1")
        engine.tick()
        engine.tick(engine.report("CANCELLED", 3, attempt=2, log_id="log-roof"))
    engine.tick(engine.report("SUCCEEDED", 4, attempt=1, log_id="log-roof", version="2"))
    assert engine.target().state is (S.CANCELLED if asked == "cancel" else S.SUCCEEDED)


@pytest.mark.parametrize("broker_up", [True, False])
@pytest.mark.parametrize(("version", "state"), [("2", S.SUCCEEDED), ("1", S.CANCELLING)])
def test_a_proven_success_of_an_earlier_attempt_is_the_answer_to_a_cancel(
    version: str, state: S, broker_up: bool
) -> None:
    engine = updating()
    engine.broker_up = broker_up
    engine.cancel(device_id="d1")
    engine.tick()
    assert engine.target().state is S.CANCELLING
    engine.tick(engine.report("SUCCEEDED", 4, attempt=1, log_id="log-roof", version=version))
    assert engine.target().state is state
    engine.broker_up = True
    engine.tick()
    engine.tick()
    assert "a1/d1/2/cancel" in engine.published


def test_an_approval_of_one_wave_does_not_open_the_gate_after_it() -> None:
    gate = {"approve": True, "success_percentage": 100}
    waves: list[dict[str, object]] = [{"percentage": 10, **gate}, {"percentage": 50, **gate}, {"percentage": 100}]
    engine = rolling(10, waves=waves)
    answers(engine, "SUCCEEDED", tuple(engine.sent()), 10)
    assert engine.phase() == "WAITING_APPROVAL"
    engine.ask("approve", by="bob", wave=3)
    engine.tick()
    assert engine.said()[0] == "refused: wave 3 does not wait for approval; wave 2 does"
    engine.ask("approve", by="bob", wave=2)
    engine.tick()
    assert (engine.phase(), len(engine.sent())) == ("RUNNING", 5)
    answers(engine, "SUCCEEDED", tuple(engine.sent()[1:]), 30)
    assert engine.phase() == "WAITING_APPROVAL"
    engine.ask("approve", by="eve", wave=2)
    engine.tick()
    assert (engine.phase(), len(engine.sent())) == ("WAITING_APPROVAL", 5)
    engine.ask("approve", by="eve")
    engine.tick()
    assert len(engine.sent()) == 10


def dynamic() -> Engine:
    """A dynamic action for everybody; `d1` has its command."""
    engine = Engine(devices=devices_of("d1", "d2"), logs=ONE)
    engine.actions.append(action_of(selector=EVERYBODY, rollout=Rollout(membership="dynamic")))
    engine.tick()
    assert engine.published == ["a1/d1/1", "a1/d2/1"]
    return engine


def test_a_device_that_comes_back_to_a_dynamic_action_gets_another_attempt() -> None:
    engine = dynamic()
    engine.devices = devices_of("d2")
    engine.tick()
    engine.tick()
    assert (engine.target().state, engine.published[2:]) == (S.REMOVED, ["a1/d1/1/cancel"])
    engine.devices = devices_of("d1", "d2")
    engine.tick()
    assert (engine.target().state, engine.published[3:]) == (S.QUEUED, ["a1/d1/2"])


@pytest.mark.parametrize("end", ["SUCCEEDED", "FAILED"])
def test_a_device_that_had_answered_before_it_left_is_not_asked_again(end: str) -> None:
    engine = dynamic()
    engine.tick(engine.report(end, 3, log_id="log-roof"))
    engine.devices = devices_of("d2")
    engine.tick()
    engine.devices = devices_of("d1", "d2")
    engine.tick()
    assert (engine.target().state.value, engine.published[2:]) == (end, [])


def test_a_cancelled_dynamic_action_takes_nobody_back() -> None:
    engine = dynamic()
    engine.devices = devices_of("d2")
    engine.tick()
    engine.cancel()
    engine.tick()
    engine.devices = devices_of("d1", "d2")
    engine.tick()
    assert engine.target().state is S.REMOVED


@pytest.mark.parametrize("may_be_there", [False, True])
def test_a_command_is_not_sent_once_its_artifact_has_been_taken_out(may_be_there: bool) -> None:
    """The broker is away while the command is owed; it may have the command already, if its answer was lost."""
    engine = Engine(devices=devices_of("d1"), logs=ONE, limits=Limits(allow_unsigned=True), broker_up=False)
    firmware = Artifact("fw", "2", "default", "a" * 64, 10, "b" * 128, "k1")
    engine.artifacts = {firmware.key: firmware}
    ota = Ota(artifact_name="fw", artifact_version="2")
    engine.actions.append(action_of(type="ota", name="update", params="{}", ota=ota))
    engine.tick(engine.report("ONLINE", 1, action_id="", attempt=0, log_id="log-roof", version="1"))
    (command,) = engine.last.publishes
    assert b"a" * 64 in command.value
    if may_be_there:
        engine.contents["log-roof"] = {command.idempotency_key: command.value}
    newer = replace(firmware, version="3")
    engine.artifacts, engine.broker_up = {newer.key: newer}, True
    engine.tick()
    assert (engine.target().state, engine.published) == (S.CANCELLING, ["a1/d1/1/cancel"])
    assert engine.target().message == "the artifact fw 2 is no longer in the table artifacts"
    engine.tick(engine.report("CANCELLED", 2, log_id="log-roof"))
    assert (engine.target().state, engine.phase()) == (S.CANCELLED, "ENDED")


@pytest.mark.parametrize("broker_up", [True, False])
def test_a_device_that_a_user_cancelled_before_it_left_is_not_asked_again(broker_up: bool) -> None:
    engine = dynamic()
    engine.broker_up = broker_up
    engine.cancel(device_id="d1")
    engine.tick()
    engine.devices = devices_of("d2")
    engine.tick()
    engine.broker_up = True
    engine.tick()
    assert engine.target().state is S.REMOVED
    engine.devices = devices_of("d1", "d2")
    engine.tick()
    engine.tick()
    assert (engine.target().state, engine.published[2:]) == (S.REMOVED, ["a1/d1/1/cancel"])


@pytest.mark.parametrize("broker_up", [True, False])
def test_a_device_that_a_user_cancels_after_it_left_is_not_asked_again(broker_up: bool) -> None:
    """It is REMOVED, or its cancel waits for the broker; it may be back in the table when the user cancels it."""
    engine = dynamic()
    engine.broker_up = broker_up
    engine.devices = devices_of("d2")
    engine.tick()
    engine.tick()
    if not broker_up:
        engine.devices = devices_of("d1", "d2")
        engine.tick()
    engine.cancel(device_id="d1")
    engine.tick()
    engine.broker_up, engine.devices = True, devices_of("d1", "d2")
    engine.tick()
    engine.tick()
    assert (engine.target().state, engine.published[2:]) == (S.REMOVED, ["a1/d1/1/cancel"])
    engine.ask("retry", device_id="d1")
    engine.tick()
    assert (engine.target().attempt, engine.published[3:]) == (2, ["a1/d1/2"])
