"""The name of an author as a broker with users verifies it, from the command line to the engine's answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.engine_world import EngineWorld, PretendedLog
from support.programs import StartBroker
from support.secured import make_users

from actions.engine import Limits
from actions.fleet_desk import FleetDesk
from actions.job import ActionJob
from actions.store import DeltalakeStore
from headwater_cli import main
from sinks import tables

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def sign_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str | None], None]:
    def use(user: str | None) -> None:
        for name in ("HEADWATER_USER", "HEADWATER_PASSWORD_FROM", "HEADWATER_BY"):
            monkeypatch.delenv(name, raising=False)
        if user is not None:
            monkeypatch.setenv("HEADWATER_USER", user)
            monkeypatch.setenv("HEADWATER_PASSWORD_FROM", f"file:{tmp_path / 'users' / f'{user}.password'}")

    return use


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(arguments)
        shown = capsys.readouterr()
        return code, shown.out.strip(), shown.err

    return call


@pytest.fixture
def admin(start_broker: StartBroker, tmp_path: Path) -> str:
    """The admin address of a broker with the users ann and bob."""
    folder = tmp_path / "users"
    make_users(folder, "ann", "bob")
    files = {"auth.password_file": str(folder / "users"), "auth.acl_file": str(folder / "acl")}
    return "http://{}:{}".format(*start_broker(settings=files).admin)


def answers(world: EngineWorld) -> list[str]:
    rows = [row for row in world.rows("action_events") if row["request_id"] is not None]
    return [row["message"] for row in sorted(rows, key=lambda row: row["at"])]


def test_an_approval_carries_the_name_that_the_broker_knows(
    tmp_path: Path, admin: str, sign_in: Callable[[str | None], None], run: Run
) -> None:
    world = EngineWorld(tmp_path / "tables")
    world.devices("d1")
    limits = Limits(needs_confirmed_names=True)
    job = ActionJob(DeltalakeStore(world.root), PretendedLog(), limits=limits)
    where = ("--root", str(world.root))
    sign_in("ann")
    order = ("create", "echo", "--id", "a1", "--percentage", "100", "--needs-approval", *where, "--admin", admin)
    assert run("actions", *order)[0] == 0
    log_id = world.rows("actions")[0]["confirmed_by"]
    assert (world.rows("actions")[0]["created_by"], bool(log_id)) == ("ann", True)
    job.turn()
    # Who only says to be bob is nobody.
    sign_in(None)
    assert run("actions", "approve", "a1", "--by", "bob", *where)[0] == 0
    job.turn()
    assert "no broker has verified the name 'bob' of the author of this approval" in answers(world)[-1]
    # Who created it may not approve it, under whatever name.
    sign_in("ann")
    code, _, said = run("actions", "approve", "a1", "--by", "bob", *where, "--admin", admin)
    assert code != 0
    assert "knows you as ann; omit --by" in said
    code, _, said = run("actions", "approve", "a1", *where, "--admin", admin)
    assert (code, "ann created a1: another person must approve it" in said) == (4, True)
    FleetDesk(world.root, by="ann", confirmed_by=log_id).ask("approve", "a1")  # As SQL can.
    job.turn()
    assert "ann created the action" in answers(world)[-1]
    sign_in("bob")
    assert run("actions", "approve", "a1", *where, "--admin", admin)[0] == 0
    job.turn()
    assert answers(world)[-1] == "approve: wave 1 of 1 may begin, approved by bob"
    assert {row["confirmed_by"] for row in world.rows("action_requests") if row["by"] == "bob"} == {None, log_id}
    job.turn()
    assert world.states() == {"QUEUED"}


def test_a_name_that_no_broker_knows_is_not_written(
    tmp_path: Path, admin: str, start_broker: StartBroker, sign_in: Callable[[str | None], None], run: Run
) -> None:
    world = EngineWorld(tmp_path / "tables")
    order = ("actions", "pause", "a1", "--root", str(world.root), "--admin")
    sign_in(None)
    code, _, said = run(*order, admin)
    assert code != 0
    assert "does not let you in" in said
    open_admin = "http://{}:{}".format(*start_broker("open").admin)
    code, _, said = run(*order, open_admin)
    assert code != 0
    assert "does not know your name: give --user" in said
    code, _, said = run(*order, "http://127.0.0.1:1")
    assert code != 0
    assert "cannot connect" in said
    assert world.rows("action_requests") == []


def test_an_approval_of_an_action_by_an_unverified_name_is_refused(tmp_path: Path) -> None:
    world = EngineWorld(tmp_path / "tables")
    world.devices("d1")
    world.action(needs_approval=True, created_by="ann")
    limits = Limits(needs_confirmed_names=True)
    job = ActionJob(DeltalakeStore(world.root), PretendedLog(), limits=limits)
    job.turn()
    world.insert(
        tables.ACTION_REQUESTS,
        {"request_id": "r1", "action_id": "a1", "kind": "approve", "by": "bob", "confirmed_by": "log", "wave": 1},
    )
    job.turn()
    assert "no broker has verified the name 'ann' of the creator of the action" in answers(world)[-1]
    assert world.states() == {"PENDING"}
