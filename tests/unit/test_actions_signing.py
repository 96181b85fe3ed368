"""The actions job signs what it publishes, with a key that the settings name by reference."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deltalake import write_deltalake
from support.engine_world import PretendedLog
from support.flight_server import FlightServer
from support.signing import NOW, Maker

from actions.signing import SignedPublisher, signing
from broker_edge import ConfigError, Row
from broker_edge.artifacts import SigningKey
from broker_edge.device import Guard, MemoryHeld
from broker_edge.device.calls import Command
from broker_edge.device.guard import CommandRefused
from broker_edge.policy import SignedCommand
from pipelines.actions import run_engine
from pipelines.settings import ActionsSection, Settings
from sinks import tables
from sinks.rows import arrow_of

BODY = json.dumps({"action_id": "a1", "device_id": "d1", "attempt": 1, "type": "cancel", "name": "", "params": {}})


class Kept(PretendedLog):
    def publish(self, rows):  # type: ignore[no-untyped-def]
        self.rows = rows
        return super().publish(rows)


def test_a_device_takes_what_the_job_publishes_until_it_expires() -> None:
    maker, log = Maker(), Kept("log")
    publisher = SignedPublisher(log, maker.director, valid_s=60, clock_us=lambda: NOW)
    row = Row("devices/d1/actions", BODY.encode(), idempotency_key="a1/d1/1/cancel")
    (place,) = publisher.publish([row])
    (sent,) = log.rows
    assert (sent.topic, sent.idempotency_key, place.offset) == (row.topic, row.idempotency_key, place.offset)
    assert maker.guard().command(sent.value, "d1") == row.value
    assert Command.parse(sent.value) == Command.parse(row.value), "an older agent reads it as before"
    maker.now_us = NOW + 60_000_000
    with pytest.raises(CommandRefused, match="this command expired"):
        maker.guard().command(sent.value, "d1")
    assert (publisher.name, publisher.log_id()) == (log.name, "log")


def test_the_key_comes_from_a_file_or_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = SigningKey.generate()
    key.save(tmp_path / "director")
    monkeypatch.setenv("DIRECTOR", (tmp_path / "director").read_text())
    for reference in (f"file:{tmp_path / 'director'}", "env:DIRECTOR"):
        log = Kept("log")
        (publisher,) = signing([log], reference, valid_s=60)
        publisher.publish([Row("devices/d1/actions", BODY.encode(), idempotency_key="a1/d1/1/cancel")])
        found = SignedCommand.of(log.rows[0].value)
        assert found is not None
        assert found.signature.key_id == key.key_id


def test_a_wrong_key_is_a_sentence_that_does_not_repeat_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIRECTOR", "PRIVATE")
    with pytest.raises(ConfigError, match=r"actions.signing_key: env:DIRECTOR is not a private key in PEM") as caught:
        signing([Kept("log")], "env:DIRECTOR", valid_s=60)
    assert "PRIVATE" not in str(caught.value)
    with pytest.raises(ConfigError, match=r"actions\.signing_key: cannot read .*missing"):
        signing([Kept("log")], f"file:{tmp_path / 'missing'}", valid_s=60)
    with pytest.raises(ValueError, match="write file:PATH, env:NAME or secret:SCOPE/KEY, never the secret itself"):
        ActionsSection(signing_key="-----BEGIN PRIVATE KEY-----")


def test_without_a_key_nothing_is_signed() -> None:
    publishers = [Kept("log")]
    assert signing(publishers, None, valid_s=60) is publishers


def test_control_without_signing_the_device_refuses() -> None:
    with pytest.raises(CommandRefused, match="not signed"):
        Maker().guard().command(BODY.encode(), "d1")


def test_the_job_signs_with_the_key_of_its_settings(tmp_path: Path, flight_server: FlightServer) -> None:
    """Commands and cancels, from the row of a table to the bytes that a device checks by its own clock."""
    maker, root = Maker(), tmp_path / "tables"
    maker.director.save(tmp_path / "director")
    tables.create_by_path(root)
    device = {"device_id": "d1", "labels": {"site": "roof"}}
    action = {"action_id": "a1", "name": "echo", "device_ids": ["d1"], "created_at": 1}
    for table, row in ((tables.DEVICES, device), (tables.ACTIONS, action)):
        write_deltalake(tables.uri_of(root, table.name), arrow_of([row], table), mode="append")
    given = ActionsSection(root=str(root), signing_key=f"file:{tmp_path / 'director'}")
    settings = Settings(servers=[flight_server.location], actions=given)
    run_engine(settings, lambda seconds: False, once=True)
    cancel = {"request_id": "r1", "kind": "cancel", "action_id": "a1", "by": "ann", "created_at": 2}
    write_deltalake(tables.uri_of(root, "action_requests"), arrow_of([cancel], tables.ACTION_REQUESTS), mode="append")
    run_engine(settings, lambda seconds: False, once=True)
    sent = [
        r.value for p in flight_server.log.partitions.values() for r in p.records if r.topic == "devices/d1/actions"
    ]
    guard = Guard(maker.settings(), MemoryHeld())
    assert [json.loads(guard.command(value, "d1"))["type"] for value in sent] == ["command", "cancel"]
