"""Firmware that is offered with its push, withdrawn and revoked, on real tables and a real broker."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine_world import EngineWorld

from actions.engine import Limits
from actions.job import ActionJob
from actions.store import DeltalakeStore
from broker_edge import Client, NotFoundError
from broker_edge.artifacts import ArtifactStore
from broker_edge.torture.process import BrokerProcess
from headwater_cli import main
from sinks import tables

Run = Callable[..., tuple[int, str, str]]


class OffersWorld(EngineWorld):
    def engine(self) -> ActionJob:
        store, limits = DeltalakeStore(self.root), Limits(allow_unsigned=True)
        return ActionJob(store, self.log, limits=limits, clock_us=lambda: self.now_us)

    def update(self, action_id: str, **fields: object) -> None:
        self.action(action_id, type="ota", artifact_name="fw", artifact_version="2", target_version="2", **fields)

    def messages(self, action_id: str) -> set[str | None]:
        return {row["message"] for row in self.rows("action_targets") if row["action_id"] == action_id}


@pytest.fixture
def world(tmp_path: Path) -> OffersWorld:
    return OffersWorld(tmp_path / "tables")


@pytest.fixture
def run(broker: BrokerProcess, world: OffersWorld, capsys: pytest.CaptureFixture[str]) -> Run:
    server = "grpc://{}:{}".format(*broker.flight)

    def call(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        there = () if words[0] == "withdraw" else ("--server", server)
        code = main(["artifacts", *words, "--root", str(world.root), *there])
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def pushed(run: Run, tmp_path: Path) -> Path:
    image = tmp_path / "image"
    image.write_bytes(b"firmware")
    code, _, said = run("push", str(image), "fw", "2", "--offer", "--label", "model=p2", "--by", "ann")
    assert code == 0, said
    assert "devices may install fw 2 from now on" in said
    return image


def test_a_push_with_offer_allows_devices_to_install_it(world: OffersWorld, pushed: Path, run: Run) -> None:
    (row,) = world.rows("artifacts")
    assert (row["name"], row["version"], row["size_bytes"], row["created_by"]) == ("fw", "2", 8, "ann")
    assert dict(row["labels"]) == {"model": "p2"}
    # Repeating it changes nothing.
    code, _, said = run("push", str(pushed), "fw", "2", "--offer")
    assert (code, "has fw 2 already" in said) == (0, True)
    assert len(world.rows("artifacts")) == 1


def test_options_of_an_offer_without_one_are_refused(world: OffersWorld, run: Run, tmp_path: Path) -> None:
    image = tmp_path / "image"
    image.write_bytes(b"firmware")
    code, _, said = run("push", str(image), "fw", "2", "--label", "model=p2")
    assert (code, "--label and --device go with --offer" in said) == (2, True)
    assert world.rows("artifacts") == []


def test_nothing_is_sent_for_a_withdrawn_artifact(world: OffersWorld, pushed: Path, run: Run) -> None:
    world.insert(tables.DEVICES, *({"device_id": id_, "labels": {"model": "p2"}} for id_ in ("d1", "d2")))
    world.update("a1", max_in_flight=1)
    world.online("d1", "1")
    world.online("d2", "1")
    job = world.engine()
    job.turn()
    job.turn()
    assert sorted(row["state"] for row in world.rows("action_targets")) == ["PENDING", "QUEUED"]
    code, out, _ = run("withdraw", "fw", "2", "--reason", "it bricks pumps", "--by", "bob", "--json")
    assert (code, json.loads(out)["open_actions"]) == (0, ["a1"])
    job.turn()
    # The one that has the command continues; the other one gets none, and is told why.
    waiting = [row for row in world.rows("action_targets") if row["state"] != "QUEUED"]
    queued = {row["device_id"] for row in world.rows("action_targets")} - {row["device_id"] for row in waiting}
    world.status(queued.pop(), "SUCCEEDED", version="2")
    job.turn()
    job.turn()
    assert world.states() == {"SUCCEEDED", "SKIPPED"}
    assert "the artifact fw 2 was withdrawn by bob: it bricks pumps" in world.messages("a1")
    assert len([key for key in world.log.keys if not (key or "").endswith("cancel")]) == 1
    # A later action of it is refused, and a second withdrawal names the first.
    world.update("a2")
    job.turn()
    (row,) = [row for row in world.rows("action_state") if row["action_id"] == "a2"]
    assert "was withdrawn by bob: it bricks pumps" in row["message"]
    code, _, said = run("withdraw", "fw", "2", "--by", "eve")
    assert (code, "fw 2 was withdrawn before, by bob" in said) == (0, True)
    code, _, said = run("push", str(pushed), "fw", "2", "--offer")
    assert (code != 0, "was withdrawn by bob: push it under another version" in said) == (True, True)


def test_a_revoked_version_is_not_stored_again_by_a_push_that_would_offer_it(
    broker: BrokerProcess, pushed: Path, run: Run
) -> None:
    assert run("revoke", "fw", "2", "--by", "bob")[0] == 0
    code, out, said = run("push", str(pushed), "fw", "2", "--offer")
    assert (code, out) == (4, "")
    assert "was withdrawn by bob: push it under another version" in said
    assert main(["artifacts", "verify", "fw", "2", "--server", "grpc://{}:{}".format(*broker.flight)]) == 4


def test_a_command_that_is_due_is_called_off_when_its_artifact_is_withdrawn(
    world: OffersWorld, pushed: Path, run: Run
) -> None:
    world.insert(tables.DEVICES, {"device_id": "d1", "labels": {"model": "p2"}})
    world.update("a1")
    world.log.is_away = True
    job = world.engine()
    job.turn()
    assert {row["outbox"] for row in world.rows("action_targets")} == {"command"}
    assert run("withdraw", "fw", "2", "--by", "bob")[0] == 0
    job.turn()
    world.log.is_away = False
    for _ in range(3):
        job.turn()
    assert [key for key in world.log.keys if not (key or "").endswith("cancel")] == []


def test_a_revoked_artifact_is_cancelled_and_gone(world: OffersWorld, pushed: Path, run: Run, client: Client) -> None:
    world.insert(tables.DEVICES, {"device_id": "d1", "labels": {"model": "p2"}})
    world.update("a1")
    job = world.engine()
    job.turn()
    job.turn()
    assert world.states() == {"QUEUED"}
    code, _, said = run("revoke", "fw", "2", "--by", "bob", "--reason", "stolen key")
    assert (code, "asked to cancel a1" in said) == (0, True)
    with pytest.raises(NotFoundError):
        ArtifactStore(client).get("fw", "2")
    job.turn()
    assert world.states() == {"CANCELLING"}
    (asked,) = world.rows("action_requests")
    assert (asked["kind"], asked["by"], asked["reason"]) == ("cancel", "bob", "revoked fw 2: stolen key")
    # Again, as after a broker that did not answer.
    code, out, said = run("revoke", "fw", "2", "--by", "bob")
    assert (code, "does not have fw 2" in out) == (0, True)


def test_a_revocation_says_which_broker_did_not_answer(world: OffersWorld, pushed: Path, run: Run) -> None:
    code, out, _ = run("revoke", "fw", "2", "--by", "bob", "--server", "grpc://127.0.0.1:1", "--timeout", "2")
    assert code == 3
    assert "fw 2 removed" in out
    assert "127.0.0.1:1" in out
    (row,) = world.rows("artifacts")
    assert row["withdrawn_by"] == "bob"


@pytest.mark.parametrize("command", ["withdraw", "revoke"])
def test_without_the_library_for_tables_the_commands_say_what_to_install(
    command: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    for name in ("actions.fleet_desk", "actions.offers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    code, _, said = run(command, "fw", "2")
    assert code == 5
    assert "pip install 'headwater[spark]'" in said


def test_withdrawing_what_was_never_offered_is_told(world: OffersWorld, run: Run) -> None:
    code, _, said = run("withdraw", "fw", "9")
    assert (code != 0, "has no artifact fw 9 of tenant default" in said) == (True, True)
