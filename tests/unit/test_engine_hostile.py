"""Absurd rows: each is refused with a reason or executed, and a valid row beside it is not affected."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine import SECOND, START_US, Engine, action_of, devices_of

from actions.engine import Artifact, Limits, Ota, Rollout, Selector, TargetState
from actions.rows import action_of as action_of_row
from actions.rows import (
    artifact_of,
    device_of,
    request_of,
    states_table,
    targets_table,
)
from sinks.rows import arrow_of, rows_of
from sinks.tables import ACTION_REQUESTS, ACTIONS, ARTIFACTS, DEVICES, FieldTable

S = TargetState
NASTY = (
    "", " ", "'", '"', "a/b", "a\nb", "a\x00b", "🙂", "\\", "'; DROP TABLE actions; --", "{}", "[]", "null", "NaN",
    "[" * 5_000, '{"x": NaN}', '{"x": "\\ud800"}', '{"x": 1e999}', "x" * 300, "x" * 300_000, "../../etc/passwd",
    '[{"percentage": 100, "soak_s": 99999999999}]', "Mon 00:00-24:00", "not", "a = (", "ota", "dynamic", "soft",
)  # fmt: skip
GOOD = {"action_id": "good", "name": "echo", "params": '{"x": 1}', "device_ids": ["d1"], "created_by": "ann"}
FIRMWARE = {"name": "fw", "version": "2", "sha256": "a" * 64, "size_bytes": 10, "signature": "b" * 128}
OTA = {"action_id": "bad", "type": "ota", "artifact_name": "fw", "artifact_version": "2", "percentage": 100.0}


def value_of(kind: str) -> st.SearchStrategy[Any]:
    text = st.sampled_from(NASTY) | st.text(max_size=5)
    small = st.sampled_from((-(2**31), -1, 0, 1, 7, 2**31 - 1))
    values: Mapping[str, st.SearchStrategy[Any]] = {
        "string": text,
        "int": small,
        "bigint": small | st.sampled_from((-(2**63), 2**63 - 1)),
        "double": st.floats() | st.sampled_from((0.0, 100.0, 1e308)),
        "boolean": st.booleans(),
        "timestamp": st.sampled_from((-(2**62), 0, START_US - SECOND, START_US + 5 * SECOND, 2**62)),
        "array<string>": st.lists(st.none() | text | st.sampled_from(("d1", "good", "bad")), max_size=3),
        "map<string,string>": st.dictionaries(text, st.none() | text, max_size=3),
    }
    return st.none() | values[kind]


def spoiled(table: FieldTable, base: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A row in which one to three columns have a bad value."""
    column = st.sampled_from(table.fields).flatmap(lambda c: st.tuples(st.just(c.name), value_of(c.type)))
    return st.lists(column, min_size=1, max_size=3).map(lambda wrong: {**base, **dict(wrong)})


def through(table: FieldTable, row: Mapping[str, Any]) -> dict[str, Any]:
    """The row as the engine reads it from the table."""
    return next(iter(rows_of(arrow_of([row], table))))


def check(engine: Engine) -> None:
    """Published records are JSON for one device, and decisions fit the tables."""
    for publish in engine.last.publishes:
        body = json.loads(publish.value, parse_constant=lambda word: pytest.fail(f"{word} was sent"))
        assert publish.topic == f"devices/{body['device_id']}/actions"
        assert publish.topic.count("/") == 2
        assert len(publish.value) < 1024 * 1024
    targets_table(engine.last.target_updates)
    states_table(engine.last.state_updates)
    for row in engine.last.state_updates:
        assert len(row.message) < 2_000


def run(engine: Engine) -> None:
    for after_s in (1, 1, 3_600, -7_200, 10_800):
        engine.tick(after_s=after_s)
        check(engine)
    engine.tick(engine.report("SUCCEEDED", 5, action_id="good"))
    check(engine)
    assert engine.target("d1", "good").state is S.SUCCEEDED, "the valid action was affected"


def beside_good(action: Mapping[str, Any] | None = None, artifact: Mapping[str, Any] = FIRMWARE) -> Engine:
    found = artifact_of(through(ARTIFACTS, artifact))
    engine = Engine(devices=devices_of("d1", "d2"), artifacts={found.key: found})
    engine.actions.append(action_of_row(through(ACTIONS, GOOD), commit_version=1))
    if action is not None:
        engine.actions.append(action_of_row(through(ACTIONS, action), commit_version=2))
    return engine


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.sampled_from(({**GOOD, "action_id": "bad"}, OTA)).flatmap(lambda base: spoiled(ACTIONS, base)))
def test_any_row_of_actions_is_refused_in_words_or_carried_out(row: dict[str, Any]) -> None:
    engine = beside_good({**row, "action_id": row["action_id"] if row["action_id"] != "good" else "bad"})
    run(engine)
    (bad,) = [state for id_, state in engine.state.actions.items() if id_ != "good"]
    if bad.phase == "REFUSED":
        assert bad.message.startswith("refused, nothing was sent: ")
        assert not engine.state.targets.get(bad.action_id)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(spoiled(DEVICES, {"device_id": "d2"}), spoiled(ARTIFACTS, FIRMWARE))
def test_any_device_and_any_artifact_disturb_nobody_else(device: dict[str, Any], artifact: dict[str, Any]) -> None:
    engine = beside_good({**OTA, "maintenance_window": "Mon-Sun 00:00-24:00"}, artifact)
    known = device_of(through(DEVICES, device))
    if known.device_id != "d1":
        engine.devices = {**engine.devices, known.device_id: known}
    run(engine)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(spoiled(ACTION_REQUESTS, {"request_id": "r1", "action_id": "other", "kind": "cancel", "by": "bob"}))
def test_any_request_is_answered_or_left_alone(row: dict[str, Any]) -> None:
    engine = beside_good()
    engine.actions.append(action_of("other"))
    row = {**row, "action_id": row["action_id"] if row["action_id"] != "good" else "other"}
    engine.requests.append(request_of(through(ACTION_REQUESTS, row), committed_us=START_US))
    run(engine)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"params": '{"x": NaN}'}, "params is not JSON: NaN is not a number"),
        ({"params": '{"x": -Infinity}'}, "params is not JSON: -Infinity is not a number"),
        ({"params": '{"x": "\\ud800"}'}, "params is not JSON"),
        ({"params": '{"x": "' + "é" * 200_000 + '"}'}, "params has 400008 bytes; the limit is 262144"),
        ({"params": '{"x": [' + ",".join(["1e15"] * 50_000) + "]}"}, "bytes; the limit is 262144"),
        ({"params": "[" * 100_000}, "params is not JSON"),
        ({"action_id": "a\nb"}, "action_id must not contain control characters"),
        ({"type": "x" * 10_000}, "type 'xxx"),
        (
            {"ota": Ota(artifact_name="x" * 300, artifact_version="1"), "type": "ota"},
            "artifact_name has 300 characters",
        ),
        (
            {"ota": Ota(artifact_name="pump", artifact_version="#/+x"), "type": "ota"},
            "artifact_version '#/+x' cannot be a level of the topics of artifacts",
        ),
    ],
    ids=str,
)
def test_what_would_not_reach_a_device_is_refused_by_its_column(fields: dict[str, object], said: str) -> None:
    engine = Engine(devices=devices_of("d1"), actions=[action_of(**fields)])
    engine.tick()
    (state,) = engine.state.actions.values()
    assert state.phase == "REFUSED"
    assert said in state.message
    assert len(state.message) <= 1_001


@pytest.mark.parametrize(
    "device_id", ["a/b", "a+b", "#", "a\x00b", "a\nb", "a\x85", "\ufdd0", "\U0010ffff", "x" * 2_000]
)
def test_device_whose_id_cannot_be_in_a_topic_is_skipped_and_holds_nobody_up(device_id: str) -> None:
    engine = Engine(devices=devices_of("d1", device_id), actions=[action_of(selector=Selector(percentage=100))])
    engine.tick()
    skipped = engine.target(device_id)
    assert (skipped.state, skipped.message) == (S.SKIPPED, "its id cannot be a level of the topic devices/<id>/actions")
    assert engine.published == ["a1/d1/1"]


@pytest.mark.parametrize("by", ["ann", " Ann", "ANN ", "  "])
def test_the_one_who_asked_cannot_approve_by_spelling_the_name_otherwise(by: str) -> None:
    action = action_of(created_by="ann", rollout=Rollout(needs_approval=True))
    engine = Engine(devices=devices_of("d1"), actions=[action])
    engine.tick()
    engine.ask("approve", by=by)
    engine.tick()
    assert engine.said()[0].startswith("refused: ")
    assert engine.published == []


def test_ids_with_quotes_emoji_and_backslashes_are_ids_like_any_other() -> None:
    ids = ["it's", '"', "🙂", "\\", "a b", "%_", "'; DROP TABLE actions; --"]
    engine = Engine(devices=devices_of(*ids))
    engine.actions += [action_of(f"do {id_}", selector=Selector(device_ids=(id_,))) for id_ in ids]
    engine.tick()
    engine.tick(
        *(engine.report("SUCCEEDED", n, device_id=id_, action_id=f"do {id_}") for n, id_ in enumerate(ids, start=1))
    )
    assert {state.phase for state in engine.state.actions.values()} == {"ENDED"}
    assert [engine.target(id_, f"do {id_}").state for id_ in ids] == [S.SUCCEEDED] * len(ids)


def test_two_rows_of_one_id_in_one_commit_are_one_action_and_a_named_refusal_whatever_their_order() -> None:
    rows = [action_of(name=name, commit_version=3) for name in ("one", "other")]
    found = []
    for actions in (rows, rows[::-1]):
        engine = Engine(devices=devices_of("d1"), actions=list(actions))
        engine.tick()
        (publish,), (said,) = engine.last.publishes, engine.said()
        found.append((publish.value, said))
    assert found[0] == found[1]
    assert "was committed earlier and is used: choose another id" in found[0][1]


def test_pause_twice_retry_without_errors_and_cancel_twice_are_answered_with_what_is() -> None:
    engine = Engine(devices=devices_of("d1"), actions=[action_of()])
    engine.tick()
    answers = []
    for kind in ("retry", "pause", "pause", "resume", "resume", "cancel", "cancel", "pause", "approve"):
        engine.ask(kind, by="bob")
        engine.tick()
        answers.append((kind, engine.said()[0]))
    assert answers == [
        ("retry", "refused: no device ended in error"),
        ("pause", "pause: nothing more is sent until it is resumed"),
        ("pause", "refused: the action is PAUSED"),
        ("resume", "resume: the action continues"),
        ("resume", "refused: the action is RUNNING, not PAUSED"),
        ("cancel", "cancel: 0 ended at once, 1 asked to stop, 0 already ended"),
        ("cancel", "cancel: 0 ended at once, 1 asked to stop, 0 already ended"),
        ("pause", "refused: the action is STOPPING"),
        ("approve", "refused: the action is STOPPING: nothing waits for approval"),
    ]
    assert engine.published == ["a1/d1/1", "a1/d1/1/cancel"]


def test_fifty_updates_of_the_same_devices_go_one_after_the_other_by_priority() -> None:
    ids = [f"d{number}" for number in range(4)]
    engine = Engine(devices=devices_of(*ids))
    artifacts = [Artifact("fw", f"{n}", "default", "a" * 64, 10, "b" * 128) for n in range(50)]
    engine.artifacts = {artifact.key: artifact for artifact in artifacts}
    for number in range(50):
        ota = Ota(artifact_name="fw", artifact_version=f"{number}")
        rollout = Rollout(priority=number % 10)
        engine.actions.append(
            action_of(f"a{number:02}", type="ota", selector=Selector(percentage=100), ota=ota, rollout=rollout)
        )
    answered = 0
    for _ in range(60):
        keys = [key.split("/") for key in engine.published[answered:]]
        assert len({device_id for _, device_id, _ in keys}) == len(keys), "a device has one update at a time"
        reports = []
        for action_id, device_id, _ in keys:
            answered += 1
            said = {"device_id": device_id, "action_id": action_id, "version": str(int(action_id[1:]))}
            reports.append(engine.report("SUCCEEDED", answered, **said))
        engine.tick(*reports)
    order = [key.split("/")[0] for key in engine.published if "/d0/" in key]
    assert order == sorted(order, key=lambda id_: (-(int(id_[1:]) % 10), id_))
    assert len(order) == 50
    assert {state.phase for state in engine.state.actions.values()} == {"ENDED"}


def test_clock_that_jumps_back_sends_nothing_twice_and_ends_nothing_early() -> None:
    rollout = Rollout(rate_per_minute=2, retries=1, retry_backoff_s=10)
    engine = Engine(devices=devices_of(*"abc"), limits=Limits(queued_s=60))
    engine.actions.append(action_of(selector=Selector(percentage=100), rollout=rollout))
    engine.tick()
    assert engine.sent() == ["a", "b"]
    engine.tick(after_s=-3_600)
    engine.tick(after_s=10)
    assert engine.sent() == ["a", "b"], "commands counted in the future count"
    assert {target.state for target in engine.state.targets["a1"].values()} == {S.QUEUED, S.PENDING}
    engine.tick(after_s=3_590)
    engine.tick(after_s=61)
    assert engine.target("a").attempt == 2
    assert len(set(engine.published)) == len(engine.published)


def test_commands_that_are_large_become_owed_a_few_at_a_time() -> None:
    params = json.dumps({"x": "y" * 250_000})
    ids = [f"d{number:04}" for number in range(1_000)]
    engine = Engine(devices=devices_of(*ids), actions=[action_of(selector=Selector(percentage=100), params=params)])
    engine.tick()
    assert 100 < len(engine.published) < 300
    for _ in range(4):
        engine.tick()
    assert len(engine.published) == 1_000
