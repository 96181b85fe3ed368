"""An update that its device has not received gives way to a more urgent one, and gets another attempt after it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.engine import Engine, action_of, devices_of

from actions.engine import Action, Artifact, Limits, Logs, Ota, Rollout, Selector, Served, TargetState, Timeouts
from actions.rows import target_of, targets_table
from sinks.rows import rows_of

S = TargetState
ROOF = Served("roof", "log-roof")
ONE = Logs((ROOF,))
EVERYBODY = Selector(percentage=100)
FIRMWARE = {number: Artifact("fw", str(number), "default", "a" * 64, 10, "b" * 128, "k1") for number in (2, 3)}


def update(action_id: str, version: int, *, priority: int = 0, supersede: bool = False, **rollout: object) -> Action:
    ota = Ota(artifact_name="fw", artifact_version=str(version), supersede=supersede)
    order = Rollout(priority=priority, **rollout)  # type: ignore[arg-type]
    times = Timeouts(queued_s=1000)
    return action_of(
        action_id, type="ota", name="update", params="{}", selector=EVERYBODY, ota=ota, rollout=order, timeouts=times
    )


def queued(*device_ids: str, logs: Logs = ONE, **rollout: object) -> Engine:
    """`a1` is in the log for devices that are away."""
    ids = device_ids or ("d1",)
    engine = Engine(devices=devices_of(*ids), logs=logs, limits=Limits(allow_unsigned=True))
    engine.artifacts = {one.key: one for one in FIRMWARE.values()}
    engine.actions.append(update("a1", 2, **rollout))
    about = {"action_id": "", "attempt": 0, "log_id": "log-roof", "version": "1"}
    engine.tick(*(engine.report("ONLINE", number, device_id=id_, **about) for number, id_ in enumerate(ids)))
    engine.tick()
    assert {engine.target(id_).state for id_ in ids} == {S.QUEUED}
    return engine


def urged(engine: Engine, **fields: object) -> Engine:
    """A more urgent update has come."""
    engine.actions.append(update("a2", 3, **{"priority": 5, **fields}))  # type: ignore[arg-type]
    for _ in range(3):
        engine.tick()
    return engine


def said(engine: Engine, state: str, offset: int, **fields: object) -> None:
    engine.tick(engine.report(state, offset, log_id="log-roof", **fields))


TAKEN = ["a1/d1/1", "a1/d1/1/cancel", "a2/d1/1"]


def test_an_urgent_update_does_not_wait_for_one_that_its_device_has_not_received() -> None:
    engine = urged(queued())
    assert engine.published == TAKEN
    assert (engine.target().state, engine.target(action_id="a2").state) == (S.CANCELLING, S.QUEUED)
    assert engine.target().message == "gives way to a2, which has a higher priority"


def test_the_urgent_command_is_sent_after_the_cancel_of_the_other_one() -> None:
    engine = queued()
    engine.broker_up = False
    urged(engine)
    assert [one.idempotency_key for one in engine.last.publishes] == ["a1/d1/1/cancel"]
    engine.broker_up = True
    engine.tick()
    engine.tick()
    assert engine.published == TAKEN


def test_what_gave_way_gets_its_next_attempt_after_the_urgent_one() -> None:
    engine = urged(queued())
    said(engine, "CANCELLED", 11)
    assert (engine.target().state, engine.target().attempt, engine.target().message) == (
        S.PENDING,
        2,
        "attempt 1 gave way to a2",
    )
    engine.tick()
    assert engine.published == TAKEN, "it waits until the urgent one has ended"
    said(engine, "SUCCEEDED", 12, action_id="a2", version="3")
    engine.tick()
    assert (engine.published[3:], engine.target().state) == (["a1/d1/2"], S.QUEUED)
    said(engine, "SUCCEEDED", 13, attempt=2, version="2")
    assert (engine.target().state, engine.target().erred, engine.phase()) == (S.SUCCEEDED, False, "ENDED")


@pytest.mark.parametrize("answer", ["DELIVERED", "ACCEPTED", "IN_PROGRESS"])
def test_an_update_that_its_device_has_received_does_not_give_way(answer: str) -> None:
    engine = queued()
    if answer == "DELIVERED":
        place = {"command_partition": 2, "command_offset": engine.target().offset}
        engine.tick(engine.receipt(7, log_id="log-roof", **place))
    else:
        said(engine, answer, 7)
    urged(engine)
    assert engine.published == ["a1/d1/1"]
    assert engine.target(action_id="a2").state is S.PENDING


@pytest.mark.parametrize("priority", [0, -1])
def test_an_update_gives_way_to_a_strictly_higher_priority_alone(priority: int) -> None:
    engine = urged(queued(), priority=priority)
    assert engine.published == ["a1/d1/1"]


def test_a_command_gives_way_to_no_update() -> None:
    engine = Engine(devices=devices_of("d1"), logs=ONE, limits=Limits(allow_unsigned=True))
    engine.artifacts = {one.key: one for one in FIRMWARE.values()}
    engine.actions.append(action_of())
    engine.tick()
    urged(engine)
    assert engine.published == ["a1/d1/1", "a2/d1/1"]


def test_a_device_that_took_the_command_first_is_awaited() -> None:
    """The receipt comes after the decision, and before the urgent command could be sent."""
    engine = queued()
    engine.broker_up = False
    engine.actions.append(update("a2", 3, priority=5))
    engine.tick()
    said(engine, "IN_PROGRESS", 7)
    engine.broker_up = True
    for _ in range(3):
        engine.tick()
    assert engine.published == TAKEN[:2]
    said(engine, "SUCCEEDED", 8, version="2")
    engine.tick()
    assert (engine.target().state, engine.target().gives_way, engine.published) == (S.SUCCEEDED, None, TAKEN)


def test_a_failure_of_what_should_give_way_is_a_failure() -> None:
    engine = queued(retries=1, retry_backoff_s=0)
    engine.broker_up = False
    engine.actions.append(update("a2", 3, priority=5))
    engine.tick()
    said(engine, "FAILED", 7)
    assert (engine.target().state, engine.target().attempt, engine.target().erred) == (S.PENDING, 2, True)


@pytest.mark.parametrize("refuses", [True, False])
def test_giving_way_is_no_error_and_costs_no_retry(refuses: bool) -> None:
    engine = urged(queued(retries=1, retry_backoff_s=0, abort_percentage=0))
    said(engine, "REJECTED" if refuses else "CANCELLED", 11)
    said(engine, "SUCCEEDED", 12, action_id="a2", version="3")
    engine.tick()
    said(engine, "FAILED", 13, attempt=2)
    assert engine.state.actions["a1"].stopped == "aborted: 1 of 1 devices ended in error, more than 0 %"
    engine = urged(queued(retries=1, retry_backoff_s=0))
    said(engine, "REJECTED" if refuses else "CANCELLED", 11)
    assert (engine.target().erred, engine.target().given_up) == (False, 1)
    said(engine, "SUCCEEDED", 12, action_id="a2", version="3")
    engine.tick()
    said(engine, "FAILED", 13, attempt=2)
    engine.tick()
    assert (engine.target().attempt, engine.target().state) == (3, S.QUEUED)


def test_an_urgent_update_that_times_out_gives_the_device_back() -> None:
    """Its withdrawal is in the log before the next attempt: otherwise the device would begin with it."""
    engine = urged(queued())
    engine.tick(after_s=1001)
    engine.tick()
    engine.tick()
    assert engine.target(action_id="a2").state is S.TIMED_OUT
    assert engine.published[3:] == ["a2/d1/1/cancel", "a1/d1/2"]
    assert (engine.target().state, engine.target().attempt, engine.target().erred) == (S.QUEUED, 2, False)


def test_a_cancelled_urgent_update_gives_the_device_back() -> None:
    engine = urged(queued())
    engine.cancel(action_id="a2")
    engine.tick()
    said(engine, "CANCELLED", 12, action_id="a2")
    engine.tick()
    assert engine.published[-1] == "a1/d1/2"


@pytest.mark.parametrize("of_one", [True, False])
@pytest.mark.parametrize("answers", [True, False])
def test_a_cancel_of_a_user_ends_what_gave_way_for_good(of_one: bool, answers: bool) -> None:
    engine = urged(queued("d1", "d2"))
    engine.cancel(device_id="d1" if of_one else None)
    reports = [engine.report("CANCELLED", 11, log_id="log-roof")] if answers else []
    engine.tick(*reports)
    if not answers:
        said(engine, "CANCELLED", 12)
    said(engine, "SUCCEEDED", 13, action_id="a2", version="3")
    engine.tick()
    assert engine.target().state is S.CANCELLED
    assert "a1/d1/2" not in engine.published


def test_a_device_that_leaves_while_its_update_gives_way_is_removed() -> None:
    engine = urged(queued("d1", "d2", membership="dynamic"))
    engine.devices = devices_of("d2")
    engine.tick()
    assert engine.target().state is S.REMOVED
    engine.devices = devices_of("d1", "d2")
    engine.tick()
    assert (engine.target().state, engine.target().attempt) == (S.QUEUED, 2), "nobody had cancelled it"


def test_the_deadline_of_what_gave_way_still_ends_it() -> None:
    engine = queued()
    limit_us = engine.now_us + 100_000_000
    engine = Engine(devices=engine.devices, logs=ONE, limits=engine.limits, artifacts=engine.artifacts)
    engine.actions.append(replace(update("a1", 2), deadline_us=limit_us))
    engine.tick()
    urged(engine)
    engine.now_us = limit_us
    engine.tick()
    assert (engine.target().state, engine.target().attempt) == (S.TIMED_OUT, 1)


def test_no_more_updates_give_way_than_the_urgent_action_may_send() -> None:
    ids = tuple(f"d{number}" for number in range(5))
    engine = urged(queued(*ids), max_in_flight=2)
    cancels = [key for key in engine.published if key.endswith("cancel")]
    assert (cancels, [key for key in engine.published if key.startswith("a2")]) == (
        ["a1/d0/1/cancel", "a1/d1/1/cancel"],
        ["a2/d0/1", "a2/d1/1"],
    )


@pytest.mark.parametrize("waits", ["pause", "window", "approval"])
def test_nothing_gives_way_to_an_action_that_does_not_send(waits: str) -> None:
    engine = queued()
    more = {"window": {"maintenance_window": "Mon 00:00-00:01"}, "approval": {"needs_approval": True}}
    engine.actions.append(update("a2", 3, priority=5, **more.get(waits, {})))
    if waits == "pause":
        engine.ask("pause", action_id="a2")
    for _ in range(3):
        engine.tick()
    assert engine.published == ["a1/d1/1"]


def test_a_superseding_update_still_ends_the_older_one() -> None:
    engine = urged(queued(), supersede=True)
    assert engine.published == TAKEN
    said(engine, "CANCELLED", 11)
    assert (engine.target().state, engine.target().gives_way) == (S.CANCELLED, None)


def test_what_gave_way_does_not_hold_up_the_urgent_one_for_ever_if_its_log_is_gone() -> None:
    engine = queued(logs=Logs((ROOF, Served("yard", "log-yard"))))
    engine.broker_up = False
    engine.actions.append(update("a2", 3, priority=5))
    engine.tick()
    engine.broker_up, engine.logs = True, Logs((Served("roof", None, away=True), Served("yard", "log-yard")))
    engine.tick(after_s=1001)
    assert (engine.target().state, engine.target().attempt, engine.target().copies) == (S.PENDING, 2, ("1/log-roof",))
    engine.logs = Logs((ROOF, Served("yard", "log-yard")))
    for _ in range(3):
        engine.tick()
    assert engine.published == TAKEN


def test_a_restarted_engine_knows_what_gave_way() -> None:
    engine = urged(queued())
    (row,) = rows_of(targets_table([engine.target()]))
    assert target_of(row) == engine.target()
    assert target_of({**row, "gives_way": None, "given_up": None}).given_up == 0
