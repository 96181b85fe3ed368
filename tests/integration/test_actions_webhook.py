"""The webhook of the actions job, from the row in `actions` to the receiver, with the real broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import write_deltalake
from support.receiver import Receiver

from actions.fleet_desk import FleetDesk, Order
from broker_edge.torture.process import BrokerProcess
from pipelines.actions import run_engine
from pipelines.settings import Settings
from sinks import tables
from sinks.rows import arrow_of, now_us


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


def test_job_announces_gate_end_and_refusal_and_the_next_run_what_a_receiver_missed(
    broker: BrokerProcess, receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", receiver.url)
    root = tmp_path / "tables"
    server = "grpc://{}:{}".format(*broker.flight)
    settings = Settings.model_validate({"servers": [server], "actions": {"root": str(root), "webhook": "env:HOOK"}})
    desk = FleetDesk(root, by="ann", create=True)
    desk.describe_devices({"d1": {}})
    desk.order(Order("echo", percentage=100.0, needs_approval=True), action_id="gate")
    desk.order(Order("echo", label_expression="nobody"), action_id="nobody")
    row = {"action_id": "bad", "name": "echo", "created_at": now_us()}
    write_deltalake(tables.uri_of(root, "actions"), arrow_of([row], tables.ACTIONS), mode="append")
    run_engine(settings, lambda seconds: False, once=True)
    assert sorted(receiver.events()) == [("bad", "refused"), ("gate", "waiting_approval"), ("nobody", "ended")]
    assert [one["wave"] for one in receiver.got if one["event"] == "waiting_approval"] == [1]

    receiver.mode = "fail"
    desk.cancel("gate", reason="not now")
    run_engine(settings, lambda seconds: False, once=True)
    assert len(receiver.got) == 3
    receiver.mode = "accept"
    run_engine(settings, lambda seconds: False, once=True)
    assert receiver.events()[3:] == [("gate", "cancelled"), ("gate", "ended")]
    assert "not now" in receiver.got[3]["message"]
