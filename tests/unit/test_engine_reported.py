"""Actions that select devices by what they report: the expression, static and dynamic actions. The pure function
only."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine import SECOND, START_US, Engine, action_of, devices_of

from actions.engine import Action, Device, DeviceState, Ota, Rollout, Selector, TargetState, rests_until_us
from actions.engine.expressions import ExpressionError
from actions.engine.reported_expression import compiled_reported
from actions.rows import action_of as action_of_row
from actions.status_rows import parse

S = TargetState
DAY_S = 24 * 3600
FACT = DeviceState("d1", "default", START_US - 3 * DAY_S * SECOND, "log", 0, 1, version="1.9.0", hardware="rev-b")


def reporting(expression: str, *device_ids: str, membership: str = "static", **fields: object) -> Engine:
    engine = Engine(devices=devices_of(*device_ids))
    selector = Selector(reported_expression=expression)
    engine.actions.append(action_of(selector=selector, rollout=Rollout(membership=membership), **fields))
    return engine


def online(engine: Engine, device_id: str, offset: int, **facts: object) -> Any:
    about = {"action_id": "", "attempt": 0, "boot": f"b{offset}"}
    return engine.report("ONLINE", offset, device_id=device_id, **{**about, **facts})


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("version < 2.0.0", True),
        ("version < 1.10.0", True),
        ("version >= 1.9.0 and version <= 1.9.0", True),
        ("version > 1.9.0-rc.1", True),
        ("version < 2", True),
        ("version < semver 2.0.0", True),
        ("version > pep440 1.9rc1", True),
        ("version = 1.9", False),
        ("version in (1.9.0, 2.0.0)", True),
        ("version != 2.0.0", True),
        ("hardware = rev-b and not hardware in (rev-a)", True),
        ("product", False),
        ("product != p1", True),
        ("seen", True),
        ("seen < 7d", True),
        ("seen < 3d", False),
        ("seen <= 3d", True),
        ("seen > 71h", True),
        ("seen >= 1w", False),
    ],
)
def test_expression_selects_by_reports(text: str, holds: bool) -> None:
    assert compiled_reported(text).holds((FACT, START_US)) is holds


def test_comparison_never_holds_for_a_device_that_has_not_reported_the_fact() -> None:
    for text in ("version < 99.0.0", "version >= 0.0.1", "seen < 9w", "seen >= 0s", "seen", "version"):
        assert not compiled_reported(text).holds((None, START_US)), text
    assert compiled_reported("not seen < 7d").holds((None, START_US))


HOSTILE_VERSIONS = ["9" * 5_000, "1.0.0-" + "9" * 5_000, "1." * 300 + "0", "1.0.0a" + "0" * 60_000]
"""Python refuses to read a number of more than 4,300 digits."""


@pytest.mark.parametrize("version", ["nightly", "1.9.0~3", *HOSTILE_VERSIONS], ids=lambda version: version[:12])
def test_version_without_an_order_matches_no_comparison(version: str) -> None:
    fact = DeviceState("d1", "default", START_US, "log", 0, 1, version=version)
    assert not compiled_reported("version < 2.0.0 or version >= 2.0.0").holds((fact, START_US))


def test_named_order_decides_where_the_two_orders_differ() -> None:
    """In SemVer 1.0.0-1 is before 1.0.0, in PEP 440 behind it."""
    fact = DeviceState("d1", "default", START_US, "log", 0, 1, version="1.0.0-1")
    assert compiled_reported("version < 1.0.0").holds((fact, START_US))
    assert compiled_reported("version < semver 1.0.0").holds((fact, START_US))
    assert compiled_reported("version > pep440 1.0.0").holds((fact, START_US))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("site = roof", "has 'site' where version, product, hardware or seen should be"),
        ("version < nightly", "has 'nightly' where a version should be, in the order semver or pep440"),
        ("version < semver 2.0", "has '2.0' where a version should be, in the order semver"),
        ("seen < 7", "has '7' where a period such as 90s, 30m, 12h, 7d or 4w should be"),
        ("seen = 7d", "has '=' behind seen; use <, <=, > or >= and a period such as 7d"),
        ("hardware < rev-b", "compares hardware, which has no order; use =, != or in"),
        ("seen <", "has its end where a period should be"),
    ],
)
def test_wrong_expression_refuses_the_action_and_says_where(text: str, said: str) -> None:
    with pytest.raises(ExpressionError) as error:
        compiled_reported(text)
    assert said in str(error.value)
    engine = reporting(text, "d1")
    engine.tick()
    assert engine.state.actions["a1"].phase == "REFUSED"
    assert f"reported_expression {said}" in engine.state.actions["a1"].message


@given(st.text(alphabet="<>=!(),127d. vesrionp\"'", max_size=30))
def test_any_text_is_an_expression_or_an_error_in_words(text: str) -> None:
    with contextlib.suppress(ExpressionError):
        assert compiled_reported(text).holds((FACT, START_US)) in (True, False)


def test_static_action_decides_by_the_reports_before_its_start() -> None:
    engine = reporting("version < 2.0.0 and seen < 7d", "d1", "d2", "d3", "d4")
    (action,), engine.actions = engine.actions, []
    engine.tick(online(engine, "d1", 1, version="1.0.0"), online(engine, "d4", 2, version="1.0.0"))
    engine.tick(after_s=7 * DAY_S)
    engine.tick(online(engine, "d1", 3, version="1.0.0"), online(engine, "d2", 4, version="2.0.0"))
    engine.actions = [action]
    engine.tick()
    engine.tick(online(engine, "d3", 5, version="1.0.0"))
    assert sorted(engine.sent()) == ["d1"]


def test_dynamic_action_takes_in_a_device_whose_report_fits() -> None:
    engine = reporting("version < 2.0.0", "d1", "d2", membership="dynamic")
    engine.tick()
    assert engine.sent() == []
    engine.tick(online(engine, "d1", 1, version="1.0.0"), online(engine, "d2", 2, version="2.0.0"))
    assert engine.sent() == ["d1"]
    engine.tick(online(engine, "d2", 3, version="1.5.0"))
    assert sorted(engine.sent()) == ["d1", "d2"]


@pytest.mark.parametrize("version", HOSTILE_VERSIONS, ids=lambda version: version[:12])
def test_a_version_of_thousands_of_digits_stops_no_action_of_others(version: str) -> None:
    """The table may still have it from an earlier release."""
    engine = reporting("version < 2.0.0", "d1", "d2", membership="dynamic")
    engine.tick(online(engine, "d1", 1, version=version), online(engine, "d2", 2, version="1.0.0"))
    assert engine.sent() == ["d2"]


def test_device_that_no_longer_fits_is_removed_before_its_command_is_sent_and_returns_when_it_fits() -> None:
    waves = json.dumps([{"percentage": 100}])
    engine = Engine(devices=devices_of("d1"))
    rollout = Rollout(membership="dynamic", waves=waves, not_before_us=START_US + DAY_S * SECOND)
    engine.actions.append(action_of(selector=Selector(reported_expression="hardware = rev-a"), rollout=rollout))
    engine.tick(online(engine, "d1", 1, hardware="rev-a"))
    assert engine.target().state is S.PENDING
    engine.tick(online(engine, "d1", 2, hardware="rev-b"))
    assert engine.target().state is S.REMOVED
    engine.tick(online(engine, "d1", 3, hardware="rev-a"))
    assert (engine.target().state, engine.target().attempt) == (S.PENDING, 2)


def test_update_that_changes_the_version_it_was_selected_by_is_not_taken_back() -> None:
    engine = reporting("version < 2.0.0", "d1", membership="dynamic")
    engine.tick(online(engine, "d1", 1, version="1.0.0"))
    assert engine.sent() == ["d1"]
    engine.tick(engine.report("IN_PROGRESS", 2))
    engine.tick(online(engine, "d1", 3, version="2.0.0"))
    assert engine.target().state is S.IN_PROGRESS
    engine.tick(engine.report("SUCCEEDED", 4, version="2.0.0"))
    assert engine.target().state is S.SUCCEEDED
    assert engine.published == ["a1/d1/1"]


def test_labels_still_remove_a_device_whose_reports_fit() -> None:
    engine = Engine(devices=devices_of("d1", labels={"site": "roof"}))
    selector = Selector(labels={"site": "roof"}, reported_expression="version < 2.0.0")
    engine.actions.append(action_of(selector=selector, rollout=Rollout(membership="dynamic")))
    engine.tick(online(engine, "d1", 1, version="1.0.0"))
    engine.devices = devices_of("d1", labels={"site": "cellar"})
    engine.tick()
    assert engine.target().state is S.REMOVED


def test_device_that_falls_silent_or_old_is_found_within_a_minute_of_the_time() -> None:
    engine = reporting("seen > 1h", "d1", membership="dynamic")
    engine.tick()
    engine.tick(online(engine, "d1", 1, version="1.0.0"))
    seen_us = engine.state.facts["d1"].last_seen_us
    while engine.now_us <= seen_us + 3600 * SECOND:
        assert engine.sent() == []
        engine.tick(after_s=20)
    while engine.now_us < seen_us + 3660 * SECOND:
        engine.tick(after_s=20)
    assert engine.sent() == ["d1"]


def test_ticks_rest_no_longer_than_until_time_is_considered_again() -> None:
    until = {}
    for text in ("seen > 1h", "version < 2.0.0"):
        engine = reporting(text, "d1", membership="dynamic")
        engine.tick()
        engine.tick(after_s=20)
        until[text] = rests_until_us(engine.state, engine.actions, [], engine.now_us, engine.limits) - engine.now_us
    assert until == {"seen > 1h": 40 * SECOND, "version < 2.0.0": 60 * SECOND}


@pytest.mark.parametrize("mark", ["<", "<=", ">", ">="])
def test_device_is_judged_again_also_if_time_is_considered_at_the_very_moment(mark: str) -> None:
    engine = reporting(f"seen {mark} 2m", "d1", membership="dynamic")
    engine.actions[0] = replace(
        engine.actions[0], rollout=Rollout(membership="dynamic", not_before_us=START_US + DAY_S * SECOND)
    )
    engine.tick(online(engine, "d1", 1, version="1.0.0"), after_s=0)
    for second in (60, 120, 180, 240):
        engine.tick(after_s=60)
        assert engine.now_us == START_US + second * SECOND
        target = engine.state.targets.get("a1", {}).get("d1")
        fits = {"<": second < 120, "<=": second <= 120, ">": second > 120, ">=": second >= 120}[mark]
        assert (target is not None and target.state is S.PENDING) is fits, second


def test_clock_that_is_set_back_does_not_stop_the_time_from_being_considered() -> None:
    engine = reporting("seen > 1h", "d1", membership="dynamic")
    engine.tick(online(engine, "d1", 1, version="1.0.0"), after_s=10 * DAY_S)
    engine.now_us -= 5 * DAY_S * SECOND
    engine.tick()
    state = engine.state
    assert rests_until_us(state, engine.actions, [], engine.now_us, engine.limits) <= engine.now_us + 60 * SECOND


@pytest.mark.parametrize(("text", "minute"), [("version < 2.0.0", 0), ("seen < 7d", 0), ("seen < 1m", 1)])
def test_tick_judges_only_devices_with_new_reports_and_once_a_minute_those_of_the_age(
    text: str, minute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[int] = []

    def counting(action: Action, devices: dict[str, Device], test: Callable[[str], bool] | None = None) -> Any:
        judged.append(len(devices))
        return select(action, devices, test)

    from actions.engine.selection import select

    monkeypatch.setattr("actions.engine.reported.select", counting)
    engine = reporting(text, *(f"d{n}" for n in range(100)), membership="dynamic")
    engine.tick()
    judged.clear()
    for second in range(30):
        engine.tick(online(engine, "d7", second + 1, version="1.0.0"))
    assert judged == [1] * 30
    judged.clear()
    engine.tick()
    assert judged == []
    engine.tick(after_s=60)
    assert sum(judged) == minute


def test_only_the_new_column_changes_the_digest_of_an_action() -> None:
    row = {"action_id": "a1", "name": "echo", "percentage": 100.0}
    before = action_of_row(row, commit_version=0)
    assert before.digest == action_of_row({**row, "reported_expression": None}, commit_version=0).digest
    assert before.digest != action_of_row({**row, "reported_expression": "seen"}, commit_version=0).digest


def test_online_status_says_product_and_hardware_and_later_statuses_keep_them() -> None:
    body = {"state": "ONLINE", "boot": "b", "seq": 1, "ts": 1, "version": "1.0.0", "product": "p", "hardware": "rev-b"}
    record = {"topic": "devices/d1/status", "key": b"d1", "value": json.dumps(body).encode(), "timestamp": START_US}
    place = {"log_id": "log", "partition": 0, "offset": 1, "epoch": 1}
    (event,) = parse([{**record, **place}], tenant="default", recorded_us=START_US).events
    assert (event["product"], event["hardware"]) == ("p", "rev-b")
    long = json.dumps({**body, "hardware": "x" * 257}).encode()
    parsed = parse([{**record, **place, "value": long}], tenant="default", recorded_us=START_US)
    assert not parsed.events
    assert "hardware" in parsed.quarantine[0]["reason"]
    engine = Engine(devices=devices_of("d1"))
    engine.tick(online(engine, "d1", 1, product="p", hardware="rev-b", version="1.0.0"))
    engine.tick(online(engine, "d1", 2, version="1.1.0"))
    fact = engine.state.facts["d1"]
    assert (fact.product, fact.hardware, fact.version) == ("p", "rev-b", "1.1.0")


def test_ota_selected_by_version_skips_nothing_it_should_install() -> None:
    engine = reporting("version < 2.0.0", "d1", type="ota", ota=Ota(artifact_name="fw", artifact_version="2.0.0"))
    engine.tick()
    assert engine.state.actions["a1"].phase == "REFUSED", "no such artifact: the selector does not hide it"
