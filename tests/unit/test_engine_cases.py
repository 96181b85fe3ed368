"""The promises of the action engine, case by case: the pure function only, without tables or a broker."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.engine import SECOND, START_US, Engine, action_of, devices_of, started, states

from actions.engine import (
    ActionPhase,
    Decision,
    Device,
    Limits,
    Selector,
    TargetState,
    Timeouts,
    apply,
    bucket,
)

S = TargetState


def test_command_goes_all_the_way() -> None:
    engine = started()
    assert (engine.target().state, engine.target().partition, engine.target().offset) == (S.QUEUED, 2, 100)
    for report, state in (
        (engine.receipt(200, command_partition=2, command_offset=100), S.DELIVERED),
        (engine.report("ACCEPTED", 1), S.ACCEPTED),
        (engine.report("IN_PROGRESS", 2, progress=50), S.IN_PROGRESS),
        (engine.report("SUCCEEDED", 3, result='{"text":"hi"}'), S.SUCCEEDED),
    ):
        engine.tick(report)
        assert engine.target().state is state
    row = engine.state.actions["a1"]
    assert (row.phase, row.open, row.message) == (ActionPhase.ENDED, 0, "of 1 devices 1 succeeded")
    assert engine.published == ["a1/d1/1"]


def test_published_record_follows_the_protocol() -> None:
    engine = Engine(devices=devices_of("d1"), broker_up=False)
    engine.actions.append(action_of(deadline_us=START_US + 60 * SECOND))
    (publish,) = engine.tick().publishes
    assert publish.topic == "devices/d1/actions"
    assert json.loads(publish.value) == {
        "action_id": "a1",
        "device_id": "d1",
        "attempt": 1,
        "type": "command",
        "name": "echo",
        "params": {"text": "hi"},
        "created_us": engine.target().created_us,
        "deadline_us": START_US + 60 * SECOND,
    }


def test_later_report_implies_the_earlier_states() -> None:
    engine = started()
    engine.tick(engine.report("SUCCEEDED", 9))
    target = engine.target()
    assert None not in (target.queued_us, target.delivered_us, target.accepted_us, target.started_us)


def test_report_before_the_place_is_recorded_ends_the_debt() -> None:
    engine = Engine(devices=devices_of("d1"), broker_up=False)
    engine.actions.append(action_of())
    engine.tick()
    assert engine.tick(engine.report("IN_PROGRESS", 1)).publishes == ()
    assert engine.target().state is S.IN_PROGRESS


def test_state_never_goes_back_when_a_restarted_device_begins_again() -> None:
    engine = started()
    engine.tick(engine.report("IN_PROGRESS", 5))
    engine.tick(engine.report("ACCEPTED", 6, boot="b2", seq=1))
    assert engine.target().state is S.IN_PROGRESS


def test_repeated_status_with_a_new_offset_is_dropped_by_boot_and_seq() -> None:
    engine = started()
    engine.tick(engine.report("IN_PROGRESS", 5, seq=2, progress=70))
    before = engine.target()
    engine.tick(engine.report("IN_PROGRESS", 6, seq=1, progress=10))
    assert engine.target() == before


def test_first_terminal_state_is_final() -> None:
    engine = started()
    engine.tick(engine.report("FAILED", 5))
    engine.tick(engine.report("SUCCEEDED", 6))
    assert engine.target().state is S.FAILED


def test_silence_times_out_and_late_success_replaces_it_and_says_so() -> None:
    engine = started(timeouts=Timeouts(queued_s=30))
    engine.tick(after_s=28)
    assert engine.target().state is S.QUEUED
    engine.tick(after_s=2)
    assert engine.target().state is S.TIMED_OUT
    assert "within 30 s" in (engine.target().message or "")
    assert engine.state.actions["a1"].phase is ActionPhase.ENDED
    decision = engine.tick(engine.report("SUCCEEDED", 5))
    target = engine.target()
    assert (target.state, target.late) == (S.SUCCEEDED, True)
    assert "after it had timed out" in (target.message or "")
    assert [event.event_id for event in decision.events] == ["engine/a1/d1/1/LATE_SUCCESS"]
    assert engine.state.actions["a1"].counts == {"SUCCEEDED": 1}


def test_late_failure_does_not_replace_a_timeout() -> None:
    engine = started(timeouts=Timeouts(queued_s=30))
    engine.tick(after_s=60)
    engine.tick(engine.report("FAILED", 5))
    assert engine.target().state is S.TIMED_OUT


@pytest.mark.parametrize(
    ("report", "timeouts"),
    [
        ("ACCEPTED", Timeouts(delivered_s=10)),
        ("IN_PROGRESS", Timeouts(in_progress_s=10)),
        ("IN_PROGRESS", Timeouts(step_s=10)),
    ],
)
def test_each_phase_has_its_own_timeout(report: str, timeouts: Timeouts) -> None:
    engine = started(timeouts=timeouts)
    engine.tick(engine.report(report, 1))
    engine.tick(after_s=9)
    assert not engine.target().final
    engine.tick(after_s=2)
    assert engine.target().state is S.TIMED_OUT


def test_progress_keeps_a_target_alive_but_the_deadline_ends_it() -> None:
    engine = started(timeouts=Timeouts(step_s=10), deadline_us=START_US + 30 * SECOND)
    for offset in range(1, 4):
        engine.tick(engine.report("IN_PROGRESS", offset), after_s=8)
        assert engine.target().state is S.IN_PROGRESS
    engine.tick(after_s=8)
    assert engine.target().state is S.TIMED_OUT
    assert "deadline" in (engine.target().message or "")


def test_cancel_before_publish_ends_at_once_and_publishes_nothing() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions.append(action_of())
    engine.cancel()
    decision = engine.tick()
    assert (engine.target().state, engine.published) == (S.CANCELLED, [])
    assert decision.events[0].message == "cancel: 1 ended at once, 0 asked to stop, 0 already ended"


def test_cancel_of_what_may_be_published_asks_the_device() -> None:
    engine = started()
    engine.cancel(reason="wrong site")
    engine.tick()
    assert (engine.target().state, engine.published) == (S.CANCELLING, ["a1/d1/1", "a1/d1/1/cancel"])
    assert engine.tick().publishes == ()
    engine.tick(engine.report("CANCELLED", 4))
    assert engine.target().state is S.CANCELLED


def test_cancel_after_a_publish_of_unknown_outcome_asks_the_device() -> None:
    engine = Engine(devices=devices_of("d1"), broker_up=False)
    engine.actions.append(action_of())
    engine.tick()
    engine.cancel()
    (publish,) = engine.tick().publishes
    assert (engine.target().state, publish.idempotency_key) == (S.CANCELLING, "a1/d1/1/cancel")


def test_device_that_finishes_before_the_cancel_keeps_its_state() -> None:
    engine = started()
    engine.cancel()
    engine.tick()
    engine.tick(engine.report("IN_PROGRESS", 4))
    assert engine.target().state is S.CANCELLING
    engine.tick(engine.report("SUCCEEDED", 5), engine.report("CANCELLED", 6))
    assert engine.target().state is S.SUCCEEDED
    # Not the bare reason of the cancel: a device that succeeded with the message "cancelled by ann" puzzles people.
    assert engine.target().message == "succeeded before it could be stopped (cancelled by ann)"


def test_unanswered_cancel_times_out() -> None:
    engine = started(timeouts=Timeouts(queued_s=30))
    engine.cancel()
    engine.tick()
    engine.tick(after_s=31)
    assert engine.target().state is S.TIMED_OUT
    assert "did not answer the cancel" in (engine.target().message or "")


def test_cancel_of_one_device_leaves_the_others() -> None:
    engine = started("d1", "d2")
    engine.cancel(device_id="d2")
    engine.tick()
    assert states(engine) == [S.QUEUED, S.CANCELLING]


def test_request_is_carried_out_and_answered_once() -> None:
    engine = started("d1")
    engine.cancel()
    assert len(engine.tick().events) == 1
    decision = engine.tick()
    assert (decision.events, decision.writes) == ((), False)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "resume"}, "the action is RUNNING, not PAUSED"),
        ({"kind": "approve"}, "nothing waits for approval"),
        ({"kind": "retry"}, "no device ended in error"),
        ({"kind": "explode"}, "unknown kind 'explode'"),
        ({"device_id": "nobody"}, "device nobody is not a target"),
    ],
)
def test_request_that_cannot_be_done_is_refused_in_words(fields: dict[str, object], said: str) -> None:
    engine = started()
    engine.cancel(**fields)
    (event,) = engine.tick().events
    assert (event.state, engine.target().state) == ("REFUSED", S.QUEUED)
    assert said in event.message


def test_request_for_an_unknown_action_waits_and_is_then_refused() -> None:
    engine = started()
    engine.cancel(action_id="a9")
    assert engine.tick(after_s=300).events == ()
    (event,) = engine.tick(after_s=400).events
    assert "there is no action a9" in event.message
    assert engine.tick(after_s=400).events == ()


def test_request_of_another_tenant_does_nothing() -> None:
    engine = started()
    engine.cancel(tenant="other")
    engine.tick()
    assert engine.target().state is S.QUEUED


@pytest.mark.parametrize(
    ("selector", "said"),
    [
        (Selector(labels={"site": "moon"}), "no device of tenant default matches labels site=moon"),
        (Selector(device_ids=("x", "y")), "none of the 2 listed ids is in the table devices"),
    ],
)
def test_action_that_selects_nobody_ends_and_says_so(selector: Selector, said: str) -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions.append(action_of(selector=selector))
    engine.tick()
    row = engine.state.actions["a1"]
    assert (row.phase, row.open, engine.published) == (ActionPhase.ENDED, 0, [])
    assert row.message.startswith("selects nobody")
    assert said in row.message


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"selector": Selector()}, "no selector"),
        ({"selector": Selector(percentage=250)}, "percentage must be above 0"),
        ({"selector": Selector(device_ids=())}, "device_ids is an empty list"),
        ({"selector": Selector(labels={})}, "labels is an empty map"),
        ({"params": "{oops"}, "params is not JSON"),
        ({"params": "[1]"}, "params must be a JSON object"),
        ({"type": "firmware"}, "type 'firmware' is not supported"),
        ({"timeouts": Timeouts(queued_s=0)}, "timeout_queued_s must be above 0"),
        ({"name": ""}, "name must have"),
    ],
)
def test_wrong_action_is_refused_in_words(fields: dict[str, object], said: str) -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions.append(action_of(**fields))
    decision = engine.tick()
    row = engine.state.actions["a1"]
    assert (row.phase, decision.target_updates, decision.publishes) == (ActionPhase.REFUSED, (), ())
    assert said in row.message
    assert decision.events[0].message == row.message


def test_listed_device_that_is_unknown_is_skipped() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions.append(action_of(selector=Selector(device_ids=("d1", "ghost"))))
    engine.tick()
    assert {id_: target.state for id_, target in engine.state.targets["a1"].items()} == {
        "d1": S.QUEUED,
        "ghost": S.SKIPPED,
    }


def test_labels_and_percentage_must_both_hold() -> None:
    devices = {
        **devices_of(*(f"r{i}" for i in range(200)), labels={"site": "roof", "rev": "2"}),
        **devices_of(*(f"c{i}" for i in range(200)), labels={"site": "cellar", "rev": "2"}),
    }
    engine = Engine(devices=devices)
    engine.actions.append(action_of(selector=Selector(labels={"site": "roof", "rev": "2"}, percentage=25)))
    engine.tick()
    chosen = set(engine.state.targets["a1"])
    assert chosen == {id_ for id_ in devices if id_.startswith("r") and bucket("a1", id_) < 2500}
    assert 20 <= len(chosen) <= 80


def test_devices_of_another_tenant_are_never_selected() -> None:
    engine = Engine(devices={"d1": Device(device_id="d1", tenant="other")})
    engine.actions.append(action_of(selector=Selector(percentage=100)))
    engine.tick()
    assert engine.state.actions["a1"].message.startswith("selects nobody")


def test_first_committed_row_of_an_action_id_wins() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions += [action_of(name="second", commit_version=8), action_of(name="first", commit_version=7)]
    (publish,) = engine.tick().publishes
    assert json.loads(publish.value)["name"] == "first"
    # After a restart the commit versions may be unknown: a started action is identified by its content.
    engine.actions = [replace(row, commit_version=0) for row in engine.actions]
    engine.cancel()
    assert json.loads(engine.tick().publishes[0].value)["name"] == "first"


def test_second_row_of_an_action_id_is_answered_once() -> None:
    engine = started()
    engine.actions.append(action_of(name="other", commit_version=9))
    (event,) = engine.tick().events
    assert (event.state, "choose another id" in event.message) == ("REFUSED", True)
    assert engine.tick().events == ()


def test_report_that_matches_nothing_waits_ten_minutes_for_its_target() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.tick(engine.report("SUCCEEDED", 5))
    engine.tick(after_s=500)
    engine.actions.append(action_of())
    engine.tick()
    assert engine.tick().quarantine == ()
    assert engine.target().state is S.SUCCEEDED


def test_report_that_matches_nothing_goes_to_quarantine_after_ten_minutes() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.tick(engine.report("SUCCEEDED", 5))
    (entry,) = engine.tick(after_s=601).quarantine
    assert "no target matched within 600 s: action a1, device d1, attempt 1" in entry.reason
    assert engine.tick().quarantine == ()


def test_report_of_an_unknown_state_goes_to_quarantine_at_once() -> None:
    engine = started()
    (entry,) = engine.tick(engine.report("DANCING", 5)).quarantine
    assert "unknown state 'DANCING'" in entry.reason


def test_report_of_an_older_attempt_moves_nothing() -> None:
    engine = started()
    engine.state = apply(engine.state, Decision(target_updates=(replace(engine.target(), attempt=2),)))
    engine.tick(engine.report("SUCCEEDED", 5, attempt=1))
    assert engine.target().state is S.QUEUED


def test_unpublished_records_are_owed_until_the_log_has_them_under_the_same_key() -> None:
    engine = Engine(devices=devices_of("d1"), broker_up=False)
    engine.actions.append(action_of())
    first = engine.tick().publishes
    assert engine.tick().publishes == first
    engine.broker_up = True
    engine.tick()
    assert engine.tick().publishes == ()
    assert engine.published == ["a1/d1/1"]


def test_what_is_owed_at_once_is_bounded_and_all_get_their_turn() -> None:
    ids = tuple(f"d{i:02}" for i in range(10))
    engine = Engine(devices=devices_of(*ids), limits=Limits(publish_max=4))
    engine.actions.append(action_of(selector=Selector(percentage=100)))
    sizes = [len(engine.tick().publishes) for _ in range(4)]
    assert sizes == [4, 4, 2, 0]
    assert sorted(engine.published) == [f"a1/{id_}/1" for id_ in ids]


def test_tick_without_news_writes_nothing() -> None:
    engine = started()
    decision = engine.tick()
    assert not decision.writes
    assert decision.publishes == ()


def test_order_of_one_read_does_not_matter() -> None:
    engine = started()
    reports = [engine.report("ACCEPTED", 1), engine.report("FAILED", 3), engine.report("IN_PROGRESS", 2)]
    engine.tick(*reports)
    assert engine.target().state is S.FAILED


def test_control_without_the_check_for_repeats_a_replay_changes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the properties about rereading: they can fail."""
    engine = started()
    reports = [engine.report("IN_PROGRESS", 1, progress=10), engine.report("IN_PROGRESS", 2, progress=90)]
    engine.tick(*reports)
    assert engine.tick(reports[0]).target_updates == ()
    monkeypatch.setattr("actions.engine.lifecycle.is_repeat", lambda target, report: False)
    assert engine.tick(reports[0]).target_updates != ()
