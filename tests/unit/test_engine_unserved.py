"""Records for logs that no broker serves any more, or whose broker refuses the job: nothing waits without an end or
without a sentence, and nothing is forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine import Engine, action_of, devices_of

from actions.engine import Device, Limits, Logs, Rollout, Selector, Served, TargetState, Timeouts
from actions.engine.lifecycle import COPIES_MAX

S = TargetState
ROOF, YARD = Served("roof", "log-roof"), Served("yard", "log-yard")
BOTH, NEW = Logs((ROOF, YARD)), Logs((Served("new", "log-new"), YARD))
WITH_CANCEL = ["a1/d1/1", "a1/d1/1/cancel"]
QUEUED_S = 100


def sent(*, logs: Logs = BOTH, deadline_s: int | None = None, **fields: object) -> Engine:
    """The command of d1 is in the log of the roof."""
    engine = Engine(devices={"d1": Device("d1", "default", log="log-roof")}, logs=logs, limits=Limits())
    deadline = None if deadline_s is None else engine.now_us + deadline_s * 1_000_000
    times = Timeouts(queued_s=QUEUED_S)
    engine.actions.append(action_of(timeouts=times, deadline_us=deadline, **fields))
    engine.tick()
    assert engine.target().state is S.QUEUED
    return engine


def in_roof(engine: Engine) -> list[str]:
    return sorted(engine.contents["log-roof"])


def test_a_cancel_for_a_log_that_nobody_serves_says_so_and_ends() -> None:
    engine = sent()
    engine.logs = NEW
    engine.cancel()
    engine.tick()
    said = "cancelled by ann; its cancel waits: no broker that answers serves the log log-roof, which has its command"
    assert (engine.target().state, engine.target().message) == (S.CANCELLING, said)
    before = engine.target()
    engine.tick()
    assert engine.target() is before, "a message that stays causes no writes"
    engine.tick(after_s=QUEUED_S)
    assert (engine.target().state, engine.target().copies) == (S.TIMED_OUT, ("1/log-roof",))
    assert engine.target().message == f"{said}: no broker did within {QUEUED_S} s"
    assert [event.state for event in engine.last.events] == ["TIMED_OUT"]
    engine.tick()
    assert (engine.phase(), in_roof(engine)) == ("ENDED", ["a1/d1/1"])
    engine.logs = BOTH
    engine.tick()
    assert (in_roof(engine), engine.target().copies) == (WITH_CANCEL, ()), "the log is back"


def test_a_cancel_whose_log_comes_back_in_time_is_answered_as_usual() -> None:
    engine = sent()
    engine.logs = NEW
    engine.cancel()
    engine.tick()
    engine.logs = BOTH
    engine.tick()
    assert (engine.target().state, engine.target().message) == (S.CANCELLING, "cancelled by ann")
    assert in_roof(engine) == WITH_CANCEL
    engine.tick(engine.report("CANCELLED", 3, log_id="log-roof"))
    assert (engine.target().state, engine.target().message) == (S.CANCELLED, "cancelled by ann")


def test_an_answer_of_the_device_ends_the_wait_for_the_log() -> None:
    engine = sent()
    engine.logs = NEW
    engine.cancel()
    engine.tick()
    engine.tick(engine.report("SUCCEEDED", 3, log_id="log-yard"))
    says = "succeeded before it could be stopped (cancelled by ann)"
    assert (engine.target().state, engine.target().message) == (S.SUCCEEDED, says)


def test_a_device_that_leaves_after_its_broker_is_removed_in_time() -> None:
    engine = sent()
    engine.logs, engine.devices = NEW, devices_of("d2")
    engine.tick()
    assert (engine.target().state, engine.target().leaving) == (S.CANCELLING, True)
    assert "no broker that answers serves the log log-roof" in (engine.target().message or "")
    engine.tick(after_s=QUEUED_S)
    assert (engine.target().state, engine.target().copies) == (S.REMOVED, ("1/log-roof",))
    assert engine.last.events == (), "nobody is told of a timeout"


def test_control_a_cancel_for_a_broker_that_is_only_away_waits_for_it() -> None:
    engine = sent()
    engine.logs = Logs((replace(ROOF, away=True), YARD))
    engine.cancel()
    engine.tick()
    engine.tick(after_s=10 * QUEUED_S)
    assert (engine.target().state, engine.target().message) == (S.CANCELLING, "cancelled by ann")
    engine.logs = BOTH
    engine.tick()
    assert in_roof(engine) == WITH_CANCEL


@pytest.mark.parametrize("leaves", [False, True])
def test_a_deadline_does_not_drop_a_cancel_that_is_still_owed(leaves: bool) -> None:
    engine = sent(deadline_s=50)
    engine.logs = Logs((replace(ROOF, away=True), YARD))
    engine.cancel()
    engine.devices = devices_of("d2") if leaves else engine.devices
    engine.tick()
    engine.tick(after_s=60)
    assert engine.target().state is (S.REMOVED if leaves else S.TIMED_OUT)
    engine.logs = BOTH
    engine.tick()
    assert (in_roof(engine), engine.target().copies) == (WITH_CANCEL, ())


def test_of_two_addresses_of_one_log_the_one_that_answers_counts() -> None:
    logs = Logs((replace(ROOF, away=True), Served("roof-new-address", "log-roof")))
    found = logs.serving("log-roof")
    assert (found and found.name, sent(logs=logs).target().message) == ("roof-new-address", None)
    both_away = Logs(tuple(replace(one, away=True) for one in logs.brokers))
    found = both_away.serving("log-roof")
    assert found is not None
    assert found.away


def test_the_cancel_of_an_older_row_follows_its_device() -> None:
    """Rows written before there were log ids: their cancel is in the log of the first broker."""
    engine = sent()
    engine.cancel()
    engine.tick()
    old = replace(engine.target(), cancel_log_id=None, log_id=None)
    engine.state = replace(engine.state, targets={"a1": {"d1": old}})
    engine.devices = {"d1": Device("d1", "default", log="log-yard")}
    engine.tick()
    assert (engine.target().cancel_log_id, sorted(engine.contents["log-yard"])) == ("log-yard", ["a1/d1/1/cancel"])
    engine.tick()
    assert (in_roof(engine), engine.target().copies) == (WITH_CANCEL, ())


def test_a_device_that_has_answered_no_longer_has_the_message_of_its_move() -> None:
    engine = sent()
    engine.devices = {"d1": Device("d1", "default", log="log-yard")}
    engine.tick()
    assert (engine.target().message or "").startswith("the device moved from log log-roof to log log-yard")
    engine.tick(engine.report("SUCCEEDED", 3, log_id="log-yard"))
    assert (engine.target().state, engine.target().message) == (S.SUCCEEDED, None)


def test_copies_are_limited_to_the_newest() -> None:
    engine = sent()
    for number in range(COPIES_MAX + 4):
        engine.logs = Logs((Served("new", f"log-{number}"), YARD))
        engine.devices = {"d1": Device("d1", "default", log="new")}
        engine.tick()
    assert engine.target().copies == tuple(f"1/log-{number}" for number in range(3, COPIES_MAX + 3))
    assert engine.target().log_id == f"log-{COPIES_MAX + 3}"


def test_a_copy_whose_action_was_deleted_is_still_withdrawn_after_a_restart() -> None:
    engine = sent()
    engine.devices = {"d1": Device("d1", "default", log="log-yard")}
    engine.logs = Logs((replace(ROOF, away=True), YARD))
    engine.tick()
    engine.tick(engine.report("SUCCEEDED", 3, log_id="log-yard"))
    engine.tick()
    assert (engine.phase(), engine.target().copies) == ("ENDED", ("1/log-roof",))
    engine.actions.clear()
    engine.state = replace(engine.state, devices=None, logs=None)
    engine.logs = BOTH
    engine.tick()
    assert (in_roof(engine), engine.target().copies) == (WITH_CANCEL, ())


REFUSING = Logs((replace(ROOF, away=True, refuses=True), YARD))
NEVER = Logs((Served("roof", None, away=True, refuses=True), YARD))


@pytest.mark.parametrize(
    ("logs", "log", "said"),
    [
        (REFUSING, "log-roof", "its broker refuses the credentials of the actions job: roof log-roof; correct them in"),
        (NEVER, "roof", "no log known yet: the broker roof, which devices.log names, refuses the credentials of the"),
        (NEVER, "log-roof", "(refusing the credentials of the actions job: roof)"),
    ],
)
def test_a_broker_that_refuses_the_job_is_not_said_to_be_silent(logs: Logs, log: str, said: str) -> None:
    engine = Engine(devices={"d1": Device("d1", "default", log=log)}, logs=logs)
    engine.actions.append(action_of())
    engine.tick()
    assert engine.target().state is S.PENDING
    assert said in (engine.target().message or "")
    engine.logs = BOTH
    engine.tick()
    assert (engine.target().state, engine.target().message) == (S.QUEUED, None)


def test_the_report_of_a_device_names_the_broker_that_may_serve_its_log() -> None:
    engine = Engine(devices=devices_of("d1"), logs=NEVER)
    engine.actions.append(action_of(selector=Selector(percentage=100), rollout=Rollout()))
    engine.tick(engine.report("ONLINE", 1, action_id="", attempt=0, log_id="log-roof"))
    assert "(refusing the credentials of the actions job: roof)" in (engine.target().message or "")
