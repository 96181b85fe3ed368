"""The promises of a rollout: waves, gates, rates, aborts, approvals, pauses, retries. The pure function only."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from support.engine import SECOND, START_US, Engine, action_of, devices_of

from actions.engine import Limits, Rollout, Selector, TargetState, Timeouts
from pipelines.actions import limits_of
from pipelines.settings import ActionsSection

S = TargetState
EVERYBODY = Selector(percentage=100)


def fleet(count: int) -> tuple[str, ...]:
    return tuple(f"d{number:03}" for number in range(count))


def rolling(count: int, *, waves: list[dict[str, object]] | None = None, **fields: object) -> Engine:
    """An engine after its first tick, with one action for `count` devices; `fields` belong to the action or its
    rollout."""
    names = Rollout.__dataclass_fields__
    rollout = {name: fields.pop(name) for name in list(fields) if name in names}
    engine = Engine(devices=devices_of(*fleet(count)))
    text = json.dumps(waves) if waves is not None else None
    action = {"selector": EVERYBODY, "created_by": "ann", "rollout": Rollout(waves=text, **rollout), **fields}
    engine.actions.append(action_of(**action))
    engine.tick()
    return engine


def end(engine: Engine, state: str, *device_ids: str, after_s: float = 1) -> None:
    """These devices, or all that have a command, report how it ended."""
    chosen = device_ids or tuple(id_ for id_ in engine.sent() if not engine.target(id_).final)
    base = engine.now_us // SECOND % 10**6 * 1_000
    reports = [
        engine.report(state, base + number, device_id=id_, attempt=engine.target(id_).attempt)
        for number, id_ in enumerate(chosen)
    ]
    engine.tick(*reports, after_s=after_s)


def test_waves_go_one_after_the_other_as_their_successes_come() -> None:
    engine = rolling(200, waves=[{"percentage": 1}, {"percentage": 10}, {"percentage": 100}])
    sizes = [len(engine.sent())]
    for _ in range(2):
        engine.tick(after_s=60)
        assert len(engine.sent()) == sizes[-1]
        end(engine, "SUCCEEDED")
        sizes.append(len(engine.sent()))
    assert sizes == [2, 20, 200]
    end(engine, "SUCCEEDED")
    assert engine.phase() == "ENDED"
    assert len(set(engine.sent())) == 200


def test_wave_begins_only_after_the_soak_and_not_if_errors_come_meanwhile() -> None:
    waves = [{"percentage": 50, "success_percentage": 50, "error_percentage": 25, "soak_s": 30}, {"percentage": 100}]
    engine = rolling(8, waves=waves)
    first = engine.sent()
    end(engine, "SUCCEEDED", *first[:2])
    engine.tick(after_s=28)
    assert engine.sent() == first
    end(engine, "FAILED", *first[2:])
    assert engine.phase() == "ENDED"
    assert engine.state.actions["a1"].message.startswith("aborted: 2 of 4 devices of wave 1 ended in error, more than")
    assert engine.sent() == first

    engine = rolling(8, waves=waves)
    end(engine, "SUCCEEDED", *engine.sent()[:2])
    engine.tick(after_s=29)
    assert len(engine.sent()) == 4
    engine.tick(after_s=1)
    assert len(engine.sent()) == 8


def test_wave_that_ends_short_of_its_successes_waits_for_a_person() -> None:
    engine = rolling(4, waves=[{"percentage": 50}, {"percentage": 100}])
    end(engine, "FAILED", engine.sent()[0])
    end(engine, "SUCCEEDED")
    assert (engine.phase(), len(engine.sent())) == ("WAITING_APPROVAL", 2)
    assert "wave 2 of 2 waits for approval" in engine.state.actions["a1"].message
    engine.ask("approve", by="bob")
    engine.tick()
    assert len(engine.sent()) == 4


def test_retry_of_what_failed_lets_a_held_wave_go_on() -> None:
    engine = rolling(2, waves=[{"percentage": 50}, {"percentage": 100}])
    (first,) = engine.sent()
    end(engine, "FAILED")
    engine.ask("retry")
    engine.tick()
    assert engine.target(first).attempt == 2
    end(engine, "SUCCEEDED", first)
    assert len(set(engine.sent())) == 2
    assert engine.published.count(f"a1/{first}/2") == 1


def test_nobody_approves_their_own_action() -> None:
    engine = rolling(2, needs_approval=True)
    assert (engine.phase(), engine.sent()) == ("WAITING_APPROVAL", [])
    for by, said in (("ann", "ann created the action: another person must approve it"), ("", "must name its author")):
        engine.ask("approve", by=by)
        engine.tick()
        assert said in engine.said()[0]
        assert engine.sent() == []
    engine.ask("approve", by="bob")
    engine.tick()
    assert len(engine.sent()) == 2
    engine.ask("approve", by="bob")
    engine.tick()
    assert "nothing waits for approval" in engine.said()[0]


def test_gate_that_asks_for_approval_waits_for_it_after_the_successes() -> None:
    engine = rolling(2, waves=[{"percentage": 50, "approve": True}, {"percentage": 100}])
    end(engine, "SUCCEEDED")
    assert engine.phase() == "WAITING_APPROVAL"
    engine.ask("approve", by="bob")
    engine.tick()
    assert (engine.phase(), len(engine.sent())) == ("RUNNING", 2)


def test_rate_holds_for_any_minute() -> None:
    engine = rolling(30, rate_per_minute=7)
    moments = [0] * len(engine.sent())
    for second in range(1, 260):
        engine.tick()
        moments += [second] * (len(engine.sent()) - len(moments))
    assert len(moments) == 30
    for start in range(260):
        assert sum(1 for moment in moments if start <= moment < start + 60) <= 7


def test_commands_that_reach_the_log_late_count_when_they_do() -> None:
    engine = Engine(devices=devices_of(*fleet(10)), broker_up=False)
    engine.actions.append(action_of(selector=EVERYBODY, rollout=Rollout(rate_per_minute=4)))
    engine.tick()
    engine.tick(after_s=100)
    assert sum(1 for target in engine.state.targets["a1"].values() if target.outbox) == 4
    engine.broker_up = True
    engine.tick()
    engine.tick(after_s=59)
    assert len(engine.sent()) == 4
    engine.tick(after_s=5)
    assert len(engine.sent()) == 8


def test_no_more_devices_are_in_flight_than_allowed() -> None:
    engine = rolling(10, max_in_flight=3)
    assert len(engine.sent()) == 3
    engine.tick()
    assert len(engine.sent()) == 3
    end(engine, "SUCCEEDED", engine.sent()[0])
    assert len(engine.sent()) == 4


def test_abort_stops_new_sends_at_once_and_asks_what_runs_to_stop() -> None:
    engine = rolling(20, max_in_flight=5, abort_percentage=30, abort_min_reported=3)
    first = engine.sent()
    end(engine, "FAILED", *first[:2])
    assert engine.phase() == "RUNNING"  # Two of two failed, but three must have ended.
    count = len(engine.sent())
    end(engine, "FAILED", first[2])
    assert engine.phase() == "STOPPING"
    assert len(engine.sent()) == count
    states = Counter(target.state for target in engine.state.targets["a1"].values())
    assert states == {S.FAILED: 3, S.CANCELLING: count - 3, S.CANCELLED: 20 - count}
    assert [event.event_id for event in engine.last.events] == ["engine/a1/ABORTED"]
    engine.ask("retry")
    engine.tick()
    assert "the action was stopped" in engine.said()[0]


def test_abort_replaces_a_command_that_is_owed_by_its_cancel() -> None:
    engine = rolling(4, max_in_flight=2, abort_percentage=0)
    engine.broker_up = False
    end(engine, "SUCCEEDED", engine.sent()[0])
    owed = [t.device_id for t in engine.state.targets["a1"].values() if t.outbox == "command"]
    end(engine, "FAILED", engine.sent()[1])
    assert [publish.idempotency_key for publish in engine.last.publishes] == [f"a1/{owed[0]}/1/cancel"]


def test_pause_sends_nothing_more_and_resume_goes_on() -> None:
    engine = rolling(4, max_in_flight=2)
    engine.ask("pause")
    end(engine, "SUCCEEDED")
    assert (engine.phase(), len(engine.sent())) == ("PAUSED", 2)
    assert engine.state.actions["a1"].message.startswith("paused; ")
    engine.ask("pause")
    engine.tick()
    assert "the action is PAUSED" in engine.said()[0]
    engine.ask("resume")
    engine.tick()
    assert (engine.phase(), len(engine.sent())) == ("RUNNING", 4)


def test_paused_targets_that_were_not_sent_do_not_time_out_but_sent_ones_do() -> None:
    engine = rolling(2, max_in_flight=1, timeouts=Timeouts(queued_s=30))
    engine.ask("pause")
    engine.tick()
    engine.tick(after_s=600)
    assert Counter(t.state for t in engine.state.targets["a1"].values()) == {S.TIMED_OUT: 1, S.PENDING: 1}


def test_not_before_holds_everything_back() -> None:
    engine = rolling(1, not_before_us=START_US + 60 * SECOND)
    engine.tick(after_s=50)
    assert engine.sent() == []
    engine.tick(after_s=10)
    assert len(engine.sent()) == 1


def test_retries_come_with_growing_pauses_under_new_attempts_and_then_end() -> None:
    engine = rolling(1, retries=2, retry_backoff_s=10)
    for attempt, pause_s in ((1, 10), (2, 20)):
        end(engine, "FAILED", "d000")
        assert (engine.target("d000").state, engine.target("d000").attempt) == (S.PENDING, attempt + 1)
        engine.tick(after_s=pause_s - 1)
        assert len(engine.published) == attempt
        engine.tick(after_s=2)
        assert engine.published[-1] == f"a1/d000/{attempt + 1}"
    end(engine, "FAILED", "d000")
    assert (engine.target("d000").state, engine.phase()) == (S.FAILED, "ENDED")


def test_timeout_is_tried_again_and_rejection_is_not() -> None:
    engine = rolling(2, retries=1, retry_backoff_s=0, timeouts=Timeouts(queued_s=30))
    end(engine, "REJECTED", "d000")
    engine.tick(after_s=30)
    assert (engine.target("d000").state, engine.target("d001").attempt) == (S.REJECTED, 2)
    assert "within 30 s" in (engine.target("d001").message or "")


def test_report_of_the_attempt_before_does_not_touch_the_next_one() -> None:
    engine = rolling(1, retries=1, retry_backoff_s=0, timeouts=Timeouts(queued_s=30))
    engine.tick(after_s=30)
    engine.tick()
    engine.tick(engine.report("FAILED", 5, device_id="d000", attempt=1))
    assert (engine.target("d000").state, engine.target("d000").attempt) == (S.QUEUED, 2)


def test_higher_priority_goes_first_when_there_is_not_room_for_all() -> None:
    engine = Engine(devices=devices_of(*fleet(3)), limits=Limits(publish_max=3))
    engine.actions.append(action_of("low", selector=EVERYBODY))
    engine.actions.append(action_of("high", selector=EVERYBODY, rollout=Rollout(priority=5)))
    engine.tick()
    assert [key.split("/")[0] for key in engine.published] == ["high"] * 3


def test_dependent_action_waits_for_its_device_and_skips_where_it_failed() -> None:
    engine = Engine(devices=devices_of("d1", "d2", "d3"))
    engine.actions.append(action_of("a1", selector=Selector(device_ids=("d1", "d2"))))
    engine.actions.append(action_of("a2", selector=EVERYBODY, rollout=Rollout(depends_on=("a1",))))
    engine.tick()
    engine.tick()
    assert [key for key in engine.published if key.startswith("a2")] == []
    engine.tick(engine.report("SUCCEEDED", 1, device_id="d1"), engine.report("FAILED", 2, device_id="d2"))
    engine.tick()
    assert [key for key in engine.published if key.startswith("a2")] == ["a2/d1/1"]
    assert engine.target("d2", "a2").state is S.SKIPPED
    assert engine.target("d3", "a2").message == "action a1, on which this one depends, has nothing for this device"


def test_window_is_by_the_clock_of_the_device() -> None:
    zones = {"berlin": "Europe/Berlin", "tokyo": "Asia/Tokyo"}
    devices = {id_: replace(devices_of(id_)[id_], time_zone=zone) for id_, zone in zones.items()}
    # START_US is 2027-01-15 08:00 UTC, a Friday: 09:00 in Berlin, 17:00 in Tokyo.
    engine = Engine(devices=devices)
    engine.actions.append(action_of(selector=EVERYBODY, rollout=Rollout(maintenance_window="Fri 17:00-19:00")))
    engine.tick()
    assert engine.sent() == ["tokyo"]
    engine.tick(after_s=8 * 3600)
    assert engine.sent() == ["tokyo", "berlin"]


def test_force_sends_outside_the_window() -> None:
    engine = rolling(2, maintenance_window="Sun 00:00-01:00")
    assert engine.sent() == []
    engine.ask("force", device_id="d001")
    engine.tick()
    assert engine.sent() == ["d001"]
    engine.ask("force")
    engine.tick()
    assert engine.sent() == ["d001", "d000"]


def test_force_ends_a_cancel_that_hangs() -> None:
    engine = rolling(1)
    engine.cancel()
    engine.tick()
    assert engine.target("d000").state is S.CANCELLING
    engine.ask("force", by="bob", reason="it is in a drawer")
    engine.tick()
    assert (engine.target("d000").state, engine.phase()) == (S.CANCELLED, "ENDED")
    assert "ended without its answer, forced by bob: it is in a drawer" in (engine.target("d000").message or "")


def test_device_that_leaves_is_removed_and_asked_to_stop_if_it_may_have_the_command() -> None:
    engine = rolling(3, max_in_flight=1)
    (sent,) = engine.sent()
    stays = "d002"
    engine.devices = devices_of(stays)
    engine.tick()
    states = {id_: target.state for id_, target in engine.state.targets["a1"].items()}
    assert states == {sent: S.REMOVED, "d001": S.REMOVED, stays: S.PENDING}
    assert engine.published == [f"a1/{sent}/1", f"a1/{sent}/1/cancel"]
    engine.tick()
    assert engine.sent()[-1] == stays


def test_dynamic_action_takes_in_who_comes_and_lets_go_who_leaves() -> None:
    engine = Engine(devices=devices_of("d1", labels={"site": "roof"}))
    selector = Selector(label_expression="site = roof")
    engine.actions.append(action_of(selector=selector, rollout=Rollout(membership="dynamic")))
    engine.tick()
    engine.tick(engine.report("SUCCEEDED", 1))
    assert engine.phase() == "RUNNING"  # Other devices may still join.
    engine.devices = {**devices_of("d1", "d2", labels={"site": "roof"}), **devices_of("d3", labels={"site": "cellar"})}
    engine.tick()
    assert sorted(engine.sent()) == ["d1", "d2"]
    engine.devices = {**devices_of("d1", labels={"site": "roof"}), **devices_of("d2", "d3", labels={"site": "cellar"})}
    engine.tick()
    assert engine.target("d2").state is S.REMOVED
    assert engine.target("d1").state is S.SUCCEEDED
    engine.cancel()
    engine.tick()
    assert engine.phase() == "ENDED"


def test_static_action_takes_nobody_in_later() -> None:
    engine = rolling(1)
    engine.devices = devices_of(*fleet(2))
    engine.tick()
    assert engine.sent() == ["d000"]


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        (Rollout(waves="{"), "waves is not JSON"),
        (Rollout(waves="[]"), "waves must be a list of 1 to 100 objects"),
        (Rollout(waves='[{"percentage": 10}]'), "waves must have increasing percentages that end with 100"),
        (
            Rollout(waves='[{"percentage": 10, "sok_s": 1}, {"percentage": 100}]'),
            "waves has the unknown key 'sok_s' in wave 1",
        ),
        (Rollout(waves='[{"percentage": "all"}]'), "waves has percentage 'all' in wave 1"),
        (Rollout(maintenance_window="sometimes"), "maintenance_window has 'sometimes'"),
        (Rollout(rate_per_minute=0), "rate_per_minute must be above 0"),
        (Rollout(membership="loose"), "membership must be 'static' or 'dynamic', not 'loose'"),
        (Rollout(needs_approval=True), "needs_approval requires another person than created_by, which is empty"),
        (Rollout(depends_on=("a0",)), "depends_on names action a0, which does not exist"),
        (Rollout(depends_on=("a1",)), "depends_on names the action itself"),
        (Rollout(retries=1_000), "retries must be from 0 to 100"),
        (Rollout(abort_percentage=101), "abort_percentage must be from 0 to 100"),
    ],
)
def test_row_that_cannot_be_carried_out_is_refused_by_its_column(rollout: Rollout, said: str) -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions.append(action_of(rollout=rollout))
    engine.actions.append(action_of("a2"))
    engine.tick()
    assert engine.phase() == "REFUSED"
    assert f"refused, nothing was sent: {said}" in engine.state.actions["a1"].message
    assert engine.published == ["a2/d1/1"]  # Nothing else is affected.


def test_action_whose_devices_are_all_skipped_says_so_at_its_end() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions.append(action_of("a1", selector=Selector(device_ids=("d1", "ghost"))))
    engine.actions.append(action_of("a2", rollout=Rollout(depends_on=("a1",))))
    engine.tick()
    engine.tick(engine.report("FAILED", 1))
    engine.tick()
    assert engine.state.actions["a2"].message == "of 1 devices 1 skipped"
    assert engine.state.actions["a1"].message == "of 2 devices 1 failed, 1 skipped"


def test_settings_reach_the_engine() -> None:
    section = ActionsSection(step_s=5, in_progress_s=6, allow_unsigned=True, trusted_keys=["k1"])
    limits = limits_of(section)
    assert (limits.step_s, limits.in_progress_s, limits.allow_unsigned) == (5, 6, True)
    assert limits.trusted_keys == frozenset({"k1"})


def test_device_that_never_reports_times_out_within_two_ticks_of_its_limit() -> None:
    engine = rolling(1, timeouts=Timeouts(queued_s=30))
    for _ in range(32):
        engine.tick()
    target = engine.target("d000")
    assert target.state is S.TIMED_OUT
    assert target.queued_us is not None
    assert (target.finished_us or 0) - target.queued_us <= 32 * SECOND


@pytest.mark.parametrize("after", ["nothing", "receipt", "ACCEPTED", "IN_PROGRESS"])
def test_cancel_at_any_time_after_the_send_ends_with_the_answer_of_the_device(after: str) -> None:
    engine = rolling(1)
    if after == "receipt":
        engine.tick(engine.receipt(1, device_id="d000"))
    elif after != "nothing":
        engine.tick(engine.report(after, 1, device_id="d000"))
    engine.cancel()
    engine.tick()
    assert engine.published == ["a1/d000/1", "a1/d000/1/cancel"]
    engine.tick(engine.report("CANCELLED", 2, device_id="d000"))
    assert (engine.target("d000").state, engine.phase()) == (S.CANCELLED, "ENDED")
    assert engine.state.actions["a1"].message.startswith("cancelled by ann; of 1 devices 1 cancelled")


def test_cancel_after_the_end_changes_nothing_and_says_so() -> None:
    engine = rolling(1)
    end(engine, "SUCCEEDED")
    engine.cancel()
    engine.tick()
    assert engine.said() == ["cancel: 0 ended at once, 0 asked to stop, 1 already ended"]
    assert (engine.target("d000").state, engine.state.actions["a1"].stopped) == (S.SUCCEEDED, None)


def test_late_success_of_an_attempt_makes_the_next_one_needless_until_it_is_sent() -> None:
    engine = rolling(2, retries=1, retry_backoff_s=60, timeouts=Timeouts(queued_s=30))
    engine.tick(after_s=30)
    first, second = (engine.target(id_) for id_ in ("d000", "d001"))
    assert [(target.state, target.attempt) for target in (first, second)] == [(S.PENDING, 2)] * 2
    done = engine.report("SUCCEEDED", 5, device_id="d000", attempt=1, result='"x"')
    (said,) = [event for event in engine.tick(done).events if event.state == "LATE_SUCCESS"]
    first = engine.target("d000")
    assert (first.state, first.late, first.result) == (S.SUCCEEDED, True, '"x"')
    assert first.message == said.message == "attempt 1 succeeded after it had been given up"
    engine.tick(engine.report("FAILED", 6, device_id="d001", attempt=1))
    engine.tick(after_s=60)
    assert engine.published[-1] == "a1/d001/2", "a completed command is not sent again"
    engine.tick(engine.report("SUCCEEDED", 7, device_id="d001", attempt=1))
    assert engine.target("d001").state is S.QUEUED, "after it is sent, its own answer counts"
    engine.tick(engine.report("FAILED", 8, device_id="d001", attempt=2))
    assert (engine.target("d001").state, engine.phase()) == (S.FAILED, "ENDED")
