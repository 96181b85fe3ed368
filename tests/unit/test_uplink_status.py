"""Statuses in the format of Bytebeam's uplink: the same rows as our own format, or quarantine with a reason."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engine import Engine, action_of, devices_of

from actions.columns import reports_in
from actions.engine import Selector
from actions.status_rows import Parsed, parse
from actions.uplink_status import TOPIC, UplinkTopic
from broker_edge.device.wording import OwnWords, Said, UplinkWords
from broker_edge.errors import SettingsError
from pipelines.settings import load_settings
from sinks.rows import arrow_of
from sinks.tables import ACTION_EVENTS, QUARANTINE

RESPONSE = {
    "id": "a1",
    "sequence": 4,
    "timestamp": 1_800_000_000_123,
    "state": "Completed",
    "progress": 100,
    "errors": [],
}


def parsed(body: Any, topic: str = "/tenants/demo/devices/d1/action/status", *, offset: int = 7) -> Parsed:
    value = body if isinstance(body, bytes) else json.dumps(body).encode()
    place = {"log_id": "log", "partition": 5, "offset": offset, "epoch": 2, "timestamp": 99}
    record = {**place, "topic": topic, "key": b"", "value": value}
    return parse([record], tenant="default", recorded_us=100, uplink=UplinkTopic(TOPIC))


def said(state: str, **fields: Any) -> Said:
    return Said(device_id="d1", action_id="a1", attempt=2, state=state, boot="b", seq=3, ts_us=5_000, **fields)


@pytest.mark.parametrize(
    "status",
    [
        said("ACCEPTED"),
        said("IN_PROGRESS", step="download", progress=40),
        said("IN_PROGRESS", step="rollback"),
        said("IN_PROGRESS"),
        said("SUCCEEDED", version="2.0.0", progress=100),
        said("FAILED", message="no power"),
        said("REJECTED", message="not now"),
        said("CANCELLED"),
    ],
    ids=lambda status: f"{status.state}-{status.step}",
)
def test_both_ways_to_word_a_status_become_the_same_row(status: Said) -> None:
    rows = []
    for words in (OwnWords(), UplinkWords(tenant="demo")):
        topic, value = words.record(status) or ("", b"")
        result = parsed(value, topic)
        assert result.quarantine == ()
        rows.append(result.events[0])
    own, uplink = rows
    # Uplink has no boot, and always has a progress.
    assert uplink == {**own, "boot": None, "progress": own["progress"] or 0}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\xff", "the payload is not JSON"),
        (b"[" * 60_000, "the payload is not JSON"),
        (b"[" * 100_000, "the status has 100000 bytes; the limit is 65536"),
        ({}, "the payload is not a JSON array of responses"),
        ([], "the payload is not a JSON array of responses"),
        ([7], "response 1 of 1: it must be an object, not 7"),
        ([{**RESPONSE, "id": None}], "response 1 of 1: id must be a text, not None"),
        ([{**RESPONSE, "id": "a1/x"}], "response 1 of 1: id must be <action_id> or <action_id>/<attempt>, not 'a1/x'"),
        ([{**RESPONSE, "id": "a1/0"}], "response 1 of 1: id must be"),
        ([{**RESPONSE, "id": "a1/99999999999999999999"}], "response 1 of 1: id must be"),
        ([{**RESPONSE, "id": "/2"}], "response 1 of 1: id must be"),
        ([{**RESPONSE, "state": "Done"}], "response 1 of 1: unknown state 'Done'; known are Received, "),
        ([{**RESPONSE, "state": ["Completed"]}], "response 1 of 1: state must be a text"),
        ([{**RESPONSE, "sequence": -1}], "response 1 of 1: sequence must be a whole number"),
        ([{**RESPONSE, "timestamp": 1e12}], "response 1 of 1: timestamp must be a whole number"),
        ([{**RESPONSE, "progress": 101}], "response 1 of 1: progress must be a whole number from 0 to 100"),
        ([{**RESPONSE, "state": "Failed", "errors": "x"}], "response 1 of 1: errors must be a list of texts"),
        ([{**RESPONSE, "state": "Failed", "errors": [3]}], "response 1 of 1: errors must be a text, not 3"),
        ([{**RESPONSE, "id": "\ud800"}], "response 1 of 1: id contains characters that are not Unicode"),
        ([7] * 9, "response 1 of 9: it must be an object, not 7; response 2 of 9"),
    ],
)
def test_response_that_breaks_the_format_is_quarantined_with_reason_and_bytes(body: Any, reason: str) -> None:
    result = parsed(body)
    (row,) = result.quarantine
    assert result.events == ()
    assert row["reason"].startswith(reason)
    assert len(row["reason"]) < 1_000
    assert row["value"] == (body if isinstance(body, bytes) else json.dumps(body).encode())


def test_one_wrong_response_does_not_take_the_others_with_it() -> None:
    result = parsed([{**RESPONSE, "id": "a2"}, 7, {**RESPONSE, "state": "Running"}, RESPONSE])
    found = [(row["event_id"], row["action_id"], row["state"]) for row in result.events]
    # Of two responses about one attempt the last one counts.
    assert found == [("log/5/7/2", "a2", "SUCCEEDED"), ("log/5/7/2/3", "a1", "SUCCEEDED")]
    assert [row["reason"] for row in result.quarantine] == ["response 2 of 4: it must be an object, not 7"]


def test_a_record_that_speaks_of_two_actions_moves_both() -> None:
    engine = Engine(devices=devices_of("d1"))
    engine.actions += [action_of(id_, selector=Selector(device_ids=("d1",))) for id_ in ("a1", "a2")]
    engine.tick()
    events = parsed([RESPONSE, {**RESPONSE, "id": "a2", "state": "Failed", "errors": ["no power", "no net"]}]).events
    rows = [{**row, "at": 1, "recorded_at": engine.now_us} for row in events]
    feed = arrow_of(rows, ACTION_EVENTS)
    feed = feed.append_column("_commit_version", pa.array([1] * feed.num_rows, pa.int64()))
    feed = feed.append_column("_change_type", pa.array(["insert"] * feed.num_rows))
    reports = list(reports_in([feed], str))
    engine.tick(*reports)
    assert engine.target().state == "SUCCEEDED"
    failed = engine.target(action_id="a2")
    assert (failed.state, failed.message) == ("FAILED", "no power; no net")
    engine.tick(*reports)
    assert not engine.last.writes, "repeating the same record changes nothing"


@pytest.mark.parametrize(
    "topic",
    [
        "/tenants/demo/devices/d1/action/status/x",
        "/tenants/demo/devices//action/status",
        "tenants/demo/devices/d1/action/status",
    ],
)
def test_other_topics_are_not_taken_for_uplinks(topic: str) -> None:
    result = parsed([RESPONSE], topic)
    assert result.events == ()
    assert "is not devices/<id>/status" in result.quarantine[0]["reason"]


@given(st.lists(st.dictionaries(st.sampled_from([*RESPONSE, "version"]), st.from_type(object) | st.none()), max_size=3))
def test_whatever_an_uplink_sends_fits_the_tables(responses: list[dict[str, Any]]) -> None:
    value = json.dumps([{**RESPONSE, **response} for response in responses], default=repr).encode()
    result = parsed(value)
    assert len(result.events) + len(result.quarantine) >= 1
    arrow_of(result.events, ACTION_EVENTS)
    arrow_of(result.quarantine, QUARANTINE)


def test_topic_is_a_setting_that_is_checked(tmp_path: Any) -> None:
    assert UplinkTopic("org/{tenant}/{id}/said").filter == "org/+/+/said"
    assert UplinkTopic("org/{tenant}/{id}/said").device_of("org/x/d9/said") == "d9"
    assert load_settings(None).status.uplink_topic == TOPIC
    file = tmp_path / "pipelines.yaml"
    file.write_text("status: {uplink_topic: null}")
    assert load_settings(file).status.uplink_topic is None
    for wrong in ("a/+/{id}", "a/b", "{id}/{id}", "$a/{id}"):
        file.write_text(json.dumps({"status": {"uplink_topic": wrong}}))
        with pytest.raises(SettingsError, match="is not a topic with one level"):
            load_settings(file)
