"""Properties of any history of reports, receipts, cancels and silence."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine import SECOND, START_US

from actions.engine import (
    TERMINAL,
    Action,
    Device,
    EngineState,
    Limits,
    Place,
    Report,
    Request,
    Selector,
    Target,
    TargetState,
    Timeouts,
    apply,
    bucket,
    record_places,
    tick,
)

DEVICES = {id_: Device(device_id=id_, tenant="default") for id_ in ("d1", "d2", "d3")}
ACTION = Action(
    action_id="a1",
    tenant="default",
    type="command",
    name="echo",
    params="{}",
    selector=Selector(percentage=100),
    timeouts=Timeouts(queued_s=60, delivered_s=60, in_progress_s=60),
    created_us=START_US,
)
REPORTED = ("ACCEPTED", "IN_PROGRESS", "SUCCEEDED", "FAILED", "REJECTED", "CANCELLED")


@st.composite
def histories(draw: st.DrawFn, *, moving: bool = False) -> list[Report]:
    """What three devices and the broker may have written, in log order; seq mostly follows the offsets.

    A device's records are in one partition, unless it is `moving` from one broker to another. In that case no repeated
    report has different content, which a device that follows the protocol never sends.
    """
    reports = []
    for offset in range(draw(st.integers(0, 12))):
        receipt = draw(st.integers(0, 4)) == 0
        device_id = draw(st.sampled_from(("d1", "d2", "d3")))
        home = 5 if device_id == "d1" else 6
        reports.append(
            Report(
                source="receipt" if receipt else "status",
                log_id="log",
                partition=1 if receipt else draw(st.sampled_from((5, 6))) if moving else home,
                offset=offset,
                device_id=device_id,
                action_id="a1",
                attempt=1,
                state="DELIVERED" if receipt else draw(st.sampled_from(REPORTED)),
                at_us=START_US + offset,
                recorded_us=START_US,
                boot=None if receipt else draw(st.sampled_from(("b1", "b2"))),
                seq=None if receipt else offset if moving else draw(st.sampled_from((offset, max(0, offset - 2)))),
                progress=draw(st.none() | st.integers(0, 100)),
            )
        )
    return reports


def queued() -> EngineState:
    decision = tick(EngineState(), [ACTION], [], [], DEVICES, START_US)
    state = apply(EngineState(), decision)
    places = {publish: Place(2, offset) for offset, publish in enumerate(decision.publishes)}
    return apply(state, record_places(state, places, START_US))


def run(state: EngineState, reports: list[Report], now_us: int = START_US + SECOND) -> EngineState:
    return apply(state, tick(state, [ACTION], [], reports, DEVICES, now_us))


@given(histories(), st.data())
def test_order_and_repeats_within_a_read_do_not_matter(history: list[Report], data: st.DataObject) -> None:
    noise = data.draw(
        st.permutations(history + data.draw(st.lists(st.sampled_from(history)) if history else st.just([])))
    )
    assert run(queued(), noise) == run(queued(), history)


@given(histories(), st.data())
def test_rereading_any_part_of_the_past_changes_nothing(history: list[Report], data: st.DataObject) -> None:
    """A restart reads from an older version of `action_events`: applied reports arrive again before new ones."""
    once = replayed = queued()
    for cut in range(len(history)):
        once = run(once, history[cut : cut + 1])
        again = data.draw(st.integers(0, cut))
        replayed = run(replayed, history[again : cut + 1])
    assert replayed.targets == once.targets
    after = tick(once, [ACTION], [], history, DEVICES, START_US + SECOND)
    assert (after.target_updates, after.publishes, after.events) == ((), (), ())


@given(histories(moving=True), st.data())
def test_states_survive_rereading_when_a_device_changes_its_log(history: list[Report], data: st.DataObject) -> None:
    """Positions in two logs cannot be compared. Progress and message may then flicker, but no state goes back."""
    once = run(queued(), history)
    again = run(once, history[data.draw(st.integers(0, len(history))) :])
    assert [target.state for target in again.targets["a1"].values()] == [
        target.state for target in once.targets["a1"].values()
    ]


def outranks(before: Target, after: Target) -> bool:
    late = before.state is TargetState.TIMED_OUT and after.state is TargetState.SUCCEEDED and after.late
    return before == after or late


@given(histories(), st.lists(st.tuples(st.integers(0, 90), st.booleans()), max_size=12))
def test_terminal_states_are_final_and_counts_equal_targets(
    history: list[Report], steps: list[tuple[int, bool]]
) -> None:
    state, now_us = EngineState(), START_US
    requests: list[Request] = []
    for index, (wait_s, cancel) in enumerate([(0, False), *steps]):
        now_us += wait_s * SECOND
        if cancel:
            requests.append(Request(f"r{index}", "default", "a1", "cancel", at_us=now_us))
        new = history[index * 2 : index * 2 + 2]
        decision = tick(state, [ACTION], requests, new, DEVICES, now_us)
        after = apply(state, decision)
        for device_id, target in state.targets.get("a1", {}).items():
            if target.state in TERMINAL:
                assert outranks(target, after.targets["a1"][device_id])
        row, targets = after.actions["a1"], after.targets["a1"].values()
        assert row.targets == sum(row.counts.values()) == len(targets)
        assert row.open == sum(1 for target in targets if target.state not in TERMINAL)
        assert (row.ended_us is None) == (row.open > 0)
        assert all(target.outbox is None for target in targets if target.state in TERMINAL)
        state = after


@given(histories(), st.integers(0, 12), st.booleans(), st.integers(2, 3))  # All are sent before the reports come.
def test_repeated_tick_publishes_nothing_new(history: list[Report], cut: int, cancel: bool, publish_max: int) -> None:
    """If it is killed at any point after the commit, the engine publishes the same keys with the same bytes, and only
    once more."""
    limits = Limits(publish_max=publish_max)
    requests = [Request("r1", "default", "a1", "cancel", at_us=START_US)] if cancel else []
    state, log = EngineState(), dict[str, bytes]()
    for step in range(8):
        now_us = START_US + step * SECOND
        reports = history[:cut] if step == 2 else history[cut:] if step == 4 else []
        decision = tick(state, [ACTION], requests if step >= 2 else [], reports, DEVICES, now_us, limits=limits)
        committed = apply(state, decision)
        restarted = replace(committed, waiting=())
        again = tick(restarted, [ACTION], requests if step >= 2 else [], reports, DEVICES, now_us, limits=limits)
        assert again.publishes == decision.publishes
        assert (again.target_updates, again.events) == ((), ())
        for publish in (*decision.publishes, *again.publishes):
            assert log.setdefault(publish.idempotency_key, publish.value) == publish.value
        places = {publish: Place(2, offset) for offset, publish in enumerate(decision.publishes)}
        state = apply(committed, record_places(committed, places, now_us))
        # Once the positions are recorded, nothing that was published is owed.
        owed = {p.idempotency_key for p in tick(state, [ACTION], [], [], DEVICES, now_us, limits=limits).publishes}
        assert not owed & {publish.idempotency_key for publish in decision.publishes}


@given(st.lists(st.text(min_size=1, max_size=8), min_size=1, unique=True), st.floats(0.01, 100), st.floats(0.01, 100))
def test_percentage_does_not_depend_on_the_other_devices_and_only_grows(ids: list[str], a: float, b: float) -> None:
    def chosen(device_ids: list[str], percentage: float) -> set[str]:
        action = replace(ACTION, selector=Selector(percentage=percentage))
        devices = {id_: Device(device_id=id_, tenant="default") for id_ in device_ids}
        state = apply(EngineState(), tick(EngineState(), [action], [], [], devices, START_US))
        return set(state.targets.get("a1", {}))

    low, high = sorted((a, b))
    everyone = chosen(ids, high)
    assert chosen(ids, low) <= everyone
    assert chosen(ids, 100) == set(ids)
    half = ids[: len(ids) // 2]
    assert chosen(half, high) == everyone & set(half)


@settings(max_examples=1)
@given(st.just(20_000))
def test_buckets_are_even(count: int) -> None:
    """Negative control of the hash: a skewed one would put far more or fewer than a tenth below 1000."""
    below = sum(1 for i in range(count) if bucket("a1", f"sensor-{i}") < 1_000)
    assert 0.09 * count < below < 0.11 * count
