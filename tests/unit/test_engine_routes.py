"""Through which log a device gets its records: chosen by users, by its newest status, or the only one; and moves."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.engine import SECOND, Engine, action_of, devices_of

from actions.engine import (
    Action,
    Device,
    EngineState,
    Limits,
    Logs,
    Place,
    Rollout,
    Selector,
    Served,
    TargetState,
    apply,
    record_places,
)

S = TargetState
ROOF, YARD = Served("roof", "log-roof"), Served("yard", "log-yard")


def engine_of(
    *ids: str, logs: Logs | None = None, action: Action | None = None, limits: Limits | None = None
) -> Engine:
    engine = Engine(devices=devices_of(*ids), logs=logs or Logs((ROOF, YARD)), limits=limits or Limits())
    engine.actions.append(action or action_of(selector=Selector(device_ids=ids)))
    return engine


def online(engine: Engine, device_id: str, log_id: str, offset: int) -> None:
    about = {"action_id": "", "attempt": 0, "log_id": log_id, "device_id": device_id, "boot": f"b{offset}"}
    engine.tick(engine.report("ONLINE", offset, **about))


def with_log(engine: Engine, device_id: str, log: str | None) -> None:
    engine.devices = {**engine.devices, device_id: Device(device_id, "default", log=log)}


def commands(engine: Engine, log_id: str) -> list[str]:
    return sorted(engine.contents.get(log_id, {}))


def test_each_device_gets_its_command_through_the_log_where_it_last_reported() -> None:
    engine = engine_of("d1", "d2", "d3")
    online(engine, "d1", "log-roof", 1)
    online(engine, "d2", "log-yard", 1)
    assert (commands(engine, "log-roof"), commands(engine, "log-yard")) == (["a1/d1/1"], ["a1/d2/1"])
    assert [engine.target(id_).log_id for id_ in ("d1", "d2", "d3")] == ["log-roof", "log-yard", None]
    lost = engine.target("d3")
    assert (lost.state, lost.outbox) == (S.PENDING, None)
    assert (
        lost.message
        == "no log known yet: the device has sent no status, and devices.log does not name a log or a broker"
    )
    online(engine, "d3", "log-yard", 2)
    assert (engine.target("d3").state, engine.target("d3").message) == (S.QUEUED, None)


@pytest.mark.parametrize("log", ["yard", "log-yard"])
def test_devices_log_names_a_broker_or_a_log_and_wins_over_the_status(log: str) -> None:
    engine = engine_of("d1")
    with_log(engine, "d1", log)
    online(engine, "d1", "log-roof", 1)
    assert (commands(engine, "log-roof"), commands(engine, "log-yard")) == ([], ["a1/d1/1"])


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("cellar", "no broker that answers serves the log cellar that devices.log names, and no broker has this name"),
        ("barn", "no log known yet: the broker barn, which devices.log names, has not answered"),
    ],
)
def test_a_route_to_a_log_that_nobody_serves_waits_with_a_sentence(log: str, said: str) -> None:
    engine = engine_of("d1", logs=Logs((ROOF, YARD, Served("barn", None, away=True))))
    with_log(engine, "d1", log)
    engine.tick()
    assert engine.target().state is S.PENDING
    assert said in str(engine.target().message)
    assert engine.published == []
    engine.logs = Logs((ROOF, YARD, Served("barn", "cellar")))
    engine.tick()
    assert (engine.target().state, engine.target().log_id) == (S.QUEUED, "cellar")
    assert engine.target().message is None


def test_a_device_whose_log_has_no_broker_waits_with_a_sentence_and_goes_on_when_one_appears() -> None:
    engine = engine_of("d1")
    online(engine, "d1", "log-gone", 1)
    assert "serves the log log-gone, where the device last reported" in str(engine.target().message)
    engine.logs = Logs((ROOF, Served("yard", "log-gone")))
    engine.tick()
    assert commands(engine, "log-gone") == ["a1/d1/1"]


@pytest.mark.parametrize("logs", [Logs(), Logs((Served(None, "log-one"),)), Logs((Served(None, None, away=True),))])
def test_with_one_broker_every_device_without_a_route_is_reached_through_it(logs: Logs) -> None:
    """Also one that never spoke, or that last spoke to a box that has been replaced."""
    engine = engine_of("d1", "d2", logs=logs)
    online(engine, "d2", "log-of-an-older-box", 1)
    owed = {publish.device_id: publish.log_id for publish in engine.last.publishes}
    assert owed.keys() <= {"d1", "d2"}
    assert set(owed.values()) <= {logs.first}
    if not logs.brokers[0].away:
        assert [engine.target(id_).state for id_ in ("d1", "d2")] == [S.QUEUED, S.QUEUED]
        assert [engine.target(id_).log_id for id_ in ("d1", "d2")] == [logs.first, logs.first]


def test_a_broker_that_is_away_holds_up_its_own_devices_only() -> None:
    action = action_of(selector=Selector(percentage=100), rollout=Rollout(max_in_flight=1))
    engine = engine_of("d1", "d2", action=action, logs=Logs((replace(ROOF, away=True), YARD)))
    for offset, (id_, log_id) in enumerate([("d1", "log-roof"), ("d2", "log-yard")]):
        engine.tick(engine.report("ONLINE", offset, action_id="", attempt=0, log_id=log_id, device_id=id_))
    assert (engine.target("d1").state, engine.target("d2").state) == (S.PENDING, S.QUEUED)
    assert (
        engine.target("d1").message == "its broker does not answer: roof log-roof; the command is sent when it is back"
    )
    engine.tick(engine.report("SUCCEEDED", 7, device_id="d2", log_id="log-yard"))
    engine.logs = Logs((ROOF, YARD))
    engine.tick()
    assert commands(engine, "log-roof") == ["a1/d1/1"]


def test_publish_max_counts_for_each_log() -> None:
    ids = [f"d{number}" for number in range(8)]
    engine = engine_of(*ids, limits=Limits(publish_max=2))
    for number, id_ in enumerate(ids):
        with_log(engine, id_, "roof" if number < 6 else "yard")
    engine.broker_up = False
    engine.tick()
    assert [publish.log_id for publish in engine.last.publishes].count("log-roof") == 2
    assert [publish.log_id for publish in engine.last.publishes].count("log-yard") == 2


def test_a_queued_command_follows_its_device_and_the_old_copy_is_withdrawn_at_the_end() -> None:
    engine = engine_of("d1")
    online(engine, "d1", "log-roof", 1)
    online(engine, "d1", "log-yard", 1)
    moved = engine.target()
    assert (moved.state, moved.log_id, moved.outbox, moved.copies) == (S.QUEUED, "log-yard", None, ("1/log-roof",))
    assert engine.contents["log-roof"] == engine.contents["log-yard"], "the same key and the same bytes"
    for _ in range(3):
        engine.tick()
    assert commands(engine, "log-roof") == ["a1/d1/1"], "the command is still wanted, wherever the device gets it"
    engine.tick(engine.receipt(50, log_id="log-yard", command_partition=2, command_offset=moved.offset))
    engine.tick(engine.report("SUCCEEDED", 2, log_id="log-yard"))
    assert commands(engine, "log-roof") == ["a1/d1/1", "a1/d1/1/cancel"]
    assert json.loads(engine.contents["log-roof"]["a1/d1/1/cancel"])["type"] == "cancel"
    assert commands(engine, "log-yard") == ["a1/d1/1"]
    assert (engine.target().state, engine.target().copies) == (S.SUCCEEDED, ())
    assert engine.phase() == "ENDED"


def test_a_device_that_comes_back_finds_its_first_copy() -> None:
    engine = engine_of("d1")
    for offset, log_id in enumerate(["log-roof", "log-yard", "log-roof"]):
        online(engine, "d1", log_id, offset + 1)
    target = engine.target()
    assert (target.log_id, target.copies) == ("log-roof", ("1/log-yard",))
    assert commands(engine, "log-roof") == ["a1/d1/1"]


def test_the_receipt_of_the_old_copy_counts_and_leaves_the_new_one_to_be_withdrawn() -> None:
    engine = engine_of("d1")
    online(engine, "d1", "log-roof", 1)
    place = engine.target().offset
    online(engine, "d1", "log-yard", 1)
    engine.tick(engine.receipt(50, log_id="log-roof", command_partition=2, command_offset=place))
    target = engine.target()
    assert (target.state, target.log_id, target.partition, target.offset) == (S.DELIVERED, "log-roof", 2, place)
    assert target.copies == ("1/log-yard",)
    engine.tick(engine.report("SUCCEEDED", 2, log_id="log-yard"))
    assert commands(engine, "log-yard") == ["a1/d1/1", "a1/d1/1/cancel"]
    assert commands(engine, "log-roof") == ["a1/d1/1"]


def test_a_delivered_command_is_not_sent_again_and_its_cancel_follows_the_device() -> None:
    engine = engine_of("d1")
    online(engine, "d1", "log-roof", 1)
    engine.tick(engine.report("IN_PROGRESS", 2, log_id="log-roof"))
    online(engine, "d1", "log-yard", 1)
    assert commands(engine, "log-yard") == []
    engine.cancel()
    engine.tick()
    assert commands(engine, "log-yard") == ["a1/d1/1/cancel"]
    assert engine.target().cancel_log_id == "log-yard"
    online(engine, "d1", "log-roof", 3)
    assert commands(engine, "log-roof") == ["a1/d1/1", "a1/d1/1/cancel"], "the cancel moves too"
    engine.tick(engine.report("CANCELLED", 4, log_id="log-roof"))
    assert engine.target().state is S.CANCELLED


def test_a_cancel_reaches_every_log_that_has_a_copy() -> None:
    engine = engine_of("d1")
    online(engine, "d1", "log-roof", 1)
    online(engine, "d1", "log-yard", 1)
    engine.cancel()
    engine.tick()
    assert commands(engine, "log-roof") == commands(engine, "log-yard") == ["a1/d1/1", "a1/d1/1/cancel"]


def test_the_copy_of_an_attempt_that_was_given_up_is_withdrawn_before_the_next() -> None:
    action = action_of(selector=Selector(device_ids=("d1",)), rollout=Rollout(retries=1, retry_backoff_s=0))
    engine = engine_of("d1", action=action)
    online(engine, "d1", "log-roof", 1)
    online(engine, "d1", "log-yard", 1)
    taken = engine.receipt(50, log_id="log-yard", command_partition=2, command_offset=engine.target().offset)
    engine.tick(taken, engine.report("FAILED", 2, log_id="log-yard"))
    engine.tick()
    assert commands(engine, "log-roof") == ["a1/d1/1", "a1/d1/1/cancel"]
    assert commands(engine, "log-yard") == ["a1/d1/1", "a1/d1/2"]


def test_a_withdrawal_waits_for_its_broker_and_is_given_up_after_a_month() -> None:
    engine = engine_of("d1")
    online(engine, "d1", "log-roof", 1)
    engine.logs = Logs((replace(ROOF, away=True), YARD))
    online(engine, "d1", "log-yard", 1)
    engine.tick(engine.report("SUCCEEDED", 2, log_id="log-yard"))
    engine.logs = Logs((Served("roof", None, away=True), YARD))
    engine.tick()
    assert engine.target().copies == ("1/log-roof",)
    assert engine.last.publishes == ()
    engine.tick(after_s=29 * 24 * 3600)
    assert engine.target().copies == ("1/log-roof",)
    engine.tick(after_s=2 * 24 * 3600)
    assert engine.target().copies == ()


def test_a_command_that_may_have_reached_the_old_log_counts_as_a_copy() -> None:
    """Owed to a broker that went away before it answered."""
    engine = engine_of("d1")
    engine.broker_up = False
    online(engine, "d1", "log-roof", 1)
    (first,) = engine.last.publishes
    engine.logs = Logs((replace(ROOF, away=True), YARD))
    engine.broker_up = True
    online(engine, "d1", "log-yard", 1)
    target = engine.target()
    assert (target.state, target.log_id, target.copies) == (S.QUEUED, "log-yard", ("1/log-roof",))
    late = record_places(engine.state, {first: Place(2, 7, "log-roof")}, engine.now_us)
    assert late.target_updates == (), "the answer of the old broker comes too late to name the place"


def test_rows_of_an_older_version_belong_to_the_first_broker() -> None:
    engine = engine_of("d1", "d2", logs=Logs())
    engine.tick()
    engine.logs = Logs((ROOF, YARD))
    old = {id_: replace(engine.target(id_), log_id=None) for id_ in ("d1", "d2")}
    engine.state = replace(engine.state, targets={"a1": old}, devices=None, logs=None)
    online(engine, "d1", "log-roof", 1)
    assert engine.target("d1") == old["d1"], "it is where its command is"
    online(engine, "d2", "log-yard", 1)
    assert (engine.target("d2").log_id, engine.target("d2").copies) == ("log-yard", ("1/log-roof",))
    engine.cancel()
    engine.tick()
    assert commands(engine, "log-roof") == ["a1/d1/1/cancel", "a1/d2/1/cancel"]
    assert commands(engine, "log-yard") == ["a1/d2/1", "a1/d2/1/cancel"]


def test_a_replaced_box_gets_the_queued_commands_of_its_devices() -> None:
    engine = engine_of("d1", logs=Logs((ROOF,)))
    engine.tick()
    engine.logs = Logs((Served("roof", "log-new"),))
    engine.tick()
    assert commands(engine, "log-new") == ["a1/d1/1"]
    assert engine.target().log_id == "log-new"


def test_reports_across_logs_count_in_the_order_in_which_they_were_recorded() -> None:
    """By the text of the log id `log-roof` would come first."""
    engine = engine_of("d1")
    online(engine, "d1", "log-roof", 1)
    now = engine.now_us
    first = engine.report("FAILED", 9, log_id="log-yard", recorded_us=now)
    second = engine.report("SUCCEEDED", 2, log_id="log-roof", recorded_us=now + SECOND)
    engine.tick(second, first)
    assert engine.target().state is S.FAILED


def test_within_a_partition_the_offset_counts_whatever_the_recording_clock_says() -> None:
    engine = engine_of("d1")
    online(engine, "d1", "log-roof", 1)
    now = engine.now_us
    first = engine.report("FAILED", 2, log_id="log-roof", recorded_us=now + 5 * SECOND)
    second = engine.report("SUCCEEDED", 3, log_id="log-roof", recorded_us=now)
    engine.tick(second, first)
    assert engine.target().state is S.FAILED


def test_a_place_of_another_attempt_or_a_forgotten_action_changes_nothing() -> None:
    engine = engine_of("d1")
    engine.broker_up = False
    online(engine, "d1", "log-roof", 1)
    (publish,) = engine.last.publishes
    other = {replace(publish, attempt=2): Place(2, 1, "log-roof"), replace(publish, action_id="a9"): Place(2, 2)}
    assert record_places(engine.state, other, engine.now_us).target_updates == ()
    assert apply(EngineState(), record_places(EngineState(), other, engine.now_us)).targets == {}


def test_the_clock_of_a_broker_that_is_ahead_does_not_hold_its_devices() -> None:
    engine = engine_of("d1")
    ahead = engine.report("ONLINE", 1, action_id="", attempt=0, log_id="log-roof", at_us=engine.now_us + 10**15)
    engine.tick(ahead)
    fact = engine.state.facts["d1"]
    assert fact.last_seen_us == ahead.recorded_us
    stored = replace(fact, last_seen_us=ahead.at_us)  # As an older version wrote it.
    engine.state = replace(engine.state, facts={"d1": stored})
    engine.tick()
    online(engine, "d1", "log-yard", 2)
    assert engine.state.facts["d1"].log_id == "log-yard"
    assert (engine.target().log_id, engine.target().copies) == ("log-yard", ("1/log-roof",))


def test_a_status_that_was_read_late_does_not_bring_a_device_back() -> None:
    """Its broker was cut off; the device has reported somewhere else since."""
    engine = engine_of("d1")
    early = engine.now_us
    online(engine, "d1", "log-yard", 1)
    engine.tick(engine.report("ONLINE", 1, action_id="", attempt=0, log_id="log-roof", at_us=early, boot="b0"))
    assert engine.state.facts["d1"].log_id == "log-yard"
