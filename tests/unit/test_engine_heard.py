"""No target times out while a report of it may be unread, and none because somebody set the clock."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.engine import SECOND, START_US, Engine, action_of, devices_of

from actions.engine import Device, Logs, Rollout, Selector, Served, TargetState, Timeouts, in_past, moved_clock
from actions.engine.clock import row_in_past
from actions.engine.tick import apply

S = TargetState
HOUR_S = 3600.0
ROOF, FIELD = "log-roof", "log-field"
TWO = Logs((Served("roof", ROOF), Served("field", FIELD)))
IDS = tuple(f"d{number:02}" for number in range(10))
HASTY = Timeouts(queued_s=60, delivered_s=60, step_s=60, in_progress_s=60)


def fleet(**fields: object) -> Engine:
    """Ten devices with a command, the first five at the roof, the others in the field."""
    places = {id_: "roof" if id_ < "d05" else "field" for id_ in IDS}
    devices = {id_: Device(device_id=id_, tenant="default", labels={}, log=at) for id_, at in places.items()}
    engine = Engine(devices=devices, logs=TWO, read_us={ROOF: START_US, FIELD: START_US})
    engine.actions.append(action_of(selector=Selector(percentage=100), created_by="ann", timeouts=HASTY, **fields))
    engine.tick()
    assert len(engine.sent()) == (10 if "rollout" not in fields else len(engine.sent()))
    return engine


def by_state(engine: Engine) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for id_, target in sorted(engine.state.targets["a1"].items()):
        found.setdefault(target.state.value, []).append(id_)
    return found


def read(engine: Engine, *logs: str) -> None:
    engine.read_us = {**(engine.read_us or {}), **dict.fromkeys(logs, engine.now_us)}


def test_nothing_times_out_and_no_action_aborts_while_the_status_job_is_away() -> None:
    engine = fleet(rollout=Rollout(abort_percentage=10))
    engine.tick(after_s=3 * HOUR_S)
    assert by_state(engine) == {"QUEUED": list(IDS)}
    assert engine.phase() == "RUNNING"
    assert engine.last.unread == {ROOF, FIELD}
    # It is back, and the reports that the devices had sent meanwhile are read.
    read(engine, ROOF, FIELD)
    engine.tick(*(engine.report("SUCCEEDED", 900 + n, device_id=id_) for n, id_ in enumerate(IDS)))
    assert by_state(engine) == {"SUCCEEDED": list(IDS)}
    assert engine.phase() == "ENDED"


def test_a_log_that_has_been_read_does_not_wait_for_another() -> None:
    engine = fleet()
    engine.tick(after_s=HOUR_S)
    read(engine, FIELD)
    engine.tick()
    assert by_state(engine) == {"QUEUED": list(IDS[:5]), "TIMED_OUT": list(IDS[5:])}
    assert engine.last.unread == {ROOF}


def test_a_target_is_judged_at_the_moment_up_to_which_its_log_was_read() -> None:
    engine = fleet()
    engine.tick(after_s=50)
    read(engine, ROOF, FIELD)
    engine.tick(after_s=100)
    assert by_state(engine) == {"QUEUED": list(IDS)}
    read(engine, ROOF, FIELD)
    engine.tick()
    assert by_state(engine) == {"TIMED_OUT": list(IDS)}


def test_the_deadline_waits_for_unread_reports_too() -> None:
    engine = fleet(deadline_us=START_US + 30 * SECOND)
    engine.tick(after_s=40)
    assert by_state(engine) == {"QUEUED": list(IDS)}
    read(engine, ROOF, FIELD)
    engine.tick()
    assert by_state(engine) == {"TIMED_OUT": list(IDS)}


def test_a_device_that_reported_elsewhere_last_waits_for_that_log_too() -> None:
    engine = fleet()
    engine.tick(engine.report("ACCEPTED", 900, device_id="d00", log_id=FIELD))
    engine.tick(after_s=HOUR_S)
    read(engine, ROOF)
    engine.tick()
    assert by_state(engine)["ACCEPTED"] == ["d00"]
    read(engine, FIELD)
    engine.tick()
    assert by_state(engine) == {"TIMED_OUT": list(IDS)}


def test_a_device_that_has_moved_waits_for_the_log_with_the_copy_of_its_command() -> None:
    engine = fleet()
    engine.devices = {**engine.devices, "d00": Device(device_id="d00", tenant="default", labels={}, log="field")}
    engine.tick()
    assert engine.target("d00").copies == (f"1/{ROOF}",)
    engine.tick(after_s=HOUR_S)
    read(engine, FIELD)
    engine.tick()
    assert engine.target("d00").state is S.QUEUED
    assert ROOF in engine.last.unread
    read(engine, ROOF, FIELD)
    engine.tick()
    assert engine.target("d00").state is S.TIMED_OUT


def test_a_log_that_no_broker_serves_any_more_holds_nothing() -> None:
    engine = fleet()
    engine.logs = Logs((Served("field", FIELD), Served("new", "log-new")))
    engine.tick(after_s=HOUR_S)
    read(engine, FIELD, "log-new")
    engine.tick()
    assert by_state(engine) == {"TIMED_OUT": list(IDS)}


def test_a_broker_that_has_not_told_its_log_may_have_the_reports() -> None:
    engine = fleet()
    engine.logs = Logs((Served("roof", None, away=True), Served("field", FIELD)))
    engine.tick(after_s=HOUR_S)
    read(engine, FIELD)
    engine.tick()
    assert by_state(engine) == {"QUEUED": list(IDS[:5]), "TIMED_OUT": list(IDS[5:])}


def test_a_soak_does_not_end_while_a_report_of_its_wave_may_be_unread() -> None:
    waves = [{"percentage": 50, "success_percentage": 50, "error_percentage": 10, "soak_s": 100}, {"percentage": 100}]
    engine = fleet(rollout=Rollout(waves=json.dumps(waves)))
    first = engine.sent()
    assert len(first) == 5
    good = first[:3]
    engine.tick(*(engine.report("SUCCEEDED", 900 + n, device_id=id_) for n, id_ in enumerate(good)))
    # The others may have failed during the soak: nobody has read it yet.
    engine.tick(after_s=100)
    engine.tick(after_s=100)
    assert len(engine.sent()) == 5
    assert engine.last.unread
    engine.tick(*(engine.report("FAILED", 950 + n, device_id=id_) for n, id_ in enumerate(first[3:])))
    assert engine.phase() == "ENDED"
    assert engine.state.actions["a1"].stopped is not None
    assert len(engine.sent()) == 5


def test_a_soak_ends_once_its_reports_have_been_read() -> None:
    waves = [{"percentage": 50, "success_percentage": 50, "soak_s": 30}, {"percentage": 100}]
    engine = fleet(rollout=Rollout(waves=json.dumps(waves)))
    engine.tick(*(engine.report("SUCCEEDED", 900 + n, device_id=id_) for n, id_ in enumerate(engine.sent()[:3])))
    engine.tick(after_s=31)
    assert len(engine.sent()) == 5
    read(engine, ROOF, FIELD)
    engine.tick()
    assert len(engine.sent()) == 10


@pytest.mark.parametrize("by_s", [24 * HOUR_S, -24 * HOUR_S])
def test_a_clock_that_is_set_moves_what_is_measured_by_it(by_s: float) -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions.append(action_of(timeouts=HASTY))
    engine.tick()
    engine.tick(after_s=50)
    by_us = int(by_s * SECOND)
    engine.now_us += by_us
    moved = moved_clock(engine.state, by_us, engine.now_us)
    assert [target.since_us for target in moved.target_updates] == [engine.target().since_us + by_us]
    engine.state = apply(engine.state, moved)
    engine.tick(after_s=5)
    assert engine.target().state is S.QUEUED
    engine.tick(after_s=6)
    assert engine.target().state is S.TIMED_OUT
    # What has ended keeps its times.
    assert moved_clock(engine.state, by_us, engine.now_us).target_updates == ()


def test_a_clock_that_is_set_leaves_soak_and_rate_as_they_were() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions.append(action_of())
    engine.tick()
    row = replace(engine.state.actions["a1"], gate_us=START_US, sent={str(START_US // SECOND): 2})
    state = replace(engine.state, actions={"a1": row})
    (after,) = moved_clock(state, 3600 * SECOND, START_US).state_updates
    assert (after.gate_us, after.sent) == (START_US + 3600 * SECOND, {str(START_US // SECOND + 3600): 2})


def test_rows_from_a_clock_that_was_ahead_count_from_now() -> None:
    engine = Engine(devices=devices_of("d1"), now_us=START_US + 7200 * SECOND)
    engine.actions.append(action_of())
    engine.tick()
    ahead, now_us = engine.target(), START_US
    back = in_past(ahead, now_us)
    assert (back.since_us, back.sent_us) == (now_us, now_us)
    assert in_past(back, now_us) is back
    row = replace(engine.state.actions["a1"], gate_us=engine.now_us)
    assert row_in_past(row, now_us).gate_us == now_us
    assert row_in_past(row_in_past(row, now_us), now_us).gate_us == now_us
